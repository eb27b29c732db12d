"""All settings of the extension, and what of them does not fit together with the server's."""

from collections.abc import Container
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from responses_app.extensions.containers.egress.settings import EgressSettings
from responses_app.extensions.containers.sandbox.settings import SandboxSettings
from responses_app.protocol.setting import setting
from responses_app.tools.settings import mcp_problem, mcp_tool

if TYPE_CHECKING:
    from responses_app.settings.conf import Settings


@dataclass(frozen=True, kw_only=True)
class ContainerSettings(SandboxSettings, EgressSettings):
    """The settings of what runs code of models: in containers, or at an MCP server."""

    sandbox_mcp: str = setting(
        "", mcp_tool,
        "an MCP server of MCP_SERVERS, or one tool of it, that runs the model's code instead of a local sandbox",
        default_text="unset",
    )  # fmt: skip

    def problem(self, given: Container[str]) -> str | None:
        """Return what does not fit together."""
        if self.sandbox_mcp and self.sandbox not in ("auto", "off"):
            return "SANDBOX and SANDBOX_MCP are both set: one of them is enough."
        of_server: Any = self  # which has the server's settings, too
        return mcp_problem("SANDBOX_MCP", self.sandbox_mcp, of_server.mcp_servers)


if TYPE_CHECKING:

    class ServerSettings(ContainerSettings, Settings):
        """All settings of a server that has the extension."""
