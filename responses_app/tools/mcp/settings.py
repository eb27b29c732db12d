"""The settings of MCP servers."""

from collections.abc import Mapping
from dataclasses import dataclass

from responses_app.protocol.setting import RoomSettings, flag, seconds, setting
from responses_app.tools.mcp.servers import ServerAccess, parse_servers
from responses_app.tools.network import NOTHING_ALLOWED, AllowedHosts, hosts


@dataclass(frozen=True, kw_only=True)
class McpSettings(RoomSettings):
    """The settings of MCP servers."""

    server_tool_seconds: float = setting(
        120.0, seconds(1), "how long a call of a tool that the server runs may take without a sign of progress"
    )
    mcp_servers: Mapping[str, ServerAccess] = setting(
        {}, parse_servers,
        "MCP servers by their labels, as JSON or a file (see MCP servers)",
        default_text="unset: none", secret=True,
    )  # fmt: skip
    mcp_server_urls: bool = setting(
        True, flag, "let requests name MCP servers by their URL, beside those of MCP_SERVERS"
    )
    mcp_allowed_hosts: AllowedHosts = setting(
        NOTHING_ALLOWED, hosts,
        "hosts in private networks that MCP URLs in requests may name: `mcp.internal,127.0.0.1:8900`",
        default_text="unset: none",
    )  # fmt: skip
