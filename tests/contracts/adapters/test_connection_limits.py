"""The connection limits: the contract over both, and how workers share one Redis."""

import asyncio
import random
import uuid

import pytest
from redis.asyncio import Redis

from responses_app.limits.ledger import Ask, Hold
from responses_app.limits.memory import MemoryLedger
from responses_app.limits.rates import CONNECTIONS, ConnectionLimit
from responses_app.limits.redis import MAX_ASKS, RedisLedger
from tests.contracts.adapters.connection_limits import (
    LimitCase,
    OpenLimit,
    OwnRedisCase,
    RedisCase,
    connect,
    counts,
    counts_are,
)
from tests.contracts.connection_limit import ConnectionLimitContract, Holders, fill, total, turns
from tests.kit.redis_server import RedisServer
from tests.kit.waiting import eventually


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


async def reports(client: Redis) -> int:
    """Read how many scripts the server has run."""
    return int((await client.info("commandstats")).get("cmdstat_evalsha", {"calls": 0})["calls"])


async def all_free(limits: list[ConnectionLimit]) -> bool:
    return [await total(limit) for limit in limits] == [0] * len(limits)


async def reports_are(client: Redis, expected: int) -> bool:
    return await reports(client) == expected
