"""The row about who may ask, and how much: in this process, with a real Redis, and no server around it."""

import asyncio
import time
from collections.abc import Collection, Iterator, Mapping
from statistics import median

from redis.asyncio import Redis

from bench.report import Result
from bench.servers import Bench
from responses_app.auth.door import Door
from responses_app.auth.keyring import KeyRing
from responses_app.limits.rates import Rates
from responses_app.limits.redis import RedisLedger
from responses_app.protocol.api_keys import Caller, KeyRecord, SessionPass, digest_of
from responses_app.protocol.rate_limits import Amount, Limits, Slot, as_headers, limited_by
from tests.kit.redis_server import RedisServer

REQUESTS = 2000
AT_ONCE = (1, 50)
ROUNDS = 5
MANY = 10**9
SECRET = "sk-" + "A" * 43
ALL = Limits(
    requests_per_minute=MANY,
    input_tokens_per_minute=MANY,
    output_tokens_per_minute=MANY,
    tokens_per_day=MANY,
    concurrent_responses=MANY,
    websockets=MANY,
)
LIMITED = limited_by("key_a", "p", ALL, ALL)
SCOPE = {"headers": [(b"host", b"models.example"), (b"authorization", b"Bearer " + SECRET.encode())]}


class _Keys:
    """One key, in memory."""

    async def find(self, digests: Collection[str]) -> Mapping[str, KeyRecord]:
        key = KeyRecord(id="key_a", project="p", digest=digest_of(SECRET), limited=LIMITED)
        return {key.digest: key} if key.digest in digests else {}

    async def note_use(self, key_ids: Collection[str], at: float) -> None:
        pass

    async def aclose(self) -> None:
        pass


class _Nobody:
    """No users of the admin: everybody here has a key."""

    async def caller(self, given: SessionPass) -> Caller | None:
        return None

    async def aclose(self) -> None:
        pass


def limits(bench: Bench) -> Iterator[Result]:
    """What a request costs that has a key with all limits, in a project with all limits."""
    with RedisServer() as redis:
        costs, calls = asyncio.run(_measure(bench, redis.url))
    alone, together = (median(costs[count]) for count in AT_ONCE)
    yield Result(
        what=f"CPU of a key and ten limits a request, settled too, {AT_ONCE[-1]} at once, Redis",
        measured=together,
        unit="µs",
        target=100.0,
        holds=calls <= 1.0,
        details={
            "best µs": min(costs[AT_ONCE[-1]]),
            "one after the other µs": alone,
            "round trips a request": calls,
        },
    )


async def _measure(bench: Bench, url: str) -> tuple[dict[int, list[float]], float]:
    """Return the CPU time of a request in µs, by how many come at once, and the round trips of one of the most."""
    door = Door("on", KeyRing(_Keys(), now=time.time), _Nobody(), is_exposed=True)
    ledger = RedisLedger(lambda: Redis.from_url(url, socket_timeout=None))
    rates = Rates(ledger)
    door.keys.start()
    await ledger.start()
    costs: dict[int, list[float]] = {count: [] for count in AT_ONCE}
    calls = 0.0
    async with Redis.from_url(url) as client:
        for number in bench.report.rounds(ROUNDS, warm_up=True):
            for count, kept in costs.items():
                before, cpu = await _scripts(client), time.process_time()
                await asyncio.gather(*(_ask(door, rates, REQUESTS // count) for _ in range(count)))
                cost = (time.process_time() - cpu) / REQUESTS * 1e6
                calls = (await _scripts(client) - before) / REQUESTS
                kept += [cost] if number else []
    await ledger.aclose()
    await door.aclose()
    return costs, calls


async def _ask(door: Door, rates: Rates, times: int) -> None:
    loop = asyncio.get_running_loop()
    for _ in range(times):
        began = loop.time()
        caller = await door.caller(SCOPE)
        ticket = await rates.admit(caller.limited, Amount(1, 250, 1), Slot.RESPONSE)
        as_headers(await rates.lines(caller.limited, since=began))
        ticket.settle(Amount(1, 250, 80))


async def _scripts(client: Redis) -> int:
    return int((await client.info("commandstats")).get("cmdstat_evalsha", {"calls": 0})["calls"])
