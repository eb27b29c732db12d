"""What was spent: how long it is remembered, and what counts while the store is away."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import cast

import pytest

from responses_app.kit.clock import StoreClock
from responses_app.kit.errors import StoreError
from responses_app.protocol.prices import Price
from responses_app.protocol.rate_limits import NO_LIMITS, LimitedSubject, Limits, QuotaExceeded, limited_by
from responses_app.resources.usage.fields import UsageQuery, UsageSum, UsedTokens
from responses_app.runs import spending
from responses_app.runs.spending import FRESH_SECONDS, STALE_SECONDS, Spending

NOVEMBER = datetime(2026, 11, 27, tzinfo=UTC).timestamp()
PRICES = {"m": Price(Decimal(1_000_000), Decimal(1_000_000), Decimal(1_000_000))}  # 1 a token


class Store:
    """Says what was spent, and counts how often it was asked."""

    def __init__(self) -> None:
        self.spent = 0
        self.limit: int | None = None
        self.asked: list[UsageQuery] = []
        self.error: Exception | None = None
        self.gate: asyncio.Event | None = None

    async def sums(self, query: UsageQuery) -> Sequence[UsageSum]:
        self.asked.append(query)
        if self.gate is not None:
            await self.gate.wait()
        if self.error is not None:
            raise self.error
        unpriced = UsageSum(start=0, requests=1, tokens=UsedTokens(input=99, cached=0, output=0), model="n")
        return [
            UsageSum(start=0, requests=1, tokens=UsedTokens(input=self.spent, cached=0, output=0), model="m"),
            unpriced,
        ]

    async def organization_spend_limit(self) -> int | None:
        return self.limit


class Clock:
    """The time, as tests move it."""

    def __init__(self) -> None:
        self.loop = 1000.0
        self.store = NOVEMBER

    def __call__(self) -> float:
        return self.store


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(spending, "_clock", lambda: clock.loop)
    return clock


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
async def spent(store: Store, clock: Clock) -> AsyncIterator[Spending]:
    made = Spending(
        store.sums, store.organization_spend_limit, prices=PRICES, currency="usd", now=cast(StoreClock, clock)
    )
    yield made
    await made.aclose()


def project(cents: int | None) -> Sequence[LimitedSubject]:
    """Return a project that may spend so much."""
    return limited_by("", "a", NO_LIMITS, Limits(monthly_spend_cents=cents, websockets=1))


async def test_a_limit_is_reached_by_what_was_spent_this_month(spent: Spending, store: Store, clock: Clock) -> None:
    store.spent = 5
    await spent.check(project(501))
    with pytest.raises(QuotaExceeded, match=r"project 'a' for November 2026 \(UTC\) is 5.00 USD, of which 5.00 USD"):
        await spent.check(project(500))
    query = next(each for each in store.asked if each.projects)
    assert (query.start, query.end) == (
        datetime(2026, 11, 1, tzinfo=UTC).timestamp(),
        datetime(2026, 12, 1, tzinfo=UTC).timestamp(),
    )
    # A new month is another sum, at once.
    clock.store = datetime(2026, 12, 1, tzinfo=UTC).timestamp()
    store.spent = 0
    await spent.check(project(500))
    assert store.asked[-1].end == datetime(2027, 1, 1, tzinfo=UTC).timestamp()


async def test_a_limit_of_nothing_lets_nobody_spend(spent: Spending) -> None:
    with pytest.raises(QuotaExceeded):
        await spent.check(project(0))


async def test_what_is_known_costs_no_query_and_is_read_again_beside(
    spent: Spending, store: Store, clock: Clock
) -> None:
    await spent.check(project(500))
    asked = len(store.asked)
    assert asked == 2  # of the organization and of the project
    for _ in range(10):
        await spent.check(project(500))
    assert len(store.asked) == asked
    clock.loop += FRESH_SECONDS
    store.spent = 5
    await spent.check(project(500))  # the old sum counts once more
    await asyncio.gather(*spent._reading.values())
    assert len(store.asked) == asked + 2
    with pytest.raises(QuotaExceeded):
        await spent.check(project(500))


async def test_what_is_stale_is_waited_for_once_by_all(spent: Spending, store: Store, clock: Clock) -> None:
    await spent.check(project(500))
    clock.loop += STALE_SECONDS
    store.spent, store.asked = 5, []
    refused = await asyncio.gather(*(spent.check(project(500)) for _ in range(20)), return_exceptions=True)
    assert [type(each) for each in refused] == [QuotaExceeded] * 20
    assert len(store.asked) == 2


async def test_the_organization_is_limited_without_a_key(spent: Spending, store: Store, clock: Clock) -> None:
    store.spent, store.limit = 5, 500
    with pytest.raises(QuotaExceeded, match=r"of this server for November 2026 \(UTC\) is 5.00 USD, and it is spent"):
        await spent.check(())
    store.limit = None
    clock.loop += STALE_SECONDS
    await spent.check(())


async def test_while_the_store_is_away_what_was_known_counts(spent: Spending, store: Store, clock: Clock) -> None:
    store.error = StoreError("away")
    await spent.check(project(0))  # nobody is refused since it is away
    asked = len(store.asked)
    await spent.check(project(0))
    assert len(store.asked) <= asked + 2
    store.error, store.spent = None, 5
    clock.loop += STALE_SECONDS
    with pytest.raises(QuotaExceeded):
        await spent.check(project(500))
    store.error = StoreError("away")
    clock.loop += 10 * STALE_SECONDS
    with pytest.raises(QuotaExceeded):
        await spent.check(project(500))


async def test_a_store_that_hangs_holds_requests_once(
    spent: Spending, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spending, "WAIT_SECONDS", 0.01)
    store.gate = asyncio.Event()
    waited: list[object] = []
    wait = asyncio.wait
    monkeypatch.setattr(asyncio, "wait", lambda *args, **more: waited.append(args) or wait(*args, **more))
    for _ in range(5):
        await spent.check(project(0))
    assert len(waited) == 1
    await asyncio.sleep(0)  # the questions are tasks of their own
    assert len(store.asked) == 2, "one question of each"
    store.gate.set()
    await asyncio.gather(*spent._reading.values())
    with pytest.raises(QuotaExceeded):
        await spent.check(project(0))


async def test_without_prices_nothing_is_read_and_the_log_says_once_that_a_limit_is_none(
    store: Store, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    made = Spending(store.sums, store.organization_spend_limit, prices={}, currency="usd", now=cast(StoreClock, clock))
    await made.check(project(None))
    assert not caplog.records
    for _ in range(3):
        await made.check(project(0))
    assert store.asked == []
    assert [record.getMessage() for record in caplog.records] == [
        "project:a has a spend limit that limits nothing, since no model has a price (PRICES)"
    ]
    assert not await made.is_reached("project:a", 0)
