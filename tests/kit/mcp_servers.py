"""Real MCP servers on loopback, and an `McpTool` that may reach them."""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import uvicorn

from responses_app.protocol.errors import JsonObject
from responses_app.protocol.requests.server_tools import parse_server_tool, private_fields
from responses_app.tools.base import ToolCall, ToolUse
from responses_app.tools.mcp.tool import McpTool
from responses_app.tools.network import AllowedHosts
from responses_app.tools.settings import McpSettings, ServerAccess
from tests.kit.forking import ForkedProcess, fork
from tests.kit.server import ROOT, clean_environ, free_port
from tests.kit.waiting import eventually

LOOPBACK = AllowedHosts.parse("127.0.0.1,localhost")
PROGRAM = "tests.kit.mcp_program"
STDIO = ServerAccess(transport="stdio", command=(sys.executable, "-m", PROGRAM))
Kind = Literal["http", "old http", "sse"]


@dataclass
class McpServer:
    """A server that runs here. `requests` are the method and the headers of each HTTP request that came."""

    url: str
    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    has_session: bool = False


@asynccontextmanager
async def mcp_server(kind: Kind = "http", *, port: int = 0) -> AsyncIterator[McpServer]:
    """Run the server of `mcp_program`: of today's kind, of the old one with sessions, or over SSE."""
    from tests.kit.mcp_program import make_server

    server = make_server()
    app = server.sse_app() if kind == "sse" else server.streamable_http_app()
    async with serving(app, port=port, old=kind == "old http") as running:
        running.url += "/sse" if kind == "sse" else "/mcp"
        yield running


class SseProgram:
    """An MCP server over SSE as a process of its own, which can be killed and stopped.

    The library's server leaves streams of its own unclosed where it is ended with a client: that is not to be found in
    the process that tests us.
    """

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}/sse"
        self._log = folder / "sse.log"
        self._process: ForkedProcess | None = None

    def count(self, method: str) -> int:
        """Return how many requests it has answered, or begun to."""
        return self._log.read_text().count(f'"{method} /')

    @property
    def waiting(self) -> int:
        """How often its tool `wait` has been called."""
        return self._log.read_text().count("it waits")

    async def start(self) -> None:
        """Start, and wait until it listens."""
        with self._log.open("ab") as log:
            command = ["-m", PROGRAM, str(self.port)]
            self._process = fork(command, cwd=ROOT, environ=clean_environ(), output=log, errors=log)
        await eventually(self._listens)

    def kill(self) -> None:
        """Kill it (-9), if it runs."""
        assert self._process is not None
        if self._process.poll() is None:
            self.signal(signal.SIGKILL)
        self._process.wait()

    def signal(self, number: int) -> None:
        assert self._process is not None
        os.kill(self._process.pid, number)

    def _listens(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self._log.read_text()
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


@asynccontextmanager
async def sse_program(folder: Path) -> AsyncIterator[SseProgram]:
    """Run an MCP server over SSE."""
    program = SseProgram(folder)
    await program.start()
    try:
        yield program
    finally:
        program.kill()


@asynccontextmanager
async def serving(app: Any, *, port: int = 0, old: bool = False) -> AsyncIterator[McpServer]:
    """Run an ASGI application; an `old` one does not know what came in 2026."""
    running = McpServer("")

    async def watched(scope: Any, receive: Callable[..., Any], send: Callable[..., Any]) -> None:
        if scope["type"] == "http":
            headers = {name.decode(): value.decode() for name, value in scope["headers"]}
            running.requests.append((scope["method"], headers))
            if old and headers.get("mcp-protocol-version", "").startswith("2026"):
                await _refuse(send)
                return
        await app(scope, receive, send)

    config = uvicorn.Config(watched, host="127.0.0.1", port=port, log_level="error", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    task = asyncio.create_task(server._serve())
    await eventually(lambda: server.started)
    running.url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    try:
        yield running
    finally:
        server.should_exit = True
        await task


async def _refuse(send: Callable[..., Any]) -> None:
    await send({"type": "http.response.start", "status": 404, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": b"unknown"})


@asynccontextmanager
async def mcp_tool(**settings: Any) -> AsyncIterator[McpTool]:
    tool = McpTool(McpSettings(**{"mcp_allowed_hosts": LOOPBACK, **settings}))
    try:
        yield tool
    finally:
        await tool.aclose()


def use_of(url: str | None, *, project: str = "default", **fields: object) -> ToolUse:
    """Return a declaration of a server, as a request has it."""
    declared: JsonObject = {"type": "mcp", "server_label": "tests", "server_url": url, **fields}
    return ToolUse(
        declared=parse_server_tool(declared, "tools[0]"),
        private=private_fields([declared])["tests"],
        project=project,
        response_id="resp_1",
        chain_id="resp_1",
    )


def call_of(use: ToolUse, tool: str, arguments: str = "{}", **fields: Any) -> ToolCall:
    return ToolCall(use=use, name=f"tests.{tool}", tool=tool, arguments=arguments, item_id="mcp_1", **fields)
