"""The connection limits: the contract over both ledgers, how workers share one Redis, and what they do without it."""

import asyncio
import logging
import random
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from redis.asyncio import Redis

from responses_app.limits.ledger import Ask, BaseLedger, Hold
from responses_app.limits.memory import MemoryLedger
from responses_app.limits.rates import CONNECTIONS, ConnectionLimit
from responses_app.limits.redis import MAX_ASKS, RedisLedger
from tests.contracts.connection_limit import ConnectionLimitContract, Holders, fill, total, turns
from tests.kit.redis_server import RedisServer
from tests.kit.waiting import eventually

OpenLimit = Callable[..., Awaitable[ConnectionLimit]]


class LimitCase:
    """Limits over any ledger; a subclass gives the fixture `make_ledger`."""

    @pytest.fixture
    async def open_limit(self, make_ledger: Callable[..., BaseLedger]) -> AsyncIterator[OpenLimit]:
        """Start limits, and close them at the end."""
        opened: list[BaseLedger] = []

        async def open_one(limit: int, **options: object) -> ConnectionLimit:
            ledger = make_ledger(**options)
            opened.append(ledger)
            await ledger.start()
            return ConnectionLimit(ledger, limit)

        yield open_one
        for ledger in opened:
            await ledger.aclose()


class RedisCase(LimitCase):
    """Limits of one fresh prefix on the shared server, each standing for a worker process."""

    @pytest.fixture
    def server(self, redis_server: RedisServer) -> RedisServer:
        return redis_server

    @pytest.fixture
    def prefix(self) -> str:
        return f"test:{uuid.uuid4().hex}"

    @pytest.fixture
    def make_ledger(self, server: RedisServer, prefix: str) -> Callable[..., RedisLedger]:
        return lambda **options: RedisLedger(lambda: connect(server), prefix=prefix, **options)

    @pytest.fixture
    async def client(self, server: RedisServer) -> AsyncIterator[Redis]:
        async with connect(server) as client:
            yield client


class OwnRedisCase(RedisCase):
    """The same on a server that the test may break."""

    @pytest.fixture
    def server(self, own_redis_server: RedisServer) -> RedisServer:
        return own_redis_server


class TestMemory(LimitCase, ConnectionLimitContract):
    @pytest.fixture
    def make_ledger(self) -> type[MemoryLedger]:
        return MemoryLedger


class TestRedis(RedisCase, ConnectionLimitContract):
    """The contract."""


class TestSharing(RedisCase):
    """Several workers, all well."""

    async def test_two_workers_share_the_slots(self, open_limit: OpenLimit) -> None:
        one, two = await open_limit(3), await open_limit(3)
        await fill(one, 2)
        assert [await two.acquire() for _ in range(2)] == [True, False]
        assert not await one.acquire()
        assert await total(one) == await total(two) == 3
        assert (one.open_connections, two.open_connections) == (2, 1)
        one.release()
        await eventually(two.acquire)

    @pytest.mark.parametrize("seed", range(3))
    async def test_never_over_the_limit_together(self, open_limit: OpenLimit, seed: int) -> None:
        limits = [await open_limit(7) for _ in range(3)]
        holders, chance = Holders(), random.Random(seed)
        await asyncio.gather(*(holders.come_and_go(limits[n % 3], chance, times=20) for n in range(30)))
        assert holders.most == 7
        await eventually(lambda: all_free(limits))
        await fill(limits[0], 7)

    async def test_prefixes_do_not_meet(self, server: RedisServer, open_limit: OpenLimit) -> None:
        await fill(await open_limit(1), 1)
        other = RedisLedger(lambda: connect(server), prefix=uuid.uuid4().hex)
        await other.start()
        assert await ConnectionLimit(other, 1).acquire()
        await other.aclose()

    async def test_closing_gives_back_at_once(self, client: Redis, prefix: str, open_limit: OpenLimit) -> None:
        one, two = await open_limit(2), await open_limit(2)
        await fill(one, 2)
        await one.ledger.aclose()
        await fill(two, 2)
        assert await counts(client, prefix) == [2]
        await two.ledger.aclose()
        assert not await client.exists(f"{{{prefix}}}:connections")

    async def test_closing_beside_requests_leaves_nothing_behind(
        self, client: Redis, prefix: str, open_limit: OpenLimit
    ) -> None:
        limit = await open_limit(9)
        requests = [asyncio.create_task(limit.acquire()) for _ in range(5)]
        await asyncio.sleep(0)
        await limit.ledger.aclose()
        await asyncio.gather(*requests)
        assert await counts(client, prefix) == []
        assert "clerk of limits" not in {task.get_name() for task in asyncio.all_tasks()}


