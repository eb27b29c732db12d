"""Messages on WebSockets that come in tiny frames, too slowly, or too many at once, under both servers."""

import asyncio
import json
import time
from contextlib import suppress

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.protocol import OPEN
from websockets.server import ServerProtocol

from tests.kit.clients import RAW_UPGRADE, Socket, raw_connection, read_error_frame
from tests.kit.fixtures import measured_server
from tests.kit.heartbeat import tries
from tests.kit.server import Server

MIB = 1024 * 1024
BEGIN, GO_ON, EMPTY, PING = b"\x01\x80aaaa", b"\x00\x80aaaa", b"\x81\x80aaaa", b"\x89\x80aaaa"


# It waits two seconds for a message, and has little room for unfinished ones.
server = measured_server(
    "frames", request_arrival_seconds=2, websocket_max_message_bytes=MIB, websocket_max_unfinished_bytes=MIB
)


MANY = 500_000


def seconds_to_parse(frames: bytes) -> float:
    """Return the CPU time that uvicorn's parser takes for frames, on this machine and now."""
    protocol, before = ServerProtocol(state=OPEN), time.process_time()
    protocol.receive_data(frames)
    protocol.events_received()
    return time.process_time() - before


@pytest.mark.parametrize(
    ("first", "frames"),
    [(BEGIN, GO_ON), (b"", EMPTY), (b"", PING), (BEGIN, PING)],
    ids=["fragments", "messages", "pings", "pings-inside"],
)
@pytest.mark.each_server
def test_tiny_frames_are_refused_and_soon_not_parsed(server: Server, first: bytes, frames: bytes) -> None:
    """100,000 of them took 3 to 15 s of a core, and stopped everybody for half a second at a time."""
    for _ in tries(server):
        before = server.cpu_seconds()
        said = b""
        with raw_connection(server.port, receive_buffer=65536) as raw:
            raw.sendall(RAW_UPGRADE)
            assert raw.recv(1024).startswith(b"HTTP/1.1 101 ")
            with suppress(ConnectionError):  # it is refused before the end
                raw.sendall(first + frames * MANY)
            with suppress(ConnectionError):
                while b"frames_too_small" not in said and (part := raw.recv(65536)):
                    said += part
        assert b"frames_too_small" in said, said[-200:]
        # The parser alone would take so long for all of them.
        assert server.cpu_seconds() - before < 50 * seconds_to_parse(first + frames * (MANY // 50))


@pytest.mark.parametrize("size", [64, 1000, 100_000])
async def test_a_message_in_frames_that_are_large_enough(server: Server, size: int) -> None:
    text = json.dumps({"type": "response.create", "input": "Hello", "instructions": "word " * 30_000, "store": False})
    async with await Socket.open(server.ws_url) as socket:
        await socket.raw.send(text[at : at + size] for at in range(0, len(text), size))
        assert (await socket.answer())[-1]["type"] == "response.completed"


async def test_a_client_may_ping_as_often_as_it_sends(server: Server) -> None:
    async with await Socket.open(server.ws_url) as socket:
        for _ in range(200):
            await (await socket.raw.ping())
        await socket.ask("Hello")


@pytest.mark.each_server
async def test_a_message_that_does_not_come_to_its_end_is_given_up(server: Server) -> None:
    async with await Socket.open(server.ws_url) as socket:
        socket.raw.transport.write(b"\x01\x85aaaabbbbb")
        read_error_frame(await socket.receive(), status=408, code="request_timeout")
        with pytest.raises(ConnectionClosed):
            await socket.raw.recv()


@pytest.mark.each_server
async def test_unfinished_messages_share_a_budget_and_the_largest_gives_way(server: Server) -> None:
    sockets = [await Socket.open(server.ws_url) for _ in range(4)]
    # Together more than the budget. When that is reached the last is the largest, in whatever order they come.
    sizes = [400_000, 450_000, 500_000, 880_000]
    text = json.dumps({"type": "response.create", "input": "Hello", "store": False}).encode()
    for socket, size in zip(sockets, sizes, strict=True):
        head = b"\x81\xff" + (900_000).to_bytes(8, "big") + bytes(4)
        socket.raw.transport.write(head + text + b" " * (size - len(text)))
    error = read_error_frame(await sockets[-1].receive(), status=503, code="server_is_overloaded")
    assert "WEBSOCKET_MAX_UNFINISHED_BYTES" in error
    for socket, size in zip(sockets[:-1], sizes[:-1], strict=True):
        socket.raw.transport.write(b" " * (900_000 - size))
        assert (await socket.answer())[-1]["type"] == "response.completed"
    await asyncio.gather(*(socket.raw.close() for socket in sockets))
