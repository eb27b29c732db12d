"""What workers do outside that must not be done twice: an MCP server that counts what it hears, and two workers."""

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mcp.server.mcpserver import MCPServer

from tests.kit.mcp_servers import serving
from tests.kit.scripts import BEGIN

CODE = "open('/mnt/data/ran', 'a').write('x');"
GATED_AFTER = 5  # tokens of a call, behind which it waits for `Hearing.release`


async def nothing(text: str) -> None:
    """Do nothing when a call is heard."""


@dataclass
class Hearing:
    """An MCP server whose one tool is not to be called twice. `heard` counts its calls by what they say.

    `on_call` is awaited in each call, before that is answered.
    """

    folder: Path
    url: str = ""
    heard: Counter[str] = field(default_factory=Counter)
    on_call: Callable[[str], Awaitable[None]] = nothing

    def script(self, count: int) -> list[dict[str, Any]]:
        """Return what the model says: the call of `[book N]` comes at once, that of `[wait N]` once it is released.

        So is the code of `[run N]`.
        """
        calls = [f'<|channel|>commentary to=tests.book code<|message|>{{"text":"{n}"}}<|call|>' for n in range(count)]
        at_once = [{"when": f"[book {number}]", "say": call} for number, call in enumerate(calls)]
        gated = [
            {
                "when": f"[wait {number}]",
                "say": call,
                "hang_after": GATED_AFTER,
                "wait_for_file": str(self.folder / f"call-{number}"),
            }
            for number, call in enumerate(calls)
        ]
        run = f"<|channel|>analysis to=python code<|message|>{CODE}<|call|>"
        code = [{**each, "when": f"[run {number}]", "say": run} for number, each in enumerate(gated)]
        return [*at_once, *gated, *code, {"say": f"{BEGIN}Done.<|return|>"}]

    def release(self, number: int) -> None:
        """Let the model say the call of `[wait number]`, within 20 ms."""
        (self.folder / f"call-{number}").touch()

    def tools(self, **fields: object) -> list[dict[str, Any]]:
        """Return a request's tools."""
        declared = {"type": "mcp", "server_label": "tests", "server_url": self.url, "require_approval": "never"}
        return [{**declared, **fields}]


@asynccontextmanager
async def hearing(folder: Path) -> AsyncIterator[Hearing]:
    """Run the MCP server; `folder` is that of the workers."""
    server, hears = MCPServer("tests"), Hearing(folder)

    @server.tool()
    async def book(text: str) -> str:
        """Books what must not be booked twice."""
        hears.heard[text] += 1
        await hears.on_call(text)
        return f"booked {text}"

    async with serving(server.streamable_http_app()) as running:
        hears.url = f"{running.url}/mcp"
        yield hears


def call_of(response: dict[str, Any]) -> dict[str, Any]:
    """Return the call of an MCP server in a response."""
    (call,) = (item for item in response["output"] if item["type"] == "mcp_call")
    return dict(call)
