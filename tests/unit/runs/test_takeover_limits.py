"""A response that goes on, or ends, at another worker is counted once against the limits of its key."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from responses_app.kit.errors import StoreError
from responses_app.limits.memory import MemoryLedger
from responses_app.limits.rates import Rates
from responses_app.protocol.api_keys import Caller, KeyRecord
from responses_app.protocol.rate_limits import LimitedSubject, Limits, limited_by
from responses_app.protocol.requests.requests import parse_create
from responses_app.runs.plan.plan import Origin
from responses_app.stores.base import AcceptedResponse
from tests.kit.fakes import ANSWER, FakeEngine, FakeStore, Reading, Site
from tests.kit.waiting import eventually
from tests.unit.runs.readers import DELTA, id_of, idle, refused
from tests.unit.runs.upkeep import kept, looked_after, statuses

LIMIT = 100_000
LIMITED = limited_by(
    "key_1", "p", Limits(requests_per_minute=10, tokens_per_day=LIMIT, concurrent_responses=1), Limits()
)
HALF = "<|channel|>final<|message|>Half"


class OneKey:
    """One key, in memory, that can be away."""

    def __init__(self) -> None:
        self.is_away = False

    async def get(self, key_id: str) -> KeyRecord | None:
        if self.is_away:
            raise StoreError("away")
        return KeyRecord(id=key_id, project="p", digest="d", limited=LIMITED) if key_id == "key_1" else None

    async def limits_of_project(self, project: str) -> Sequence[LimitedSubject]:
        return LIMITED if project == "default" else ()


def worker(name: str, turns: Sequence[Sequence[str | asyncio.Event]], store: FakeStore, rates: Rates) -> Site:
    site = Site(FakeEngine(turns), store, worker=name, rates=rates)
    site.service.keys = OneKey()
    return site


BY_KEY = Caller.by_key(KeyRecord(id="key_1", project="default", digest="d", limited=LIMITED))
SIGNED_IN = Caller.by_session("default", "a session of the admin", "", scopes=(), limited=LIMITED)


async def ask(site: Site, caller: Caller = BY_KEY) -> Reading:
    origin = Origin.of(caller, "test", request_id="")
    request = parse_create({"input": "hi", "background": True, "max_output_tokens": 500})
    return Reading(site, await site.service.create(request, origin))


async def begun(caller: Caller = BY_KEY) -> tuple[FakeStore, Rates, Site, Reading]:
    """Return a store, the limits, a worker on which a response has said a half, and its reader."""
    store, rates = FakeStore(), Rates(MemoryLedger())
    first = worker("a", [[HALF, asyncio.Event(), ANSWER]], store, rates)
    reading = await ask(first, caller)
    await reading.until(DELTA)
    return store, rates, first, reading


async def left(rates: Rates) -> dict[str, int]:
    lines = await rates.lines(LIMITED, since=asyncio.get_running_loop().time())
    return {line.name: line.remaining for line in lines}


def running(rates: Rates) -> int:
    return sum(map(len, rates.ledger.holders.values()))


async def go_on(site: Site) -> Reading:
    (claimed,) = (await site.store.reclaim(site.worker, dead_before=float("inf"))).claimed
    await site.service.run_again(claimed)
    return await site.follow(str(claimed.response["id"]))


async def assert_counted_once(reading: Reading, rates: Rates) -> None:
    usage = (await reading.to_the_end())[-1]["response"]["usage"]  # type: ignore[index]
    await eventually(lambda: running(rates) == 0)
    told = await left(rates)
    assert told["requests"] == 9
    assert 0 <= told["tokens"] - (LIMIT - usage["total_tokens"]) <= 1, "a day gives back more than one a second"


@pytest.mark.parametrize("caller", [BY_KEY, SIGNED_IN], ids=["by a key", "signed in"])
async def test_one_that_was_given_back_is_counted_where_it_ends(caller: Caller) -> None:
    store, rates, first, _ = await begun(caller)
    assert running(rates) == 1
    await first.registry.aclose()
    assert running(rates) == 0
    assert (await left(rates))["tokens"] < LIMIT - 500, "what it may say stays reserved"
    gate = asyncio.Event()
    second = worker("b", [[gate, ANSWER]], store, rates)
    again = await go_on(second)
    assert running(rates) == 1
    gate.set()
    await assert_counted_once(again, rates)


async def test_one_that_a_slow_worker_lost_is_counted_where_it_ends() -> None:
    store, rates, first, lost = await begun()
    second = worker("b", [[ANSWER]], store, rates)
    again = await go_on(second)
    first.registry.lose(id_of(lost))
    await assert_counted_once(again, rates)
    assert not len(first.registry)


async def test_while_its_key_cannot_be_read_it_waits() -> None:
    store, rates, first, _ = await begun()
    await first.registry.aclose()
    second = worker("b", [[ANSWER]], store, rates)
    keys = OneKey()
    keys.is_away = True
    second.service.keys = keys
    (claimed,) = (await store.reclaim("b", dead_before=float("inf"))).claimed
    assert (await refused(second.service.run_again(claimed))).retry_after is not None, "whoever claimed it tries again"
    keys.is_away = False
    await second.service.run_again(claimed)
    reading = await second.follow(str(claimed.response["id"]))
    await assert_counted_once(reading, rates)


async def test_one_whose_key_was_deleted_fails() -> None:
    """Which models it had, and what else, nobody knows any more."""
    other = KeyRecord(id="key_deleted", project="default", digest="d", limited=LIMITED)
    store, rates, first, _ = await begun(Caller.by_key(other))
    await first.registry.aclose()
    second = worker("b", [[ANSWER]], store, rates)
    async with looked_after(second, worker="b"):
        await eventually(lambda: statuses(store) == ["failed"])
    assert not second.engine.requests, "nothing is generated for it"


async def test_one_that_can_only_fail_is_counted_where_it_fails() -> None:
    """Its worker was killed: nobody else gives back what was reserved for its answer."""
    store, rates, killed, reading = await begun()
    left_behind = store._responses["default", id_of(reading)]
    assert isinstance(left_behind.of, AcceptedResponse)
    left_behind.of = replace(left_behind.of, request=None)  # as of a stream that another worker followed
    second = worker("b", [[ANSWER]], store, rates)
    async with looked_after(second, worker="b"):
        await eventually(lambda: statuses(store) == ["failed"])
        usage = kept(store)[0]["usage"]
        await eventually(lambda: running(rates) <= 1)
        used = LIMIT - usage["total_tokens"]
        assert 0 <= (await left(rates))["tokens"] - used <= 1
    killed.registry.lose(id_of(reading))
    await idle(killed)
    assert 0 <= (await left(rates))["tokens"] - used <= 1, "and no second time"


async def deferred(store: FakeStore, rates: Rates) -> tuple[Site, Reading]:
    """Return a site with a response that has ended, and whose end waits for the store."""
    gate = asyncio.Event()
    first = worker("a", [[HALF, gate, ANSWER]], store, rates)
    reading = await ask(first)
    await reading.until(DELTA)
    store.failure = StoreError("away")
    gate.set()
    assert (await reading.to_the_end())[-1]["type"] == "response.failed"
    await eventually(lambda: running(rates) == 0)
    assert (await left(rates))["tokens"] < LIMIT - 500, "what it may say stays reserved"
    store.failure = None
    return first, reading


async def test_an_end_that_waits_for_the_store_is_counted_once_it_is_kept() -> None:
    store, rates = FakeStore(), Rates(MemoryLedger())
    first, reading = await deferred(store, rates)
    await first.service.unsaved.save()
    await assert_counted_once(reading, rates)


async def test_an_end_that_another_worker_took_over_is_counted_there() -> None:
    store, rates = FakeStore(), Rates(MemoryLedger())
    first, _ = await deferred(store, rates)
    again = await go_on(worker("b", [[ANSWER]], store, rates))
    await first.service.unsaved.save()
    await assert_counted_once(again, rates)


async def test_an_end_that_its_worker_cannot_keep_any_more_is_counted_by_the_next() -> None:
    store, rates = FakeStore(), Rates(MemoryLedger())
    first, _ = await deferred(store, rates)
    first.service.unsaved.leave()
    await assert_counted_once(await go_on(worker("b", [[ANSWER]], store, rates)), rates)
