"""The connection limits: the contract over both, and how workers share one Redis."""

import asyncio
import random
import uuid

import pytest
from redis.asyncio import Redis

from responses_app.limits.memory import MemoryConnectionLimit
from responses_app.limits.redis import REPORT, RedisConnectionLimit
from tests.adapters.connection_limits import (
    LimitCase,
    OpenRedisLimit,
    OwnRedisCase,
    RedisCase,
    connect,
    counts,
    counts_are,
)
from tests.contracts.connection_limit import ConnectionLimitContract, Holders, fill, turns
from tests.redis_server import RedisServer
from tests.waiting import eventually


class TestMemoryConnectionLimit(LimitCase, ConnectionLimitContract):
    @pytest.fixture
    def make_limit(self) -> type[MemoryConnectionLimit]:
        return MemoryConnectionLimit


class TestRedisConnectionLimit(RedisCase, ConnectionLimitContract):
    """The contract."""


class TestSharing(RedisCase):
    """Several workers, all well."""

    async def test_two_workers_share_the_slots(self, open_limit: OpenRedisLimit) -> None:
        one, two = await open_limit(3), await open_limit(3)
        await fill(one, 2)
        assert [await two.acquire() for _ in range(2)] == [True, False]
        assert not await one.acquire()
        assert await one.total() == await two.total() == 3
        assert (one.open_connections, two.open_connections) == (2, 1)
        one.release()
        await eventually(two.acquire)

    @pytest.mark.parametrize("seed", range(3))
    async def test_never_over_the_limit_together(self, open_limit: OpenRedisLimit, seed: int) -> None:
        limits = [await open_limit(7) for _ in range(3)]
        holders, chance = Holders(), random.Random(seed)
        await asyncio.gather(*(holders.come_and_go(limits[n % 3], chance, times=20) for n in range(30)))
        assert holders.most == 7
        await eventually(lambda: all_free(limits))
        await fill(limits[0], 7)

    async def test_prefixes_do_not_meet(self, server: RedisServer, open_limit: OpenRedisLimit) -> None:
        await fill(await open_limit(1), 1)
        other = RedisConnectionLimit(1, connect=lambda: connect(server), prefix=uuid.uuid4().hex)
        await other.start()
        assert await other.acquire()
        await other.aclose()

    async def test_closing_gives_back_at_once(self, client: Redis, prefix: str, open_limit: OpenRedisLimit) -> None:
        one, two = await open_limit(2), await open_limit(2)
        await fill(one, 2)
        await one.aclose()
        await fill(two, 2)
        assert await counts(client, prefix) == [2]
        await two.aclose()
        assert not await client.exists(f"{{{prefix}}}:count", f"{{{prefix}}}:lease")

    async def test_closing_beside_requests_leaves_nothing_behind(
        self, client: Redis, prefix: str, open_limit: OpenRedisLimit
    ) -> None:
        limit = await open_limit(9)
        requests = [asyncio.create_task(limit.acquire()) for _ in range(5)]
        await asyncio.sleep(0)
        await limit.aclose()
        await asyncio.gather(*requests)
        assert await counts(client, prefix) == []
        assert "connection-limit-reporter" not in {task.get_name() for task in asyncio.all_tasks()}


