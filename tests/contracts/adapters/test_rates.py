"""Limits of keys and projects in memory and in Redis; real processes that race and are killed; Redis away and back."""

import asyncio
import logging
import random
import signal
import sys
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from redis.asyncio import Redis

from responses_app.limits.ledger import Ask, BaseLedger, BucketsAndSlots, Charge, Hold, LedgerJob
from responses_app.limits.memory import MemoryLedger
from responses_app.limits.rates import Rates
from responses_app.limits.redis import RedisLedger
from responses_app.protocol.rate_limits import Amount, RateLimited
from tests.contracts.adapters.rates_worker import HEARTBEAT_SECONDS, LEASE_SECONDS
from tests.contracts.rates import Clock, OpenRates, RatesContract, ask, key, line, project, refused
from tests.kit.redis_server import RedisServer
from tests.kit.waiting import eventually

OpenLedger = Callable[..., Awaitable[RedisLedger]]
FIVE = key(requests_per_minute=100_000, concurrent_responses=5)


def connect(server: RedisServer) -> Redis:
    return Redis.from_url(server.url, socket_timeout=None)


@pytest.fixture
def prefix() -> str:
    return f"test:{uuid.uuid4().hex}"


@pytest.fixture
async def open_ledger(prefix: str) -> AsyncIterator[OpenLedger]:
    """Start ledgers, and close them at the end."""
    opened: list[RedisLedger] = []

    async def open_one(server: RedisServer, **options: Any) -> RedisLedger:
        opened.append(RedisLedger(lambda: connect(server), prefix=prefix, **options))
        await opened[-1].start()
        return opened[-1]

    yield open_one
    for ledger in opened:
        await ledger.aclose()


class TestMemory(RatesContract):
    @pytest.fixture
    def make_ledger(self) -> Callable[..., BaseLedger]:
        return MemoryLedger

    async def test_full_buckets_are_forgotten(self, clock: Clock) -> None:
        counts = BucketsAndSlots()
        for number in range(5000):
            clock.pass_by(1)
            counts.do(LedgerJob(asks=[Ask([Charge(f"key:{number}", 1000.0, 60_000)])]), clock())
        assert len(counts.buckets) <= 1025


