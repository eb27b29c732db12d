"""The settings of tools that the server runs, as `conf` reads them."""

from collections.abc import Mapping
from dataclasses import dataclass

from responses_app.setting_types import (
    flag,
    hosts,
    image_url,
    mcp_tool,
    sandbox,
    search_url,
    seconds,
    setting,
    text,
    whole,
)
from responses_app.tools.mcp.servers import ServerAccess, parse_servers
from responses_app.tools.network import NOTHING_ALLOWED, AllowedHosts

KIB, MIB = 1024, 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class ToolSettings:
    """A field's name in capitals is its environment variable."""

    server_tool_seconds: float = setting(
        120.0, seconds(1), "how long a call of a tool may take without a sign of progress", default_text="120"
    )
    server_tool_max_output_bytes: int = setting(
        64 * KIB, whole(KIB), "what the model reads of one call of a tool; the rest is left out"
    )
    mcp_servers: Mapping[str, ServerAccess] = setting(
        {}, parse_servers, "MCP servers by their labels, as JSON or a file (see MCP servers)",
        default_text="unset: none", secret=True,
    )  # fmt: skip
    mcp_server_urls: bool = setting(True, flag, "requests may name MCP servers by their URL, too", default_text="on")
    mcp_allowed_hosts: AllowedHosts = setting(
        NOTHING_ALLOWED, hosts, "private hosts that such URLs may name: `mcp.internal,127.0.0.1:8900`",
        default_text="unset: none",
    )  # fmt: skip
    mcp_sse: bool = setting(
        False, flag, "URLs that end in `/sse` are spoken to as MCP was until 2025", default_text="off"
    )
    sandbox: str = setting(
        "auto", sandbox,
        "what keeps code apart that the model has written: the first that holds here, or `off` (see Code interpreter)",
    )  # fmt: skip
    sandbox_mcp: str = setting(
        "", mcp_tool, "a server of MCP_SERVERS that runs the code in place of a sandbox here, or one tool of it",
        default_text="unset",
    )  # fmt: skip
    sandbox_python: str = setting(
        "", text, "the Python that runs in it: its packages are what code can import",
        default_text="the one that the server's was made of",
    )  # fmt: skip
    sandbox_memory_bytes: int = setting(
        1024 * MIB, whole(64 * MIB),
        "memory of all processes of a container, at most: it has 1 GiB unless it asks for more",
        default_text="1024 MiB",
    )  # fmt: skip
    sandbox_disk_bytes: int = setting(
        256 * MIB, whole(MIB), "files of a container, which lie in memory", default_text="256 MiB"
    )
    sandbox_max_processes: int = setting(64, whole(8, 4096), "processes and threads of a container")
    sandbox_call_seconds: float = setting(
        120.0, seconds(0.1), "how long code may run; then it is interrupted", default_text="120"
    )
    sandbox_max_containers: int = setting(
        32, whole(1, 4096), "containers that a worker starts at once; the one idle for longest makes room"
    )
    sandbox_idle_seconds: float = setting(
        1200.0, seconds(1), "a container in which nothing was done for so long expires", default_text="1200"
    )
    search_url: str = setting(
        "", search_url, "a SearXNG that `web_search` asks, or `ddgs+http://…` for the server of ddgs (see Web search)",
        default_text="unset: no web search",
    )  # fmt: skip
    search_mcp: str = setting(
        "", mcp_tool, "a server of MCP_SERVERS that `web_search` asks, or one tool of it: `brave.brave_web_search`",
        default_text="unset",
    )  # fmt: skip
    search_allowed_hosts: AllowedHosts = setting(
        NOTHING_ALLOWED, hosts, "private hosts whose pages may be opened: `wiki.internal,10.1.0.0/16`",
        default_text="unset: none",
    )  # fmt: skip
    file_max_bytes: int = setting(128 * MIB, whole(1), "one file that is uploaded", default_text="128 MiB")
    files_max_entries: int = setting(10_000, whole(), "files of a project (see Files); 0 = any number")
    files_max_bytes: int = setting(
        10 * 1024 * MIB, whole(), "all files of a project together; 0 = no limit", default_text="10240 MiB"
    )
    file_search: bool = setting(True, flag, "vector stores, and `file_search` in them", default_text="on")
    vector_stores_max_entries: int = setting(
        1000, whole(), "vector stores of a project (see File search); 0 = any number"
    )
    vector_store_max_files: int = setting(10_000, whole(), "files in a vector store; 0 = any number")
    vector_store_max_chunks: int = setting(100_000, whole(), "chunks in a vector store; 0 = any number")

    image_service_url: str = setting(
        "", image_url, "a service with OpenAI's Images API, which makes images: `http://127.0.0.1:8188/v1`",
        default_text="unset: no image generation",
    )  # fmt: skip
    image_service_key: str = setting("", text, "its API key", default_text="unset", secret=True)
    image_service_model: str = setting(
        "", text, "the model that it is asked for, whatever requests say", default_text="unset: what a request says"
    )
    image_service_seconds: float = setting(180.0, seconds(1), "how long it may take for an image", default_text="180")
    image_max_bytes: int = setting(
        8 * MIB, whole(64 * KIB), "largest image that is made, or edited", default_text="8 MiB"
    )

    enable_computer_call: bool = setting(
        False, flag, "lists of items show the screenshots of `computer_call_output` to who includes them",
        default_text="off",
    )  # fmt: skip

    @property
    def problem_of_tools(self) -> str | None:
        """What does not fit together, in one sentence; None for nothing."""
        if self.search_url and self.search_mcp:
            return "SEARCH_URL and SEARCH_MCP are both set: one of them is enough."
        if self.sandbox_mcp and self.sandbox not in ("auto", "off"):
            return "SANDBOX and SANDBOX_MCP are both set: one of them is enough."
        for name, value in (("SEARCH_MCP", self.search_mcp), ("SANDBOX_MCP", self.sandbox_mcp)):
            if value and value.partition(".")[0] not in self.mcp_servers:
                return f"{name}={value} names no server of MCP_SERVERS."
        return None
