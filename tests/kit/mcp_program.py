"""An MCP server for tests, made with the library's own.

Run as a program it speaks over its stdin and stdout, or, given a port, over SSE.
"""

import asyncio
import logging
import os
import sys

from mcp.server.mcpserver import Context, Image, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.shared.exceptions import MCPError
from mcp_types import ToolAnnotations

READS = ToolAnnotations(read_only_hint=True)


def make_server() -> MCPServer:
    """Return a new server."""
    server = MCPServer("tests", instructions="For tests.")

    @server.tool(annotations=READS)
    def add(a: int, b: int) -> int:
        """Adds two numbers."""
        return a + b

    @server.tool()
    def say(text: str) -> str:
        """Says a text."""
        return text

    @server.tool()
    def fail() -> str:
        """Fails."""
        raise ToolError("It is a bad day.")

    @server.tool()
    def refuse() -> str:
        """Refuses."""
        raise MCPError(-32042, "Not today.")

    @server.tool()
    def draw() -> list[str | Image]:
        """Draws."""
        return ["A drawing:", Image(data=b"\x89PNG", format="png")]

    _add_more(server)
    return server


def _add_more(server: MCPServer) -> None:
    @server.tool()
    def process() -> int:
        """Returns the id of the process."""
        return os.getpid()

    @server.tool()
    def leave() -> str:
        """Ends the process."""
        os._exit(1)

    @server.tool()
    async def count(context: Context, steps: int = 3) -> str:
        """Counts, and says so."""
        for step in range(steps):
            await context.report_progress(step + 1, steps)
        return f"counted to {steps}"

    @server.tool()
    async def wait() -> str:
        """Waits."""
        logging.getLogger("uvicorn.error").info("it waits")  # where it is a program of its own
        await asyncio.sleep(60)
        return "waited"

    looks = []

    @server.tool(annotations=READS)
    async def look() -> str:
        """Waits when it is called for the first time."""
        looks.append("look")
        if len(looks) == 1:
            await asyncio.sleep(60)
        return f"looked {len(looks)} times"

    @server.tool()
    def long(size: int) -> str:
        """Says a lot."""
        return "x" * size


if __name__ == "__main__":
    if len(sys.argv) > 1:
        import uvicorn

        uvicorn.run(make_server().sse_app(), host="127.0.0.1", port=int(sys.argv[1]))
    else:
        make_server().run("stdio")
