"""Bodies in tiny chunks: refused soon, and nobody else waits meanwhile, under both servers."""

import asyncio
import json
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import h11
import httpx
import pytest

from responses_app.web.servers.inflow import AVERAGE_BYTES
from tests.kit.clients import raw_connection, read_error
from tests.kit.fixtures import measured_server
from tests.kit.heartbeat import tries
from tests.kit.server import Server

HEAD = "POST /v1/responses HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"
JSON_HEAD = f"{HEAD}Content-Type: application/json\r\n\r\n".encode()
TINY = b"1\r\n \r\n" * 10_000
ATTACKERS = 16
TIMES = 100  # that TINY is sent: a million chunks
NOTICEABLE = 0.5  # seconds; where everybody waited for the floods it was 3 to 5


server = measured_server("pieces")


def in_chunks(body: bytes, size: int) -> bytes:
    """Return a body in chunks of a size."""
    parts = [body[at : at + size] for at in range(0, len(body), size)]
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


def post(server: Server, head: bytes, body: bytes) -> tuple[int, bytes]:
    """Send a request, as much of it as the server takes; return the status and body of the first answer."""
    said = b""
    with raw_connection(server.port, receive_buffer=65536) as raw:
        raw.settimeout(20)
        with suppress(ConnectionError):  # it is refused before its end
            raw.sendall(head + body)
        with suppress(ConnectionResetError):
            while b"}" not in said[-2:] and (part := raw.recv(65536)):
                said += part
    top, _, content = said.partition(b"\r\n\r\n")
    return int(top.split()[1]), content


def seconds_to_parse(data: bytes) -> float:
    """Return the CPU time that uvicorn's parser takes for a part of a body, on this machine and now."""
    connection, before = h11.Connection(h11.SERVER), time.process_time()
    connection.receive_data(JSON_HEAD + data)
    while connection.next_event() is not h11.NEED_DATA:
        pass
    return time.process_time() - before


@pytest.mark.each_server
def test_a_body_in_tiny_chunks_is_refused_and_soon_not_parsed(server: Server) -> None:
    """One of a million chunks took 8 s of a core, and stopped everybody for half a second at a time."""
    for _ in tries(server):
        before = server.cpu_seconds()
        status, body = post(server, JSON_HEAD, TINY * TIMES)
        message = read_error(json.loads(body)["error"], status=status, code="chunks_too_small")
        assert status == 400
        assert str(AVERAGE_BYTES) in message
        assert server.cpu_seconds() - before < TIMES / 5 * seconds_to_parse(TINY)


@pytest.mark.each_server
def test_what_follows_a_refusal_is_not_parsed(server: Server) -> None:
    head, large = f"{HEAD}Content-Type: text/plain\r\n\r\n".encode(), b"50000\r\n%b\r\n" % bytes(0x50000)
    before = server.cpu_seconds()
    status, _ = post(server, head, large + TINY * TIMES)
    assert status == 415
    assert server.cpu_seconds() - before < TIMES / 5 * seconds_to_parse(TINY)


@pytest.mark.parametrize("size", [AVERAGE_BYTES, 1000, 100_000])
def test_chunks_that_are_large_enough_on_average(server: Server, size: int) -> None:
    text = "a line\r\n" * 20_000  # ends of lines are none of chunks
    status, body = post(
        server,
        JSON_HEAD,
        in_chunks(
            json.dumps({"input": "Hello", "user": "x", "metadata": {"a": "b"}, "instructions": text}).encode(), size
        ),
    )
    assert status == 200, body


def test_a_short_body_may_come_in_chunks_of_one_byte(server: Server) -> None:
    status, body = post(server, JSON_HEAD, in_chunks(b'{"input": "Hello", "store": false}' + b" " * 600, 1))
    assert status == 200, body


@pytest.mark.each_server
def test_requests_behind_one_another_come_through_in_order(server: Server) -> None:
    """Parsed in turns, no byte of a body goes to another request."""
    count = 12
    with raw_connection(server.port, receive_buffer=65536) as raw:
        raw.sendall(b"".join(JSON_HEAD + in_chunks(b'{"input": "%d"}' % n + b" " * 200, 1) for n in range(count)))
        said = b""
        while said.count(b"HTTP/1.1 200 ") < count:
            part = raw.recv(65536)
            assert part, said[-500:]
            said += part


async def flood(port: int) -> None:
    """Send tiny chunks for ever, over one connection after the other, and read no answer."""
    while True:
        with suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(JSON_HEAD)
                while True:
                    writer.write(TINY)
                    await writer.drain()
                    await asyncio.sleep(0)
            finally:
                writer.transport.abort()


@asynccontextmanager
async def flooded(server: Server) -> AsyncIterator[None]:
    """Flood a server from many connections."""
    floods = [asyncio.create_task(flood(server.port)) for _ in range(ATTACKERS)]
    try:
        yield
    finally:
        for each in floods:
            each.cancel()
        await asyncio.gather(*floods, return_exceptions=True)


async def test_nobody_waits_for_those_who_send_tiny_chunks(server: Server) -> None:
    async with httpx.AsyncClient(base_url=server.base_url, timeout=60, verify=False) as http:

        async def median() -> float:
            seconds = []
            for _ in range(15):
                began = time.perf_counter()
                assert (await http.get("/models")).status_code == 200
                seconds.append(time.perf_counter() - began)
            return statistics.median(seconds)

        own = await median()
        async with flooded(server):
            beside = await median()
    print(f"{server.kind}: {1000 * own:.1f} ms, beside {ATTACKERS} floods {1000 * beside:.1f} ms")
    assert beside < max(3 * own, NOTICEABLE)