class TestRedis(RatesContract):
    @pytest.fixture
    def make_ledger(self, redis_server: RedisServer, prefix: str) -> Callable[..., BaseLedger]:
        return lambda **options: RedisLedger(lambda: connect(redis_server), prefix=prefix, **options)

    @pytest.fixture
    async def client(self, redis_server: RedisServer) -> AsyncIterator[Redis]:
        async with connect(redis_server) as client:
            yield client

    async def test_workers_count_together(self, open_rates: OpenRates) -> None:
        one, two = await open_rates(), await open_rates()
        who = key(requests_per_minute=3, concurrent_responses=2)
        first = await ask(one, who)
        await ask(two, who)
        for worker in (one, two):
            assert "concurrent" in (await refused(worker, who)).message
        first.settle()
        await eventually(lambda: _admitted(two, who))
        assert "requests per min" in (await refused(one, who)).message
        assert (await line(two, who, "requests")).remaining == 0

    async def test_requests_that_come_together_share_a_round_trip(self, open_rates: OpenRates, client: Redis) -> None:
        rates = await open_rates()
        who = [key(requests_per_minute=1000, concurrent_responses=1000), project(tokens_per_day=10_000)]
        (await ask(rates, *who)).settle()
        before = await _calls(client)
        since = asyncio.get_running_loop().time()
        await ask(rates, *who)
        await rates.lines(who, since=since)  # heard with the ask
        assert await _calls(client) - before <= 2  # one, and maybe what was settled before
        before = await _calls(client)
        await asyncio.gather(*(ask(rates, *who) for _ in range(100)))
        assert await _calls(client) - before <= 3

    async def test_more_than_one_call_takes_wait_for_no_heartbeat(
        self, open_ledger: OpenLedger, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("responses_app.limits.redis.MAX_ASKS", 10)
        ledger = await open_ledger(redis_server, heartbeat_seconds=60, lease_seconds=120)
        async with asyncio.timeout(15):
            await asyncio.gather(*(ask(Rates(ledger), key(requests_per_minute=100)) for _ in range(25)))

    async def test_nothing_is_left_behind(self, open_rates: OpenRates, client: Redis, prefix: str) -> None:
        rates = await open_rates()
        who = key(requests_per_minute=60, output_tokens_per_minute=60, concurrent_responses=2, tokens_per_day=9)
        (await ask(rates, who)).settle(Amount(1, 0, 1))
        await ask(rates, who)
        names = [name async for name in client.scan_iter(f"{{{prefix}}}:*")]
        assert len(names) == 5  # of four limits, and what heartbeats write
        for name in names:
            assert 0 < await client.pttl(name) <= 86_400_000
        await rates.ledger.aclose()
        assert not await client.exists(slots_of(prefix))

    async def test_a_clock_that_is_set_back_locks_nobody_out(self, open_rates: OpenRates, clock: Clock) -> None:
        rates = await open_rates()
        who = key(requests_per_minute=2, concurrent_responses=2)
        (await ask(rates, who)).settle()
        (await ask(rates, who)).settle()
        clock.pass_by(-600)
        assert (await refused(rates, who)).retry_after == 30
        clock.pass_by(30)
        await ask(rates, who)

    @pytest.mark.parametrize("seed", range(5))
    async def test_the_script_does_what_the_ledger_does(
        self, open_ledger: OpenLedger, redis_server: RedisServer, clock: Clock, seed: int
    ) -> None:
        chance, counts = random.Random(seed), BucketsAndSlots()
        ledger = await open_ledger(redis_server, now=clock, lease_seconds=10_000)
        names = [f"key:{number}" for number in range(3)]
        for step in range(60):
            clock.pass_by(chance.choice([0, 0.01, 1, 20]))
            charges = [Charge(f"r:{name}", chance.choice([0.0, 20_000.0 / 3, 30_000.0]), 60_000) for name in names]
            asks = [Ask(charges, [Hold(f"c:{chance.choice(names)}", 3)], f"h{step}:{n}") for n in range(2)]
            job = LedgerJob(
                {f"r:{chance.choice(names)}": chance.uniform(-40_000, 40_000)},
                [(f"c:{chance.choice(names)}", f"h{chance.randrange(step + 1)}:0")],
                asks,
            )
            mine = counts.do(job, clock())
            theirs = await ledger._say(job, renews=False)
            for own, other in zip(mine, theirs, strict=True):
                assert (own.granted, list(own.held)) == (other.granted, other.held)
                assert other.left == pytest.approx(list(own.left), abs=0.01)


class TestProcesses:
    """Several real workers."""

    @pytest.fixture
    async def rates(self, open_ledger: OpenLedger, redis_server: RedisServer) -> Rates:
        times = {"lease_seconds": LEASE_SECONDS, "heartbeat_seconds": HEARTBEAT_SECONDS}
        return Rates(await open_ledger(redis_server, **times))

    async def test_workers_that_race_get_exactly_what_is_there(self, redis_server: RedisServer, prefix: str) -> None:
        async with (
            worker(redis_server, prefix, requests=50, slots=1000, tries=40) as one,
            worker(redis_server, prefix, requests=50, slots=1000, tries=40) as two,
            worker(redis_server, prefix, requests=50, slots=1000, tries=40) as three,
        ):
            began = time.monotonic()
            admitted = await asyncio.gather(*(admitted_by(each) for each in (one, two, three)))
            assert 50 <= sum(admitted) <= 50 + (time.monotonic() - began) / 1.2  # one comes back each 1.2 s

    async def test_a_killed_worker_gives_its_slots_back(
        self, rates: Rates, redis_server: RedisServer, prefix: str
    ) -> None:
        async def first_end() -> float:
            async with connect(redis_server) as client:
                [(_, end)] = await client.zrange(slots_of(prefix), 0, 0, withscores=True)
                return float(end)

        async def ends_behind(before: float) -> bool:
            return await first_end() > before

        async with worker(redis_server, prefix, requests=100_000, slots=5, tries=9) as doomed:
            assert await admitted_by(doomed) == 5
            await refused(rates, FIVE)
            end = await first_end()
            await eventually(lambda: ends_behind(end))  # it lives, and renews them
            await refused(rates, FIVE)
            doomed.send_signal(signal.SIGKILL)
            await doomed.wait()
            await eventually(lambda: _admitted(rates, FIVE))

    async def test_a_stalled_worker_keeps_its_slots_until_it_ends(
        self, rates: Rates, redis_server: RedisServer, prefix: str
    ) -> None:
        async with worker(redis_server, prefix, requests=100_000, slots=5, tries=9) as stalled:
            assert await admitted_by(stalled) == 5
            stalled.send_signal(signal.SIGSTOP)
            await eventually(lambda: _admitted(rates, FIVE))
            own = [await ask(rates, FIVE) for _ in range(4)]
            stalled.send_signal(signal.SIGCONT)
            async with connect(redis_server) as client:
                await eventually(lambda: _card_is(client, slots_of(prefix), 10))
                for ticket in own:
                    ticket.settle()
                await refused(rates, FIVE)
                await stalled.communicate(b"")  # ends its stdin
                assert await client.zcard(slots_of(prefix)) == 1, "at once"
            await ask(rates, FIVE)


class TestOutage:
    """Redis gone and back; `test_connection_limits` has in which ways it may go."""

    async def test_without_redis_each_worker_counts_by_itself_and_says_so_once(
        self, open_ledger: OpenLedger, own_redis_server: RedisServer, prefix: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        rates = Rates(await open_ledger(own_redis_server, heartbeat_seconds=0.1, lease_seconds=5))
        caplog.set_level(logging.INFO, logger="respsite.limits")
        who = key(requests_per_minute=5, concurrent_responses=3)
        held = [await ask(rates, who), await ask(rates, who)]
        own_redis_server.kill()
        held.append(await ask(rates, who))  # the request that finds Redis gone
        assert "concurrent responses: Limit 3, Used 3" in (await refused(rates, who)).message  # what it holds counts
        assert rates.ledger.away == "ConnectionError"
        held.pop().settle(Amount(1, 0, 0))
        held.append(await ask(rates, who))
        held[0].settle()
        own_redis_server.start()
        await eventually(lambda: rates.ledger.away is None)
        async with connect(own_redis_server) as client:
            await eventually(
                lambda: _card_is(client, slots_of(prefix), 2)
            )  # what it still holds is counted there again
        await ask(rates, who)
        assert "concurrent" in (await refused(rates, who)).message
        assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


@pytest.mark.parametrize(
    "times", [{"lease_seconds": 1.0, "heartbeat_seconds": 0.6}, {"heartbeat_seconds": 0.0}, {"timeout_seconds": -1.0}]
)
def test_refuses_times_that_cannot_work(times: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="two heartbeats"):
        RedisLedger(Redis, **times)


@asynccontextmanager
async def worker(
    server: RedisServer, prefix: str, *, requests: int, slots: int, tries: int
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run another process that takes what it can."""
    words = map(str, (server.url, prefix, requests, slots, tries))
    process: Any = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.contracts.adapters.rates_worker", *words),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert await process.stdout.readline() == b"ready\n"
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def admitted_by(process: asyncio.subprocess.Process) -> int:
    """Let a worker ask; return how many requests it got through."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"ask\n")
    word, _, number = (await process.stdout.readline()).partition(b" ")
    assert word == b"admitted"
    return int(number)


async def _admitted(rates: Rates, who: object) -> bool:
    try:
        await ask(rates, who)  # type: ignore[arg-type]
    except RateLimited:
        return False
    return True


def slots_of(prefix: str) -> str:
    """Return the key of the slots of the API key `a`."""
    return f"{{{prefix}}}:concurrent_responses:key:a"


async def _card_is(client: Redis, name: str, count: int) -> bool:
    return int(await client.zcard(name)) == count


async def _calls(client: Redis) -> int:
    """Read how many scripts the server has run."""
    return int((await client.info("commandstats")).get("cmdstat_evalsha", {"calls": 0})["calls"])
