"""What outlives a server: kill -9 under load loses nothing that a client saw completed; and how it stops."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed

from tests.kit.clients import Frame, Socket, http_client, server_sent
from tests.kit.scripts import WEATHER, as_history, journal, main_script
from tests.kit.server import Server
from tests.kit.waiting import eventually

STOP_SECONDS = 20.0  # what hung would be waited for much longer
ENOUGH = 120  # responses that clients saw completed before the kill


def new_server(folder: Path, kind: str) -> Server:
    """Return a server of its own, not started."""
    return Server(folder, kind=kind, script=main_script(folder), journal=True)


def next_turn(parent: Frame | None, turn: int) -> dict[str, Any]:
    """Return what to ask after `parent`: a question, or what its call returned."""
    if parent is None:
        return {"input": f"Hello {turn}", "tools": [WEATHER]}
    known = {"previous_response_id": parent["id"], "tools": [WEATHER]}
    calls = [item for item in parent["output"] if item["type"] == "function_call"]
    if calls:
        output = {"type": "function_call_output", "call_id": calls[0]["call_id"], "output": "sunny"}
        return {"input": [output], **known}
    return {"input": f"[weather] {turn}" if turn % 3 == 0 else f"Hello {turn}", **known}


async def talk_over_websocket(server: Server, seen: list[Frame]) -> None:
    """Hold a conversation until the server is gone, on two lanes; note what was seen completed."""
    async with await Socket.open(server.ws_url) as socket:
        with suppress(ConnectionClosed):
            parents: dict[str, Frame | None] = {"a": None, "b": None}
            for turn in range(10_000):
                for lane in parents:
                    await socket.send({"type": "response.create", "stream_id": lane, **next_turn(parents[lane], turn)})
                for lane in parents:
                    last = (await socket.answer(lane))[-1]
                    assert last["type"] == "response.completed", last
                    parents[lane] = last["response"]
                    seen.append(last["response"])


async def talk_over_http(server: Server, seen: list[Frame], *, stream: bool) -> None:
    """The same over HTTP."""
    parent: Frame | None = None
    async with http_client(server) as http:
        with suppress(httpx.TransportError):
            for turn in range(10_000):
                body = {**next_turn(parent, turn), "stream": stream}
                if not stream:
                    parent = (await http.post("/responses", json=body)).json()
                else:
                    async with http.stream("POST", "/responses", json=body) as answer:
                        async for name, data in server_sent(answer):
                            if name == "response.completed" and isinstance(data, dict):
                                parent = data["response"]
                assert parent is not None
                assert parent["status"] == "completed", parent
                seen.append(parent)


@pytest.mark.each_database
async def test_kill_under_load_loses_nothing_that_was_seen_completed(kind: str, folder: Path) -> None:
    with new_server(folder, kind) as server:
        seen: list[Frame] = []
        talks = [asyncio.create_task(talk_over_websocket(server, seen)) for _ in range(4)]
        talks += [asyncio.create_task(talk_over_http(server, seen, stream=bool(n % 2))) for n in range(4)]
        await eventually(lambda: len(seen) >= ENOUGH or any(talk.done() for talk in talks))
        server.kill()
        await asyncio.gather(*talks)
        assert len(seen) >= ENOUGH
        server.start()
        await asyncio.gather(*(check_continues(server, parent) for parent in _batches(seen)))
        await assert_ends(server, signal.SIGINT)


def _batches(seen: list[Frame], size: int = 25) -> list[list[Frame]]:
    return [seen[begin : begin + size] for begin in range(0, len(seen), size)]


async def check_continues(server: Server, parents: list[Frame]) -> None:
    """Check that responses can be continued, with exactly the tokens that they were asked and answered with."""
    async with http_client(server) as http:
        children = [(await http.post("/responses", json=next_turn(parent, 1))).json() for parent in parents]
    entries = {entry["request_id"].rpartition("-")[0]: entry for entry in journal(server)}
    for parent, child in zip(parents, children, strict=True):
        assert child.get("status") == "completed", child
        assert child["previous_response_id"] == parent["id"]
        history = as_history(entries[parent["id"]])
        assert entries[child["id"]]["prompt_tokens"][: len(history)] == history


@asynccontextmanager
async def running_streams(server: Server) -> AsyncIterator[None]:
    """Hold a WebSocket with two responses running, an idle one, a stream, and a request for JSON."""
    async with AsyncExitStack() as stack:
        socket = await stack.enter_async_context(await Socket.open(server.ws_url))
        for lane in ("a", "b"):
            await socket.create("[hang]", lane)
            await socket.until("response.output_text.delta", lane)
        await stack.enter_async_context(await Socket.open(server.ws_url))
        http = await stack.enter_async_context(http_client(server))
        json = asyncio.create_task(http.post("/responses", json={"input": "[hang]"}))
        streamed = http.stream("POST", "/responses", json={"input": "[hang]", "stream": True})
        events = server_sent(await stack.enter_async_context(streamed))
        await anext(events)
        yield
        with suppress(httpx.TransportError):
            await json


async def assert_ends(server: Server, with_signal: int) -> None:
    """Check that a signal ends the server soon and without noise, whatever runs."""
    async with running_streams(server):
        begin = time.monotonic()
        status = await asyncio.to_thread(server.stop, with_signal)
        took = time.monotonic() - begin
    assert took < STOP_SECONDS, f"{took:.2f} s\n{server.output[-3000:]}"
    assert status in (0, -with_signal, 128 + with_signal), status
    for noise in ("Traceback", " ERROR ", "was never", "Task was destroyed", "Unhandled"):
        assert noise not in server.output, server.output[-3000:]


async def test_sigterm_ends_the_server_at_once(kind: str, folder: Path) -> None:
    with new_server(folder, kind) as server:
        await assert_ends(server, signal.SIGTERM)
