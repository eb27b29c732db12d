"""The connection limit in Redis when a worker or Redis itself fails: real processes, killed, stalled and stopped."""

import asyncio
import logging
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from redis.asyncio import Redis

from responses_app.limits.rates import ConnectionLimit
from tests.contracts.adapters.connection_limits import OpenLimit, OwnRedisCase, RedisCase, counts, counts_are
from tests.contracts.connection_limit import fill, total
from tests.kit.redis_server import RedisServer
from tests.kit.waiting import eventually

# Short times, so that a lease ends within a test, but longer than a stall of the test machine, which would end it too.
SHORT_LEASE = 5.0
SHORT_HEARTBEAT = 0.5


@asynccontextmanager
async def worker(
    server: RedisServer, prefix: str, *, limit: int, count: int
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run another process that holds `count` slots on a short lease."""
    words = (server.url, prefix, limit, count, SHORT_LEASE, SHORT_HEARTBEAT)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.contracts.adapters.connection_worker", *map(str, words)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        assert await process.stdout.readline() == b"holding %d\n" % count
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


class TestCrash(RedisCase):
    """Real processes, killed and stalled."""

    async def test_a_killed_worker_frees_its_slots(
        self, server: RedisServer, prefix: str, open_limit: OpenLimit
    ) -> None:
        survivor = await open_limit(10)
        async with worker(server, prefix, limit=10, count=8) as doomed:
            await fill(survivor, 2)
            assert not await survivor.acquire()
            doomed.kill()
            await doomed.wait()
            await eventually(lambda: total_is(survivor, 2))
            await fill(survivor, 8)

    async def test_a_stalled_worker_keeps_its_connections(
        self, server: RedisServer, prefix: str, open_limit: OpenLimit
    ) -> None:
        survivor = await open_limit(10)
        async with worker(server, prefix, limit=10, count=8) as stalled:
            stalled.send_signal(signal.SIGSTOP)
            await eventually(lambda: total_is(survivor, 0))
            await fill(survivor, 10)
            stalled.send_signal(signal.SIGCONT)
            await eventually(lambda: total_is(survivor, 18))
            for _ in range(8):
                assert not await survivor.acquire()
                survivor.release()
            assert not await survivor.acquire()
            survivor.release()
            assert await survivor.acquire()

    async def test_a_worker_that_ends_gives_back_at_once(self, server: RedisServer, client: Redis, prefix: str) -> None:
        async with worker(server, prefix, limit=10, count=8) as ending:
            assert await counts(client, prefix) == [8]
            await ending.communicate(b"")  # ends its stdin
            assert ending.returncode == 0
            assert await counts(client, prefix) == []


class TestOutage(OwnRedisCase):
    """Redis gone, stalled and back."""

    async def test_without_redis_each_worker_counts_alone(
        self,
        server: RedisServer,
        client: Redis,
        prefix: str,
        open_limit: OpenLimit,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        caplog.set_level(logging.INFO, logger="respsite.limits")
        one = await open_limit(3, heartbeat_seconds=0.1)
        two = await open_limit(3, heartbeat_seconds=0.1)
        await fill(one, 2)
        await fill(two, 1)
        server.stop()
        await eventually(lambda: one.degraded is not None and two.degraded is not None)
        assert [await one.acquire() for _ in range(2)] == [True, False]
        assert [await two.acquire() for _ in range(3)] == [True, True, False]
        assert "each worker allows 3 connections of its own" in (one.degraded or "")
        assert "127.0.0.1" not in (one.degraded or "")
        assert await total(one) == 3
        two.release()
        server.start()
        await eventually(lambda: one.degraded is None and two.degraded is None)
        await eventually(lambda: counts_are(client, prefix, [2, 3]))
        assert not await one.acquire()
        levels = [record.levelname for record in caplog.records if record.name == "respsite.limits"]
        assert levels == ["WARNING", "WARNING", "INFO", "INFO"]

    async def test_the_request_that_finds_redis_gone_is_granted(
        self, server: RedisServer, open_limit: OpenLimit
    ) -> None:
        limit = await open_limit(2)
        server.kill()
        assert [await limit.acquire() for _ in range(3)] == [True, True, False]
        assert limit.degraded is not None

    async def test_starts_without_redis(
        self, server: RedisServer, client: Redis, prefix: str, open_limit: OpenLimit
    ) -> None:
        server.stop()
        limit = await open_limit(2, heartbeat_seconds=0.1)
        assert limit.degraded is not None
        await fill(limit, 2)
        server.start()
        await eventually(lambda: counts_are(client, prefix, [2]))
        await eventually(lambda: limit.degraded is None)

    async def test_a_stalled_redis_delays_only_the_first(
        self, server: RedisServer, client: Redis, prefix: str, open_limit: OpenLimit
    ) -> None:
        limit = await open_limit(9, heartbeat_seconds=0.1, timeout_seconds=1.0)
        await fill(limit, 1)
        server.pause()
        assert await limit.acquire()
        assert "TimeoutError" in (limit.degraded or "")
        loop = asyncio.get_running_loop()
        before = loop.time()
        await fill(limit, 3)
        assert loop.time() - before < 2, "each of them would have waited a second"
        limit.release()
        server.resume()
        await eventually(lambda: limit.degraded is None)
        await eventually(lambda: counts_are(client, prefix, [4]))
        assert await total(limit) == 4

    async def test_what_is_released_without_redis_is_free_when_it_is_back(
        self, client: Redis, prefix: str, open_limit: OpenLimit
    ) -> None:
        limit = await open_limit(3, heartbeat_seconds=0.1, lease_seconds=100)
        await fill(limit, 3)
        await client.execute_command("ACL", "SETUSER", "default", "-@scripting")  # no call does anything
        limit.release()
        await eventually(lambda: limit.degraded is not None)
        limit.release()
        await client.execute_command("ACL", "SETUSER", "default", "+@scripting")
        await eventually(lambda: counts_are(client, prefix, [1]))

    async def test_closes_without_redis(
        self, server: RedisServer, open_limit: OpenLimit, caplog: pytest.LogCaptureFixture
    ) -> None:
        limit = await open_limit(2)
        await fill(limit, 1)
        server.stop()
        async with asyncio.timeout(60):
            await limit.ledger.aclose()
        assert "could not be told that this worker ends" in caplog.text

    async def test_an_error_of_redis_is_an_outage(self, client: Redis, prefix: str, open_limit: OpenLimit) -> None:
        await client.set(f"{{{prefix}}}:connections", "no slots")
        limit = await open_limit(1, heartbeat_seconds=0.1)
        assert [await limit.acquire() for _ in range(2)] == [True, False]
        assert "ResponseError" in (limit.degraded or "")
        await client.delete(f"{{{prefix}}}:connections")
        await eventually(lambda: counts_are(client, prefix, [1]))


async def total_is(limit: ConnectionLimit, expected: int) -> bool:
    return await total(limit) == expected
