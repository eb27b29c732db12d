"""Limits of keys and projects in memory and in Redis; real processes that race and are killed; Redis away and back."""

import asyncio
import logging
import random
import signal
import sys
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from redis.asyncio import Redis

from responses_app.limits.ledger import Ask, BaseLedger, Charge, Counts, Hold, LedgerJob
from responses_app.limits.memory import MemoryLedger
from responses_app.limits.rates import Rates
from responses_app.limits.redis import RedisLedger
from responses_app.protocol.rate_limits import Amount, RateLimited
from tests.contracts.adapters.rates_worker import HEARTBEAT_SECONDS, LEASE_SECONDS
from tests.contracts.rates import Clock, OpenRates, RatesContract, ask, key, line, project, refused
from tests.kit.redis_server import RedisServer
from tests.kit.waiting import eventually

SHORT = {"lease_seconds": LEASE_SECONDS, "heartbeat_seconds": HEARTBEAT_SECONDS}


def connect(server: RedisServer) -> Redis:
    return Redis.from_url(server.url, socket_timeout=None)


@pytest.fixture
def prefix() -> str:
    return f"test:{uuid.uuid4().hex}"


class TestMemory(RatesContract):
    @pytest.fixture
    def make_ledger(self) -> Callable[..., BaseLedger]:
        return MemoryLedger

    async def test_full_buckets_are_forgotten(self, clock: Clock) -> None:
        counts = Counts()
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
        self, redis_server: RedisServer, prefix: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("responses_app.limits.redis.MAX_ASKS", 10)
        ledger = RedisLedger(lambda: connect(redis_server), prefix=prefix, heartbeat_seconds=60, lease_seconds=120)
        await ledger.start()
        try:
            async with asyncio.timeout(15):
                await asyncio.gather(*(ask(Rates(ledger), key(requests_per_minute=100)) for _ in range(25)))
        finally:
            await ledger.aclose()

    async def test_nothing_is_left_behind(self, open_rates: OpenRates, client: Redis, prefix: str) -> None:
        rates = await open_rates()
        who = key(requests_per_minute=60, output_tokens_per_minute=60, concurrent_responses=2, tokens_per_day=9)
        (await ask(rates, who)).settle(Amount(1, 0, 1))
        await ask(rates, who)
        names = [name async for name in client.scan_iter(f"{{{prefix}}}:*")]
        assert len(names) == 4
        for name in names:
            assert 0 < await client.pttl(name) <= 86_400_000
        await rates.ledger.aclose()
        assert not await client.exists(f"{{{prefix}}}:concurrent_responses:key:a")

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
        self, redis_server: RedisServer, prefix: str, clock: Clock, seed: int
    ) -> None:
        chance, counts = random.Random(seed), Counts()
        ledger = RedisLedger(lambda: connect(redis_server), prefix=prefix, now=clock, lease_seconds=10_000)
        await ledger.start()
        names = [f"key:{number}" for number in range(3)]
        try:
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
        finally:
            await ledger.aclose()


class TestProcesses:
    """Several real workers."""

    async def test_workers_that_race_get_exactly_what_is_there(self, redis_server: RedisServer, prefix: str) -> None:
        async with (
            worker(redis_server, prefix, requests=50, slots=1000, tries=40) as one,
            worker(redis_server, prefix, requests=50, slots=1000, tries=40) as two,
            worker(redis_server, prefix, requests=50, slots=1000, tries=40) as three,
        ):
            began = time.monotonic()
            admitted = await asyncio.gather(*(admitted_by(each) for each in (one, two, three)))
            assert 50 <= sum(admitted) <= 50 + (time.monotonic() - began) / 1.2  # one comes back each 1.2 s

    async def test_a_killed_worker_gives_its_slots_back(self, redis_server: RedisServer, prefix: str) -> None:
        async def first_end() -> float:
            async with connect(redis_server) as client:
                [(_, end)] = await client.zrange(f"{{{prefix}}}:concurrent_responses:key:a", 0, 0, withscores=True)
                return float(end)

        async def ends_behind(before: float) -> bool:
            return await first_end() > before

        ledger = RedisLedger(lambda: connect(redis_server), prefix=prefix, **SHORT)
        await ledger.start()
        rates = Rates(ledger)
        who = key(requests_per_minute=100_000, concurrent_responses=5)
        try:
            async with worker(redis_server, prefix, requests=100_000, slots=5, tries=9) as doomed:
                assert await admitted_by(doomed) == 5
                await refused(rates, who)
                end = await first_end()
                await eventually(lambda: ends_behind(end))  # it lives, and renews them
                await refused(rates, who)
                doomed.send_signal(signal.SIGKILL)
                await doomed.wait()
                await eventually(lambda: _admitted(rates, who))
        finally:
            await rates.ledger.aclose()

    async def test_a_worker_that_ends_gives_them_back_at_once(self, redis_server: RedisServer, prefix: str) -> None:
        async with worker(redis_server, prefix, requests=100_000, slots=5, tries=9) as ending:
            await admitted_by(ending)
            await ending.communicate(b"")
            async with connect(redis_server) as client:
                assert await client.zcard(f"{{{prefix}}}:concurrent_responses:key:a") == 0


