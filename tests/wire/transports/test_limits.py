"""How many connections may be open: in one process, and over two that share a Redis. And one response a connection."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest
from redis.asyncio import Redis
from websockets.exceptions import ConnectionClosed

from tests.kit.clients import Socket, read_error_frame, ready
from tests.kit.redis_server import RedisServer
from tests.kit.scripts import HELLO, gate, release
from tests.kit.server import Server
from tests.kit.waiting import eventually
from tests.wire.transports.conftest import Connect


async def open_connections(server: Server) -> int:
    """Return how many connections a process has."""
    return int((await ready(server))["connections"])


async def idle(server: Server) -> bool:
    """Say whether no connection is open; those of the test before may still be closing."""
    return await open_connections(server) == 0


async def is_admitted(server: Server) -> bool:
    """Say whether a connection is served now."""
    async with await Socket.open(server.ws_url) as socket:
        with suppress(ConnectionClosed):  # refused, and closed before it could ask
            await socket.create("Hello", generate=False, store=False)
            return (await socket.receive())["type"] == "response.created"
    return False


async def assert_refused(server: Server) -> None:
    """Check that the next connection is told and closed."""
    socket = await Socket.open(server.ws_url)
    assert await socket.closed() == 1000
    (frame,) = socket.log
    message = read_error_frame(frame, status=429, code="websocket_connection_limit_reached")
    assert message == "Maximum WebSocket connections reached"
    assert "stream_id" not in frame


async def test_the_limit_of_one_process(strict_server: Server, open_socket: Connect) -> None:
    await eventually(lambda: idle(strict_server))
    sockets = [await open_socket(strict_server) for _ in range(5)]
    await sockets[4].ask("Hello")
    await assert_refused(strict_server)
    await assert_refused(strict_server)
    assert "MAX_WEBSOCKET_CONNECTIONS are open" in strict_server.output
    for socket in sockets:
        await socket.ask("Hello")
    await sockets[0].raw.close()
    await eventually(lambda: is_admitted(strict_server))
    sockets[1].raw.transport.abort()  # gone without a word
    sockets[2].raw.transport.abort()
    await eventually(lambda: _has(strict_server, 2))


async def _has(server: Server, count: int) -> bool:
    return await open_connections(server) == count


async def test_one_response_at_a_time_where_the_operator_wants_it(strict_server: Server, open_socket: Connect) -> None:
    await eventually(lambda: idle(strict_server))
    socket = await open_socket(strict_server)
    parent = await socket.ask("Hello", "lane", store=False)
    await socket.create(gate("f0"), "lane", store=False, previous_response_id=parent["id"])
    await socket.until("response.created", "lane")
    for lane in ("lane", "other"):
        await socket.create("Hello", lane, store=False, previous_response_id=parent["id"])
    while (frame := await socket.next("lane"))["type"] != "error":
        pass
    for refused in (frame, await socket.error("other")):
        message = read_error_frame(refused, status=409, code="concurrent_request")
        assert "WEBSOCKET_BUSY" in message
    release(strict_server, "f0")
    assert (await socket.answer("lane"))[-1]["type"] == "response.completed"
    await socket.ask("Hello", "lane")
    other = await open_socket(strict_server)
    await asyncio.gather(socket.ask("Hello"), other.ask("Hello"))


@dataclass
class Pair:
    """Two daphne processes that share a Redis, four connections between them."""

    redis: RedisServer
    one: Server
    two: Server


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Started once for the tests below; each leaves both running and nothing open."""
    with RedisServer() as redis:
        settings: Any = {"script": [{"say": HELLO}], "redis_url": redis.url, "max_websocket_connections": 4}
        one, two = (Server(tmp_path_factory.mktemp(name), **settings) for name in ("one", "two"))
        with one, two:
            yield Pair(redis, one, two)


async def open_four(pair: Pair, open_socket: Connect) -> list[Socket]:
    """Open all the connections there may be, two on each, as soon as those of the test before are gone."""
    await eventually(lambda: idle(pair.one))
    await eventually(lambda: idle(pair.two))
    await eventually(lambda: _nobody_holds_a_slot(pair))  # a worker tells Redis a moment later
    return [await open_socket(server) for server in (pair.one, pair.one, pair.two, pair.two)]


async def _nobody_holds_a_slot(pair: Pair) -> bool:
    async with Redis.from_url(pair.redis.url) as redis:
        return not [key async for key in redis.scan_iter("*:connections")]


async def test_the_limit_holds_over_two_processes(pair: Pair, open_socket: Connect) -> None:
    sockets = await open_four(pair, open_socket)
    await assert_refused(pair.one)
    await assert_refused(pair.two)
    for socket in sockets:
        await socket.ask("Hello")
    await sockets[0].raw.close()
    await eventually(lambda: is_admitted(pair.two))  # a slot of the one is free for the other


async def test_redis_away_for_5_seconds_kills_no_connection(pair: Pair, open_socket: Connect) -> None:
    sockets = await open_four(pair, open_socket)
    pair.redis.stop()
    try:
        gone = time.monotonic()
        while time.monotonic() - gone < 5:
            for socket in sockets:
                await socket.ask("Hello")
            await asyncio.sleep(0.05)  # the load is not a part of this
        for server in (pair.one, pair.two):
            said = await ready(server)
            assert said["status"] == "ready"
            assert said["redis"] != "ok"
            assert "Redis" in said["redis"]
        assert await is_admitted(pair.one)  # fails open, with each process's own limit
    finally:
        pair.redis.start()
    for server in (pair.one, pair.two):
        await eventually(lambda server=server: _redis_is_back(server))  # type: ignore[misc]
    await assert_refused(pair.one)
    for socket in sockets:
        await socket.ask("Hello")


async def _redis_is_back(server: Server) -> bool:
    return bool((await ready(server))["redis"] == "ok")
