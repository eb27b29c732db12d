"""Servers of MCP's oldest transport (HTTP with SSE): found without being told, by the network's rules, and in time."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from responses_app.tools.base import ToolFailed
from responses_app.tools.mcp import client
from responses_app.tools.mcp.tool import McpTool
from tests.tools.mcp.mcp_program import make_server
from tests.tools.mcp.mcp_servers import McpServer, call_of, mcp_server, mcp_tool, serving, use_of
from tests.waiting import eventually

EVENTS = [(b"content-type", b"text/event-stream")]
Send = Callable[[dict[str, Any]], Awaitable[None]]


@pytest.fixture
async def tool() -> AsyncIterator[McpTool]:
    async with mcp_tool() as tool:
        yield tool


@asynccontextmanager
async def streaming(*events: bytes, status: int = 405, ends: bool = False) -> AsyncIterator[McpServer]:
    """Run a server that answers each POST with a status, and a GET with these events, after which it is silent."""
    over = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Send) -> None:
        if scope["type"] == "lifespan":
            return
        if scope["method"] == "POST":
            await send({"type": "http.response.start", "status": status, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return
        await send({"type": "http.response.start", "status": 200, "headers": EVENTS})
        await send({"type": "http.response.body", "body": b"".join(events), "more_body": True})
        if not ends:
            await over.wait()

    async with serving(app) as server:
        server.url += "/sse"
        try:
            yield server
        finally:
            over.set()


def methods(server: McpServer) -> list[str]:
    return [method for method, _ in server.requests]


async def error_of(tool: McpTool, url: str) -> tuple[object, object]:
    """Return type and code of the error that a list ends with."""
    with pytest.raises(ToolFailed) as failed:
        await tool.list_tools(use_of(url))
    error: Any = failed.value.shown["error"]
    return error["type"], error["code"]


async def test_an_old_server_is_found_without_being_told() -> None:
    async with mcp_server("sse") as server, mcp_tool() as tool:
        use = use_of(server.url)
        assert "add" in {each["name"] for each in await tool.list_tools(use)}
        assert (await tool.call(call_of(use, "add", '{"a": 2, "b": 3}'))).text == "5"
        assert methods(server).count("GET") == 1, "its connection is kept"
        with pytest.raises(ToolFailed) as failed:  # what went wrong at the beginning is not told of what does later
            await tool.call(call_of(use, "refuse"))
        assert failed.value.shown["error"]["type"] == "mcp_protocol_error"  # type: ignore[index]


@pytest.mark.parametrize("status", [401, 403, 429, 500])
async def test_only_a_server_that_knows_no_post_is_an_old_one(tool: McpTool, status: int) -> None:
    async with streaming(b"event: endpoint\ndata: /messages\n\n", status=status) as server:
        assert await error_of(tool, server.url) == ("http_error", status)
        assert "GET" not in methods(server)


@pytest.mark.parametrize("status", [400, 404, 405])
async def test_what_is_no_old_server_keeps_its_error(
    tool: McpTool, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    monkeypatch.setattr(client, "OLD_SECONDS", 0.5)
    async with streaming(status=status) as server:  # silent: it never says where to send
        assert await error_of(tool, server.url) == ("http_error", status)
        assert methods(server)[-1] == "GET"
    async with streaming(b": nothing\n\n", status=status, ends=True) as server:
        assert await error_of(tool, server.url) == ("http_error", status)
    async with streaming(b"event: endpoint\ndata: " + b"x" * (client.MAX_EVENT_BYTES + 1), status=status) as server:
        assert await error_of(tool, server.url) == ("http_error", status)


async def test_it_is_sent_nothing_elsewhere(tool: McpTool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "OLD_SECONDS", 0.5)
    async with streaming(status=202) as other, streaming() as real:
        for elsewhere in (other.url, other.url.replace("http://", "//"), "http://169.254.169.254/messages"):
            event = f"event: endpoint\ndata: {elsewhere}\n\n".encode()
            async with streaming(event) as server:
                assert await error_of(tool, server.url) == ("http_error", 405)
        assert (other.requests, real.requests) == ([], [])


async def test_one_that_hangs_up_is_one_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    server, hung_up = make_server().sse_app(), asyncio.Event()

    async def app(scope: Any, receive: Any, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "GET":
            served = asyncio.ensure_future(server(scope, receive, send))
            await asyncio.wait([served, waiting], return_when=asyncio.FIRST_COMPLETED)
            served.cancel()
            return  # without an end of the body: the connection is cut
        await server(scope, receive, send)

    waiting = asyncio.ensure_future(hung_up.wait())
    async with serving(app) as running, mcp_tool() as tool:
        use = use_of(f"{running.url}/sse")
        await tool.list_tools(use)
        caplog.set_level(logging.DEBUG, logger="respsite.tools")
        before = methods(running).count("POST")
        calling = asyncio.ensure_future(tool.call(call_of(use, "wait")))
        await eventually(lambda: methods(running).count("POST") > before)  # the call is on its way
        hung_up.set()
        with pytest.raises(ToolFailed):
            await calling
    told = [record for record in caplog.records if not record.name.startswith(("uvicorn", "sse_starlette"))]
    assert not [record for record in told if record.exc_info], [record.getMessage() for record in told]
    (line,) = [record.getMessage() for record in told if record.levelno >= logging.INFO and "failed" in record.msg]
    assert line.startswith("the MCP server at 127.0.0.1 failed: ")