class TestReports(OwnRedisCase):
    """How much is said to Redis, and when."""

    async def test_hundreds_of_changes_in_one_turn_cost_one_call(self, client: Redis, open_limit: OpenLimit) -> None:
        limit = await open_limit(MAX_ASKS)
        before = await reports(client)
        await fill(limit, MAX_ASKS)
        assert await reports(client) - before == 1
        for _ in range(MAX_ASKS):
            limit.release()
        assert await total(limit) == 0
        assert await reports(client) - before == 2

    async def test_a_release_is_told_without_waiting_for_the_heartbeat(
        self, client: Redis, prefix: str, open_limit: OpenLimit
    ) -> None:
        limit = await open_limit(5, lease_seconds=200, heartbeat_seconds=100)
        await fill(limit, 3)
        limit.release()
        await eventually(lambda: counts_are(client, prefix, [2]))

    async def test_a_grant_that_nobody_waits_for_any_more_is_told(
        self, server: RedisServer, client: Redis, prefix: str, open_limit: OpenLimit
    ) -> None:
        limit = await open_limit(5, lease_seconds=200, heartbeat_seconds=100, timeout_seconds=30)
        before = await reports(client)
        server.pause()
        request = asyncio.create_task(limit.acquire())
        await turns(20)  # the report is on its way
        request.cancel()
        await asyncio.wait([request])
        held = limit.open_connections
        server.resume()
        await eventually(lambda: reports_are(client, before + 2))
        assert held == limit.open_connections == 0
        assert await counts(client, prefix) == []

    async def test_a_heartbeat_keeps_the_lease(self, client: Redis, prefix: str, open_limit: OpenLimit) -> None:
        limit = await open_limit(5, heartbeat_seconds=0.02)
        await fill(limit, 1)
        [(_, before)] = await client.zrange(f"{{{prefix}}}:connections", 0, -1, withscores=True)

        async def is_later() -> bool:
            [(_, after)] = await client.zrange(f"{{{prefix}}}:connections", 0, -1, withscores=True)
            return bool(after > before)

        await eventually(is_later)
        assert await counts(client, prefix) == [1]

    async def test_a_flushed_redis_heals_at_the_next_heartbeat(
        self, client: Redis, prefix: str, open_limit: OpenLimit
    ) -> None:
        one = await open_limit(4, heartbeat_seconds=0.1)
        await fill(one, 3)
        await client.flushall()
        await client.script_flush()
        await eventually(lambda: counts_are(client, prefix, [3]))
        two = await open_limit(4)
        assert [await two.acquire() for _ in range(2)] == [True, False]

    @pytest.mark.parametrize("end", [1, 10**15], ids=["over", "of_a_clock_that_was_set_back"])
    async def test_a_slot_whose_lease_is_over_is_free(
        self, client: Redis, prefix: str, open_limit: OpenLimit, end: int
    ) -> None:
        await client.zadd(f"{{{prefix}}}:connections", {"nobody:7": end})
        limit = await open_limit(5)
        await fill(limit, 5)


class TestScript(RedisCase):
    """What Redis itself does with calls that come twice, or that are not of its mind."""

    async def test_an_ask_sent_again_has_the_same_effect(
        self, client: Redis, prefix: str, open_limit: OpenLimit
    ) -> None:
        limit = await open_limit(1)
        for _ in range(3):  # as where the connection broke before the answer came
            answer = await limit.ledger.ask(Ask((), [Hold(CONNECTIONS, 1)], "worker:1"))
            assert (answer.granted, answer.held) == (True, [0])
        assert await counts(client, prefix) == [1]

    async def test_what_a_worker_holds_is_never_refused(
        self, client: Redis, prefix: str, open_limit: OpenLimit
    ) -> None:
        one, two = await open_limit(10), await open_limit(10)
        await fill(one, 10)
        for _ in range(8):
            two.ledger.hold(CONNECTIONS, two.ledger.new_id())
        await eventually(lambda: counts_are(client, prefix, [8, 10]))
        for _ in range(8):
            one.release()
        assert not await one.acquire()
        one.release()
        assert [await one.acquire() for _ in range(2)] == [True, False]


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


def connect(server: RedisServer) -> Redis:
    """Make a client as the wiring does."""
    return Redis.from_url(server.url, socket_timeout=None)


async def counts(client: Redis, prefix: str) -> list[int]:
    """Read how many connections of each worker stand in Redis; ids are "worker:number"."""
    ids = await client.zrange(f"{{{prefix}}}:connections", 0, -1)
    return sorted(Counter(id.partition(b":")[0] for id in ids).values())


async def counts_are(client: Redis, prefix: str, expected: list[int]) -> bool:
    return await counts(client, prefix) == expected


async def reports(client: Redis) -> int:
    """Read how many scripts the server has run."""
    return int((await client.info("commandstats")).get("cmdstat_evalsha", {"calls": 0})["calls"])


async def all_free(limits: list[ConnectionLimit]) -> bool:
    return [await total(limit) for limit in limits] == [0] * len(limits)


async def reports_are(client: Redis, expected: int) -> bool:
    return await reports(client) == expected
