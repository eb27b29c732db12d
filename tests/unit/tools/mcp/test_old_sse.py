"""Servers of MCP's oldest transport (HTTP with SSE): found without being told, by the network's rules, and in time."""

import asyncio
import json
import logging
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from responses_app.tools.base import ToolFailed, ToolUse
from responses_app.tools.mcp import client, connections
from responses_app.tools.mcp.tool import McpTool
from tests.kit.mcp_servers import McpServer, SseProgram, call_of, mcp_tool, serving, sse_program, use_of
from tests.kit.waiting import eventually

EVENTS = [(b"content-type", b"text/event-stream")]
ENDPOINT = b"event: endpoint\ndata: /messages\n\n"
ADD = ("add", '{"a": 2, "b": 3}')
Send = Callable[[dict[str, Any]], Awaitable[None]]


@pytest.fixture
async def program(tmp_path: Path) -> AsyncIterator[SseProgram]:
    async with sse_program(tmp_path) as program:
        yield program


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


async def test_an_old_server_is_found_without_being_told(program: SseProgram) -> None:
    async with mcp_tool() as tool:
        use = use_of(program.url)
        assert "add" in {each["name"] for each in (await tool.list_tools(use)).tools}
        assert (await tool.call(call_of(use, *ADD))).text == "5"
        assert program.count("GET") == 1, "its connection is kept"
        with pytest.raises(ToolFailed) as failed:  # what went wrong at the beginning is not told of what does later
            await tool.call(call_of(use, "refuse"))
        assert failed.value.shown["error"]["type"] == "mcp_protocol_error"  # type: ignore[index]


@pytest.mark.parametrize("status", [401, 403, 429, 500])
async def test_only_a_server_that_knows_no_post_is_an_old_one(tool: McpTool, status: int) -> None:
    async with streaming(b"event: endpoint\ndata: /messages\n\n", status=status) as server:
        assert await error_of(tool, server.url) == ("http_error", status)
        assert "GET" not in methods(server)


@pytest.mark.parametrize("status", [400, 404, 405])
async def test_what_is_no_old_one_keeps_its_error(tool: McpTool, monkeypatch: pytest.MonkeyPatch, status: int) -> None:
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


@pytest.mark.parametrize("told", [True, False])
async def test_one_that_takes_no_call_is_left(program: SseProgram, monkeypatch: pytest.MonkeyPatch, told: bool) -> None:
    """Its stream lives, and what is sent is refused, or not answered: a call would wait for nothing."""
    monkeypatch.setattr(client, "POST_SECONDS", 0.5)
    goes_on, refuses = asyncio.Event(), False

    async def app(scope: Any, receive: Any, send: Send) -> None:
        if scope["type"] == "lifespan":
            return
        if scope["method"] == "GET":
            await send({"type": "http.response.start", "status": 200, "headers": EVENTS})
            await send({"type": "http.response.body", "body": ENDPOINT, "more_body": True})
            while True:
                body = await answers.get()
                await send({"type": "http.response.body", "body": body, "more_body": body != b""})
        if scope["path"] == "/sse":
            status = 405
        elif refuses:
            if not told:
                await goes_on.wait()
            status = 500
        else:
            asked = json.loads((await receive())["body"])
            status = 202
            if "id" in asked:
                answers.put_nowait(answer_to(asked))
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    answers: asyncio.Queue[bytes] = asyncio.Queue()
    async with serving(app) as running, mcp_tool() as tool:
        use = use_of(f"{running.url}/sse")
        assert (await tool.list_tools(use)).tools == []
        refuses = True
        with pytest.raises(ToolFailed) as failed:
            async with asyncio.timeout(60):
                await tool.call(call_of(use, *ADD))
        assert failed.value.shown["error"]["code"] == (500 if told else -32000)  # type: ignore[index]
        goes_on.set()
        answers.put_nowait(b"")


def answer_to(asked: dict[str, Any]) -> bytes:
    """Return the event with which a server of the old time answers a request; it has no tools."""
    answer: dict[str, Any] = {"jsonrpc": "2.0", "id": asked["id"]}
    if asked["method"] == "initialize":
        info = {"name": "old", "version": "1"}
        answer["result"] = {"protocolVersion": "2024-11-05", "capabilities": {"tools": {}}, "serverInfo": info}
    elif asked["method"] == "tools/list":
        answer["result"] = {"tools": []}
    else:
        answer["error"] = {"code": -32601, "message": "Method not found"}
    return b"event: message\ndata: " + json.dumps(answer).encode() + b"\n\n"


@pytest.mark.parametrize("when", ["idle", "in a call", "in a list"])
async def test_one_that_is_killed_is_one_line_in_the_log_and_the_next_call_finds_it_again(
    program: SseProgram, caplog: pytest.LogCaptureFixture, when: str
) -> None:
    caplog.set_level(logging.DEBUG, logger="respsite.tools")
    async with mcp_tool() as tool:
        use = use_of(program.url)
        await tool.call(call_of(use, *ADD))
        if when != "idle":
            if when == "in a list":
                program.signal(signal.SIGSTOP)
            working = asyncio.ensure_future(_work(tool, use, when))
            if when == "in a call":
                await eventually(lambda: program.waiting == 1)
            program.kill()
            with pytest.raises(ToolFailed):
                async with asyncio.timeout(60):
                    await working
        else:
            program.kill()
            (connection,) = tool._connections._kept.values()
            await eventually(lambda: connection.has_ended)
        await program.start()
        assert (await tool.call(call_of(use, *ADD))).text == "5"
    told = [record for record in caplog.records if record.name != "asyncio"]
    assert not [record for record in told if record.exc_info], [record.getMessage() for record in told]
    lines = [record.getMessage() for record in told if record.levelno >= logging.INFO and "failed" in record.msg]
    assert len(lines) == (when != "idle")
    assert all(line.startswith("the MCP server at 127.0.0.1 failed: ") for line in lines)


async def _work(tool: McpTool, use: ToolUse, when: str) -> None:
    if when == "in a list":
        await tool.list_tools(use)
    else:
        await tool.call(call_of(use, "wait"))


async def test_closing_waits_for_no_server_that_has_not_answered_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "CLOSE_SECONDS", 1e9)  # for one that must take its leave
    with socket.create_server(("127.0.0.1", 0)) as silent:
        async with mcp_tool() as tool:
            url = f"http://127.0.0.1:{silent.getsockname()[1]}/sse"
            listing = asyncio.ensure_future(tool.list_tools(use_of(url)))
            await eventually(lambda: bool(tool._connections._kept))
        with pytest.raises(ToolFailed):
            async with asyncio.timeout(60):
                await listing