class TestOutage:
    """Redis gone, stalled, flushed and back."""

    @pytest.fixture
    async def rates(self, own_redis_server: RedisServer, prefix: str) -> AsyncIterator[Rates]:
        ledger = RedisLedger(
            lambda: connect(own_redis_server),
            prefix=prefix,
            heartbeat_seconds=0.1,
            lease_seconds=5,
            timeout_seconds=1.0,
        )
        await ledger.start()
        yield Rates(ledger)
        await ledger.aclose()

    async def test_without_redis_each_worker_counts_by_itself_and_says_so_once(
        self, rates: Rates, own_redis_server: RedisServer, prefix: str, caplog: pytest.LogCaptureFixture
    ) -> None:
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
            name = f"{{{prefix}}}:concurrent_responses:key:a"
            await eventually(lambda: _card_is(client, name, 2))  # what it still holds is counted there again
        await ask(rates, who)
        assert "concurrent" in (await refused(rates, who)).message
        assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]

    async def test_a_stalled_redis_delays_only_the_first(self, rates: Rates, own_redis_server: RedisServer) -> None:
        who = key(requests_per_minute=5)
        own_redis_server.pause()
        loop = asyncio.get_running_loop()
        began = loop.time()
        await ask(rates, who)
        assert loop.time() - began > 0.3
        began = loop.time()
        for _ in range(4):
            await ask(rates, who)
        await refused(rates, who)
        assert loop.time() - began < 3, "each of them would have waited a second"
        own_redis_server.resume()
        await eventually(lambda: rates.ledger.away is None)
        await ask(rates, who)

    async def test_starts_without_redis(self, own_redis_server: RedisServer, prefix: str) -> None:
        own_redis_server.stop()
        ledger = RedisLedger(lambda: connect(own_redis_server), prefix=prefix, heartbeat_seconds=0.1, lease_seconds=5)
        await ledger.start()
        rates = Rates(ledger)
        try:
            await ask(rates, key(requests_per_minute=1))
            await refused(rates, key(requests_per_minute=1))
            own_redis_server.start()
            await eventually(lambda: rates.ledger.away is None)
            await ask(rates, key(requests_per_minute=1))
        finally:
            await rates.ledger.aclose()

    async def test_a_redis_that_was_flushed_hears_of_all_again(
        self, rates: Rates, own_redis_server: RedisServer, prefix: str
    ) -> None:
        who = key(concurrent_responses=2)
        await ask(rates, who)
        await ask(rates, who)
        async with connect(own_redis_server) as client:
            await client.flushall()
            await client.script_flush()
            await eventually(lambda: _card_is(client, f"{{{prefix}}}:concurrent_responses:key:a", 2))
        await refused(rates, who)
        assert rates.ledger.away is None

    async def test_an_error_of_redis_is_an_outage(
        self, rates: Rates, own_redis_server: RedisServer, prefix: str
    ) -> None:
        name = f"{{{prefix}}}:requests_per_minute:key:a"
        async with connect(own_redis_server) as client:
            await client.lpush(name, "not a bucket")
            await ask(rates, key(requests_per_minute=1))
            assert "ResponseError" in (rates.ledger.away or "")
            await refused(rates, key(requests_per_minute=1))
            await client.delete(name)
        await eventually(lambda: rates.ledger.away is None)

    async def test_closes_without_redis(self, rates: Rates, own_redis_server: RedisServer) -> None:
        await ask(rates, key(concurrent_responses=2))
        own_redis_server.stop()
        async with asyncio.timeout(60):
            await rates.ledger.aclose()


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
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.contracts.adapters.rates_worker", *words),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
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


async def _card_is(client: Redis, name: str, count: int) -> bool:
    return int(await client.zcard(name)) == count


async def _calls(client: Redis) -> int:
    """Read how many scripts the server has run."""
    return int((await client.info("commandstats")).get("cmdstat_evalsha", {"calls": 0})["calls"])