class TestReports(OwnRedisCase):
    """How much is said to Redis, and when."""

    async def test_a_thousand_changes_in_one_turn_cost_one_call(
        self, client: Redis, open_limit: OpenRedisLimit
    ) -> None:
        limit = await open_limit(1000)
        before = await reports(client)
        await fill(limit, 1000)
        assert await reports(client) - before == 1
        for _ in range(1000):
            limit.release()
        assert await limit.total() == 0
        assert await reports(client) - before == 2

    async def test_a_release_is_told_without_waiting_for_the_heartbeat(
        self, client: Redis, prefix: str, open_limit: OpenRedisLimit
    ) -> None:
        limit = await open_limit(5, lease_seconds=200, heartbeat_seconds=100)
        await fill(limit, 3)
        limit.release()
        await eventually(lambda: counts_are(client, prefix, [2]))

    async def test_a_grant_that_nobody_waits_for_any_more_is_told(
        self, server: RedisServer, client: Redis, prefix: str, open_limit: OpenRedisLimit
    ) -> None:
        limit = await open_limit(5, lease_seconds=200, heartbeat_seconds=100, timeout_seconds=30)
        server.pause()
        request = asyncio.create_task(limit.acquire())
        await turns(20)  # the report is on its way
        request.cancel()
        await asyncio.wait([request])
        before = limit.open_connections
        server.resume()
        await eventually(lambda: generation_is(client, prefix, 3))
        assert before == limit.open_connections == 0
        assert await counts(client, prefix) == [0]

    async def test_a_heartbeat_keeps_the_lease(self, client: Redis, prefix: str, open_limit: OpenRedisLimit) -> None:
        limit = await open_limit(5, heartbeat_seconds=0.02)
        await fill(limit, 1)
        [(_, before)] = await client.zrange(f"{{{prefix}}}:lease", 0, -1, withscores=True)

        async def is_later() -> bool:
            [(_, after)] = await client.zrange(f"{{{prefix}}}:lease", 0, -1, withscores=True)
            return bool(after > before)

        await eventually(is_later)
        assert await counts(client, prefix) == [1]

    async def test_a_flushed_redis_heals_at_the_next_heartbeat(
        self, client: Redis, prefix: str, open_limit: OpenRedisLimit
    ) -> None:
        one = await open_limit(4, heartbeat_seconds=0.1)
        await fill(one, 3)
        await client.flushall()
        await client.script_flush()
        await eventually(lambda: counts_are(client, prefix, [3]))
        two = await open_limit(4)
        assert [await two.acquire() for _ in range(2)] == [True, False]

    async def test_a_count_without_a_lease_is_dropped(
        self, client: Redis, prefix: str, open_limit: OpenRedisLimit
    ) -> None:
        await client.hset(f"{{{prefix}}}:count", "nobody", "7:5")
        limit = await open_limit(5)
        await fill(limit, 5)


class TestOrder(RedisCase):
    """The script by itself: late, lost and repeated reports."""

    async def report(self, client: Redis, prefix: str, words: str, *, limit: int = 10) -> tuple[int, int]:
        """Send "worker generation held wanted"; give (granted, total)."""
        keys = (f"{{{prefix}}}:count", f"{{{prefix}}}:lease")
        granted, total = await client.eval(REPORT, 2, *keys, *words.split(), limit, 60_000)
        return granted, total

    async def test_an_older_report_changes_nothing(self, client: Redis, prefix: str) -> None:
        assert await self.report(client, prefix, "a 5 0 3") == (3, 3)
        assert await self.report(client, prefix, "a 7 1 0") == (0, 1)
        assert await self.report(client, prefix, "a 6 3 2") == (0, 1)
        assert await counts(client, prefix) == [1]

    async def test_a_report_sent_again_has_the_same_effect(self, client: Redis, prefix: str) -> None:
        for _ in range(3):
            assert await self.report(client, prefix, "a 1 2 3") == (3, 5)
        assert await counts(client, prefix) == [5]

    async def test_a_lost_report_is_made_good_by_the_next(self, client: Redis, prefix: str) -> None:
        assert await self.report(client, prefix, "a 1 0 4") == (4, 4)
        assert await self.report(client, prefix, "a 9 2 0") == (0, 2)

    async def test_grants_what_is_left(self, client: Redis, prefix: str) -> None:
        assert await self.report(client, prefix, "a 1 0 6") == (6, 6)
        assert await self.report(client, prefix, "b 1 1 9") == (3, 10)
        assert await self.report(client, prefix, "c 1 0 1") == (0, 10)

    async def test_what_a_worker_holds_is_never_refused(self, client: Redis, prefix: str) -> None:
        assert await self.report(client, prefix, "a 1 0 10") == (10, 10)
        assert await self.report(client, prefix, "b 1 8 1") == (0, 18)
        assert await self.report(client, prefix, "a 2 2 1") == (0, 10)
        assert await self.report(client, prefix, "a 3 1 1") == (1, 10)


@pytest.mark.parametrize(
    "times",
    [{"lease_seconds": 1.0, "heartbeat_seconds": 0.6}, {"heartbeat_seconds": 0.0}, {"timeout_seconds": -1.0}],
    ids=lambda times: next(iter(times)),
)
def test_refuses_times_that_cannot_work(times: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="two heartbeats"):
        RedisConnectionLimit(1, connect=Redis, **times)


async def reports(client: Redis) -> int:
    """Read how many scripts the server has run."""
    return int((await client.info("commandstats")).get("cmdstat_evalsha", {"calls": 0})["calls"])


async def all_free(limits: list[RedisConnectionLimit]) -> bool:
    return [await limit.total() for limit in limits] == [0] * len(limits)


async def generation_is(client: Redis, prefix: str, expected: int) -> bool:
    [value] = await client.hvals(f"{{{prefix}}}:count")
    return int(value.split(b":")[0]) == expected
