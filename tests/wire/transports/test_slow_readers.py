"""Clients that never read: they cost little memory, are dropped with a line in the log, and nobody else notices."""

import asyncio
import re
import socket as sockets
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from tests.kit.clients import RAW_UPGRADE, Socket, raw_connection, raw_frame, raw_request
from tests.kit.scripts import was_aborted
from tests.kit.server import Server
from tests.kit.waiting import eventually
from tests.wire.transports.conftest import Connect
from tests.wire.transports.test_limits import idle

GROWTH = 16 * 1024 * 1024  # bytes that a reader who never reads may cost


@contextmanager
def reader_that_stops(server: Server, transport: str) -> Iterator[tuple[sockets.socket, str]]:
    """Ask for a flood, read no further than the response's id, and yield that."""
    with raw_connection(server.port) as raw:
        if transport == "websocket":
            raw.sendall(RAW_UPGRADE)
            seen = raw.recv(1024)
            raw.sendall(raw_frame({"type": "response.create", "input": "[flood]"}))
        else:
            raw.sendall(raw_request({"input": "[flood]", "stream": True}))
            seen = b""
        while (found := re.search(rb"resp_[0-9a-f]{32}", seen)) is None:
            part = raw.recv(1024)
            assert part, seen
            seen += part
        yield raw, found[0].decode()


def is_cut(raw: sockets.socket) -> bool:
    """Say whether the server has cut a connection: the kernel knows, whatever lies unread before it."""
    state = raw.getsockopt(sockets.IPPROTO_TCP, sockets.TCP_INFO, 1)[0]
    return state != TCP_ESTABLISHED


TCP_ESTABLISHED = 1


def read_rest(raw: sockets.socket) -> bytes:
    """Read a stream that the server has ended, cleanly or not."""
    rest = b""
    with suppress(ConnectionError):
        while not rest.endswith(b"0\r\n\r\n") and (part := raw.recv(65536)):
            rest += part
    return rest


async def drop_a_reader(server: Server, other: Socket, transport: str) -> int:
    """Flood a reader that stops until it is dropped, and return the most memory the server held meanwhile, in bytes.

    Another connection goes on all the time.
    """
    highest = 0
    with reader_that_stops(server, transport) as (raw, response_id):
        while not was_aborted(server, response_id):
            async with asyncio.timeout(10):
                await other.ask("Hello", store=False)
            highest = max(highest, server.memory_bytes())
        await eventually(
            lambda: f"response {response_id}: a reader fell more than STREAM_MAX_LAG_BYTES behind" in server.output
        )
        await eventually(lambda: f"response {response_id} {transport} cancelled" in server.output)
        if transport == "websocket":
            await eventually(lambda: is_cut(raw))
        else:
            rest = await asyncio.to_thread(read_rest, raw)
            assert b"[DONE]" not in rest
            assert b"response.completed" not in rest
        return max(highest, server.memory_bytes())


@pytest.mark.parametrize("transport", ["websocket", "sse"])
@pytest.mark.each_server
async def test_a_reader_that_never_reads_is_dropped(
    strict_server: Server, open_socket: Connect, transport: str
) -> None:
    server = strict_server
    await eventually(lambda: idle(server))
    other = await open_socket(server)
    if "STREAM_MAX_LAG_BYTES behind" not in server.output:  # what a first flood needs is used again by the others
        await drop_a_reader(server, other, "websocket")
    before = server.memory_bytes()
    growth = await drop_a_reader(server, other, transport) - before
    assert growth < GROWTH, f"{growth / 1024 / 1024:.1f} MiB"
    await other.ask("Hello")
    await other.raw.close()
    await eventually(lambda: idle(server))
    assert "Traceback" not in server.output


@pytest.mark.parametrize("pause", [0.0, 0.02], ids=["all at once", "one by one"])
@pytest.mark.each_server
async def test_a_client_that_reads_no_errors_is_dropped(strict_server: Server, pause: float) -> None:
    """It is not read from either, so its answers cannot pile up; then it takes no byte for too long.

    One by one: then nothing waits to be answered behind the answer that fills the buffers.
    """
    server = strict_server
    await eventually(lambda: idle(server))
    before = server.output.count("(STREAM_STALL_SECONDS) and was dropped")
    echoed = raw_frame({"type": "response.steer", "input": "x" * 200_000})
    with raw_connection(server.port) as raw:
        raw.sendall(RAW_UPGRADE)
        raw.recv(1024)
        with suppress(OSError):
            for _ in range(100):
                await asyncio.to_thread(raw.sendall, echoed)
                await asyncio.sleep(pause)
        await eventually(lambda: server.output.count("(STREAM_STALL_SECONDS) and was dropped") > before)
        await eventually(lambda: is_cut(raw))
    await eventually(lambda: idle(server))
