"""Clients that go away, and clients that wait in silence."""

import asyncio
import json
import socket as sockets
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

from responses_app.protocol.events.events import EventType
from tests.kit.clients import (
    RAW_UPGRADE,
    Frame,
    Socket,
    http_client,
    raw_connection,
    raw_frame,
    raw_request,
    ready,
    server_sent,
)
from tests.kit.scripts import aborted_prompts, generations, was_aborted
from tests.kit.server import Server
from tests.kit.waiting import eventually
from tests.wire.transports.conftest import Connect

PING_EVENTS = {"Respsite-Dialect": "ping-events"}
LINGER_NOT = struct.pack("ii", 1, 0)  # close with a reset


async def cancelled(server: Server, response_id: str, transport: str) -> None:
    """Wait until a response was aborted in the engine and logged as cancelled."""
    await eventually(lambda: was_aborted(server, response_id))
    await eventually(lambda: f"response {response_id} {transport} cancelled" in server.output)
    line = next(line for line in server.output.splitlines() if f"response {response_id}" in line)
    assert line.endswith("(its client disconnected)")


@pytest.mark.parametrize("how", ["close", "end", "reset"])
@pytest.mark.each_server
async def test_a_websocket_that_goes_away(server: Server, open_socket: Connect, how: str) -> None:
    other = await open_socket(server)
    await other.create("[hang]")
    going_on = (await other.until("response.output_text.delta"))[0]["response"]["id"]
    socket = await open_socket(server)
    ids = []
    for lane in ("a", "b"):
        await socket.create("[hang]", lane)
        ids.append((await socket.until("response.output_text.delta", lane))[0]["response"]["id"])
    await socket.create("Waits", "a")
    if how == "reset":
        raw = socket.raw.transport.get_extra_info("socket")
        raw.setsockopt(sockets.SOL_SOCKET, sockets.SO_LINGER, LINGER_NOT)
    if how == "close":
        await socket.raw.close()
    else:
        socket.raw.transport.abort()  # as Codex does: no close frame
    for response_id in ids:
        await cancelled(server, response_id, "websocket")
    assert generations(server, going_on) == []
    await other.create("And?", "lane", previous_response_id=ids[0])
    assert (await other.error("lane"))["error"]["code"] == "previous_response_not_found"


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.each_server
async def test_a_stream_that_goes_away(server: Server, reset: bool) -> None:
    with raw_connection(server.port) as raw:
        raw.sendall(raw_request({"input": "[hang]", "stream": True}))
        seen = b""
        while b"response.output_text.delta" not in seen:
            seen += await asyncio.to_thread(raw.recv, 4096)
        if reset:
            raw.setsockopt(sockets.SOL_SOCKET, sockets.SO_LINGER, LINGER_NOT)
    response_id = seen[seen.index(b"resp_") :][:37].decode()
    await cancelled(server, response_id, "sse")


async def test_a_stream_that_goes_away_before_it_says_anything(server: Server, http: httpx.AsyncClient) -> None:
    async with http.stream("POST", "/responses", json={"input": "[silence]", "stream": True}) as answer:
        async for _, frame in server_sent(answer):
            assert isinstance(frame, dict)
            response_id = frame["response"]["id"]
            break
    await cancelled(server, response_id, "sse")


@pytest.mark.parametrize("reset", [False, True])
async def test_a_request_for_json_that_goes_away(server: Server, reset: bool) -> None:
    marker = f"json {reset}"
    with raw_connection(server.port) as raw:
        raw.sendall(raw_request({"input": f"[hang] {marker}"}))
        await eventually(lambda: _in_flight(server))
        if reset:
            raw.setsockopt(sockets.SOL_SOCKET, sockets.SO_LINGER, LINGER_NOT)
    await eventually(lambda: any(marker in prompt for prompt in aborted_prompts(server)))
    await eventually(lambda: " json cancelled " in server.output)


async def _in_flight(server: Server) -> bool:
    return bool((await ready(server))["responses_in_flight"])


async def test_a_websocket_that_never_says_anything_is_not_a_burden(server: Server, socket: Socket) -> None:
    with raw_connection(server.port) as silent, raw_connection(server.port) as cut:
        silent.sendall(RAW_UPGRADE)
        cut.sendall(RAW_UPGRADE + raw_frame({"type": "response.create"})[:-3])  # half a frame
        await socket.ask("Hello")
    await socket.ask("Hello")


def check_pings(frames: list[Frame], lane: str | None = None) -> int:
    """Check the heartbeats in one response's frames; return how many there are."""
    last = -1
    pings = 0
    for frame in frames:
        if frame["type"] == "response.ping":
            pings += 1
            named = {} if lane is None else {"stream_id": lane}
            assert isinstance(frame.pop("timestamp"), float)
            assert frame == {"type": "response.ping", "sequence_number": last, "response": {}, **named}
        else:
            last = frame["sequence_number"]
    assert frames[0]["type"] == "response.created"
    assert frames[-1]["type"] == "response.completed"
    return pings


@asynccontextmanager
async def streamed(server: Server, text: str, **headers: str) -> AsyncIterator[httpx.Response]:
    """Begin a stream; leaving this goes away."""
    body = {"input": text, "stream": True}
    async with http_client(server) as http, http.stream("POST", "/responses", json=body, headers=headers) as answer:
        yield answer


@pytest.mark.each_server
async def test_a_silent_websocket_is_pinged(strict_server: Server, open_socket: Connect) -> None:
    """As the protocol has it: no client sees any of it."""
    socket = await open_socket(strict_server)
    await socket.ask("Hello", "another")  # a lane that has ended is silent for good
    await socket.ask("[pauses]")
    assert socket.raw.pings >= 2
    await socket.create("[silence]")
    so_far = socket.raw.pings
    await eventually(lambda: socket.raw.pings >= so_far + 3)
    await socket.until("response.in_progress")
    types = {frame["type"] for frame in socket.log}
    assert types <= {kind.value for kind in EventType}


@pytest.mark.parametrize("lane", [None, "lane"])
async def test_a_websocket_may_ask_for_events_as_heartbeats(
    strict_server: Server, open_socket: Connect, lane: str | None
) -> None:
    socket = await open_socket(strict_server, additional_headers=PING_EVENTS)
    await socket.ask("Hello", "another")
    before = len(socket.log)
    await socket.ask("[pauses]", lane)
    assert check_pings(socket.log[before:], lane) >= 2
    await socket.ask("Hello", lane)
    assert {frame.get("stream_id") for frame in socket.frames("response.ping")} == {lane}
    assert socket.raw.pings == 0


async def test_a_stream_may_ask_for_events_as_heartbeats(strict_server: Server) -> None:
    async with streamed(strict_server, "[pauses]", **PING_EVENTS) as answer:
        events = [event async for event in server_sent(answer)]
    assert check_pings([data for _, data in events if isinstance(data, dict)]) >= 2
    assert all(name == data["type"] for name, data in events if isinstance(data, dict))


async def test_a_silent_stream_that_beats_is_aborted_as_well(strict_server: Server) -> None:
    response_id = ""
    async with streamed(strict_server, "[silence]") as answer:
        async for line in answer.aiter_lines():
            if line.startswith("data: "):
                response_id = json.loads(line.removeprefix("data: "))["response"]["id"]
            elif line == ": ping":
                break
    await cancelled(strict_server, response_id, "sse")
