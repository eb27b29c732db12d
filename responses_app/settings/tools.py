"""The settings of tools that the server runs, as `conf` reads them."""

from collections.abc import Container
from dataclasses import dataclass

from responses_app.protocol.setting import KIB, MIB, flag, seconds, setting, text, whole
from responses_app.settings.types import mcp_tool, sandbox, search_url
from responses_app.tools.mcp.settings import McpSettings
from responses_app.tools.network import NOTHING_ALLOWED, AllowedHosts, hosts


@dataclass(frozen=True, kw_only=True)
class ToolSettings(McpSettings):
    """Those of tools that do not declare theirs themselves. Some of them go through MCP servers."""

    server_tool_max_output_bytes: int = setting(
        64 * KIB, whole(KIB), "how much of what a tool of the server gives back the model reads; the rest is left out"
    )
    sandbox: str = setting(
        "auto", sandbox,
        "what keeps code that the model has written apart: the first that works here (`auto`), one of them, or "
        "`off` for no code interpreter (see Code interpreter)",
    )  # fmt: skip
    sandbox_mcp: str = setting(
        "", mcp_tool,
        "a server of MCP_SERVERS, or one tool of it, that runs the model's code in place of a sandbox on this "
        "machine",
        default_text="unset",
    )  # fmt: skip
    sandbox_python: str = setting(
        "", text,
        "the Python in the sandbox: the model's code can import its packages",
        default_text="the Python that the server's environment was made with",
    )  # fmt: skip
    sandbox_memory_bytes: int = setting(
        1024 * MIB, whole(64 * MIB),
        "the most memory that all processes of a container may have; a container has 1 GiB unless it asks for "
        "more",
    )  # fmt: skip
    sandbox_disk_bytes: int = setting(256 * MIB, whole(MIB), "size of the files of a container, which lie in memory")
    sandbox_max_processes: int = setting(64, whole(8, 4096), "processes and threads of one container")
    sandbox_call_seconds: float = setting(
        120.0, seconds(0.1), "how long one call's code may run in the sandbox; then it is interrupted"
    )
    sandbox_max_containers: int = setting(
        32, whole(1, 4096),
        "containers that one worker has at once; the one that is idle for longest makes room for a new one",
    )  # fmt: skip
    sandbox_project_containers: int = setting(
        0, whole(0, 4096),
        "containers of one project that work at once in one worker; what more it wants waits "
        "(0: three quarters of SANDBOX_MAX_CONTAINERS)",
    )  # fmt: skip
    sandbox_wait_seconds: float = setting(
        30.0, seconds(0), "how long a call waits for a container where as many work as may; then it fails"
    )
    sandbox_idle_seconds: float = setting(
        1200.0, seconds(1), "how long nothing may be done in a container; then it expires"
    )
    search_url: str = setting(
        "", search_url,
        "what `web_search` asks: a SearXNG, or with `ddgs+http://…` a server of ddgs (see Web search)",
        default_text="unset: no web search",
    )  # fmt: skip
    search_mcp: str = setting(
        "", mcp_tool,
        "a server of MCP_SERVERS that `web_search` asks, or one tool of it: `brave.brave_web_search`",
        default_text="unset",
    )  # fmt: skip
    search_allowed_hosts: AllowedHosts = setting(
        NOTHING_ALLOWED, hosts,
        "hosts in private networks whose pages `web_search` may open: `wiki.internal,10.1.0.0/16`",
        default_text="unset: none",
    )  # fmt: skip
    file_max_bytes: int = setting(128 * MIB, whole(1), "largest file that can be uploaded")
    file_search: bool = setting(True, flag, "serve vector stores, and `file_search` in them (see File search)")

    enable_computer_call: bool = setting(
        False, flag, "show the screenshots of `computer_call_output` in lists of items to clients that include them"
    )

    def problem(self, given: Container[str]) -> str | None:
        """Return what does not fit together."""
        if self.search_url and self.search_mcp:
            return "SEARCH_URL and SEARCH_MCP are both set: one of them is enough."
        if self.sandbox_mcp and self.sandbox not in ("auto", "off"):
            return "SANDBOX and SANDBOX_MCP are both set: one of them is enough."
        for name, value in (("SEARCH_MCP", self.search_mcp), ("SANDBOX_MCP", self.sandbox_mcp)):
            if value and value.partition(".")[0] not in self.mcp_servers:
                return f"{name}={value} names no server of MCP_SERVERS."
        return None
