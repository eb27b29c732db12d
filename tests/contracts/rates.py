"""What limits of keys and projects do, wherever they are counted."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from responses_app.limits.ledger import BaseLedger
from responses_app.limits.rates import FREE, Rates, Ticket
from responses_app.protocol.rate_limits import NOTHING, Amount, LimitedSubject, LimitLine, Limits, RateLimited, Slot

MINUTE = 60.0
OpenRates = Callable[[], Awaitable[Rates]]


class Clock:
    """A time that only the test moves on."""

    def __init__(self) -> None:
        self.milliseconds = 1_700_000_000_000.0

    def __call__(self) -> float:
        return self.milliseconds

    def pass_by(self, seconds: float) -> None:
        """Let time pass."""
        self.milliseconds += seconds * 1000


def key(name: str = "a", **limits: int) -> LimitedSubject:
    """Return a key with these limits."""
    return LimitedSubject(f"key:{name}", Limits(**limits))


def project(name: str = "p", **limits: int) -> LimitedSubject:
    """Return a project with these limits."""
    return LimitedSubject(f"project:{name}", Limits(**limits))


async def ask(
    rates: Rates, *who: LimitedSubject, input: int = 0, output: int = 1, slot: Slot = Slot.RESPONSE
) -> Ticket:
    """Admit one request."""
    return await rates.admit(who, Amount(1, input, output), slot)


async def refused(rates: Rates, *who: LimitedSubject, **amount: int) -> RateLimited:
    """Return why a request is refused."""
    with pytest.raises(RateLimited) as caught:
        await ask(rates, *who, **amount)
    return caught.value


async def line(rates: Rates, who: LimitedSubject, name: str) -> LimitLine:
    """Return what is told of a limit now."""
    lines = await rates.lines([who], since=asyncio.get_running_loop().time())
    return next(each for each in lines if each.name == name)


class RatesContract:
    """Give a subclass the fixture `make_ledger(now=…)`."""

    @pytest.fixture
    def clock(self) -> Clock:
        return Clock()

    @pytest.fixture
    async def open_rates(self, make_ledger: Callable[..., BaseLedger], clock: Clock) -> AsyncIterator[OpenRates]:
        opened: list[BaseLedger] = []

        async def open_one() -> Rates:
            opened.append(make_ledger(now=clock))
            await opened[-1].start()
            return Rates(opened[-1])

        yield open_one
        for one in opened:
            await one.aclose()

    @pytest.fixture
    async def rates(self, open_rates: OpenRates) -> Rates:
        return await open_rates()

    async def test_without_limits_everything_is_free(self, rates: Rates) -> None:
        assert await ask(rates) is FREE
        assert await ask(rates, key(), project()) is FREE
        assert await rates.lines([key()], since=asyncio.get_running_loop().time()) == []

    async def test_a_minute_of_requests_at_once_and_then_as_they_come_back(self, rates: Rates, clock: Clock) -> None:
        who = key(requests_per_minute=60)
        for _ in range(60):
            (await ask(rates, who)).settle()
        assert (await refused(rates, who)).retry_after == 1
        clock.pass_by(0.999)
        await refused(rates, who)
        clock.pass_by(0.001)
        await ask(rates, who)
        await refused(rates, who)
        clock.pass_by(10)
        for _ in range(10):
            await ask(rates, who)
        await refused(rates, who)

    @pytest.mark.parametrize("limit", [1, 7, 60, 997])
    async def test_exactly_the_limit_fits(self, rates: Rates, clock: Clock, limit: int) -> None:
        who = key(requests_per_minute=limit)
        for _ in range(2):
            for _ in range(limit):
                await ask(rates, who)
            await refused(rates, who)
            clock.pass_by(MINUTE)

    async def test_what_is_refused_takes_nothing(self, rates: Rates, clock: Clock) -> None:
        who = key(requests_per_minute=2, input_tokens_per_minute=100)
        await ask(rates, who, input=80)
        assert "input tokens per min: Limit 100, Used 80, Requested 80" in (await refused(rates, who, input=80)).message
        await ask(rates, who, input=20)
        error = await refused(rates, who, input=20)
        assert error.retry_after == 30
        assert "requests per min (RPM): Limit 2, Used 2, Requested 1. Please try again in 30s." in error.message

    async def test_keys_of_a_project_share_its_limit_and_no_other(self, rates: Rates) -> None:
        both = project(requests_per_minute=3)
        one, two = key("one", requests_per_minute=2), key("two", requests_per_minute=2)
        await ask(rates, one, both)
        await ask(rates, one, both)
        assert "this API key (one)" in (await refused(rates, one, both)).message
        await ask(rates, two, both)
        assert "project 'p'" in (await refused(rates, two, both)).message
        await ask(rates, two, project("q", requests_per_minute=3))

    async def test_what_a_project_refuses_its_key_keeps(self, rates: Rates, clock: Clock) -> None:
        own, shared = key(requests_per_minute=2), project(concurrent_responses=1)
        first = await ask(rates, own, shared)
        for _ in range(5):
            await refused(rates, own, shared)
        first.settle()
        await ask(rates, own, shared)

    async def test_output_is_settled_at_the_end(self, rates: Rates, clock: Clock) -> None:
        who = key(output_tokens_per_minute=100)
        ticket = await ask(rates, who)
        assert (await line(rates, who, "tokens")).remaining == 99
        ticket.settle(Amount(1, 0, 160))
        assert (await line(rates, who, "tokens")).remaining == 0
        assert (await refused(rates, who)).retry_after == 37  # 61 tokens too many
        clock.pass_by(37)
        await ask(rates, who)

    async def test_what_was_asked_for_and_not_said_is_given_back(self, rates: Rates) -> None:
        who = key(output_tokens_per_minute=100, tokens_per_day=1000)
        ticket = await ask(rates, who, input=5, output=90)
        await refused(rates, who, input=5, output=20)
        ticket.settle(Amount(1, 5, 10))
        assert (await line(rates, who, "tokens")).remaining == 90
        await ask(rates, who, input=5, output=90)

    async def test_more_output_than_a_minute_has_waits_for_a_full_bucket(self, rates: Rates, clock: Clock) -> None:
        who = key(output_tokens_per_minute=100)
        (await ask(rates, who, output=5000)).settle(Amount(1, 0, 50))
        assert (await refused(rates, who, output=5000)).retry_after == 30
        clock.pass_by(30)
        await ask(rates, who, output=5000)

    async def test_input_that_never_fits_is_not_tried_again(self, rates: Rates, clock: Clock) -> None:
        who = key(input_tokens_per_minute=100)
        error = await refused(rates, who, input=101)
        assert (error.retry_after, error.headers) == (None, {"x-should-retry": "false"})
        assert "Request too large" in error.message
        await ask(rates, who, input=100)
        assert (await refused(rates, who, input=100)).headers == {"retry-after": "60"}

    async def test_input_counts_also_where_it_came_to_nothing(self, rates: Rates) -> None:
        who = key(input_tokens_per_minute=100)
        (await ask(rates, who, input=60)).settle()
        await refused(rates, who, input=60)

    async def test_later_turns_read_their_prompts_too(self, rates: Rates) -> None:
        who = key(input_tokens_per_minute=100, tokens_per_day=1000)
        (await ask(rates, who, input=10)).settle(Amount(1, 90, 3))
        assert (await line(rates, who, "tokens")).remaining == 10

    async def test_a_day_of_tokens_counts_both(self, rates: Rates, clock: Clock) -> None:
        who = key(tokens_per_day=86_400)
        (await ask(rates, who, input=80_000)).settle(Amount(1, 80_000, 6_400))
        assert (await refused(rates, who, input=60)).retry_after == 61
        clock.pass_by(61)
        await ask(rates, who, input=60)

    async def test_zero_allows_nothing(self, rates: Rates) -> None:
        assert (await refused(rates, key(requests_per_minute=0))).headers == {"x-should-retry": "false"}
        await refused(rates, key(output_tokens_per_minute=0))
        await refused(rates, key(concurrent_responses=0))
        assert (await line(rates, key(requests_per_minute=0), "requests")).remaining == 0

    async def test_slots_are_free_once_they_are_given_back(self, rates: Rates) -> None:
        who = key(concurrent_responses=2)
        first, second = await ask(rates, who), await ask(rates, who)
        error = await refused(rates, who)
        assert error.retry_after == 1
        assert "concurrent responses: Limit 2, Used 2" in error.message
        first.settle()
        first.settle()  # twice is once
        await ask(rates, who)
        await refused(rates, who)
        second.settle()
        await ask(rates, who)

    async def test_slots_of_websockets_are_others(self, rates: Rates) -> None:
        who = key(websockets=1, concurrent_responses=1, requests_per_minute=5)
        await rates.admit([who], NOTHING, Slot.WEBSOCKET)
        await ask(rates, who)
        with pytest.raises(RateLimited, match="open WebSockets"):
            await rates.admit([who], NOTHING, Slot.WEBSOCKET)
        assert (await line(rates, who, "requests")).remaining == 4  # to connect is not a request

    async def test_the_refusal_names_what_takes_longest(self, rates: Rates) -> None:
        who = key(requests_per_minute=60, input_tokens_per_minute=100, concurrent_responses=1)
        await ask(rates, who, input=100)
        assert "input tokens" in (await refused(rates, who, input=50)).message

    async def test_clients_are_told_what_is_left_and_when_all_is(self, rates: Rates, clock: Clock) -> None:
        who = key(requests_per_minute=6, input_tokens_per_minute=1000, tokens_per_day=1500)
        await ask(rates, who, input=100)
        assert await line(rates, who, "requests") == LimitLine("requests", 6, 5, pytest.approx(10_000, abs=50))
        assert await line(rates, who, "tokens") == LimitLine("tokens", 1000, 900, pytest.approx(6000, abs=50))
        clock.pass_by(3)
        assert (await line(rates, who, "tokens")).remaining == 950

    async def test_what_was_heard_longest_ago_is_no_longer_known(
        self, rates: Rates, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("responses_app.limits.rates.MAX_HEARD", 2)
        one, two, three = (key(name, requests_per_minute=10) for name in "abc")
        for who in (one, two, one, three):
            await ask(rates, who)
        assert [rates.heard([who])[0].remaining for who in (one, two, three)] == [8, 10, 9]

    async def test_a_changed_limit_holds_at_once(self, rates: Rates) -> None:
        for _ in range(2):
            await ask(rates, key(requests_per_minute=2))
        await refused(rates, key(requests_per_minute=2))
        await refused(rates, key(requests_per_minute=4))  # the part that was used stays the same: all of it
        await ask(rates, key())

    async def test_a_cancelled_ask_takes_no_slot(self, rates: Rates) -> None:
        who = key(concurrent_responses=1)
        for turns in range(40):
            task = asyncio.create_task(ask(rates, who))
            for _ in range(turns % 20):
                await asyncio.sleep(0)
            task.cancel()
            [ticket] = await asyncio.gather(task, return_exceptions=True)
            if isinstance(ticket, Ticket):
                ticket.settle()
        (await ask(rates, who)).settle()

    async def test_many_at_once_get_exactly_what_is_there(self, rates: Rates) -> None:
        who = key(requests_per_minute=30, concurrent_responses=20)
        tickets = await asyncio.gather(*(ask(rates, who) for _ in range(100)), return_exceptions=True)
        granted = [each for each in tickets if isinstance(each, Ticket)]
        assert len(granted) == 20
        for each in granted:
            each.settle()
        tickets = await asyncio.gather(*(ask(rates, who) for _ in range(100)), return_exceptions=True)
        assert sum(isinstance(each, Ticket) for each in tickets) == 10

    async def test_what_goes_on_elsewhere_is_counted_once(self, open_rates: OpenRates) -> None:
        who = key(requests_per_minute=10, output_tokens_per_minute=1000, concurrent_responses=1)
        first = await open_rates()
        asked = Amount(1, 0, 100)
        ticket = await first.admit([who], asked, Slot.RESPONSE)
        ticket.hand_over()
        ticket.settle(Amount(1, 0, 40))  # counts nothing more
        adopted = first.adopt([who], asked, Slot.RESPONSE)
        assert "concurrent responses" in (await refused(first, who)).message
        adopted.settle(Amount(1, 0, 70))
        assert (await line(first, who, "tokens")).remaining == 930
        assert (await line(first, who, "requests")).remaining == 9
        (await ask(first, who)).settle()

    async def test_what_goes_on_here_runs_whatever_the_limits_say(self, rates: Rates) -> None:
        who = key(requests_per_minute=1, concurrent_responses=1)
        own = await ask(rates, who)
        adopted = rates.adopt([who], Amount(1, 0, 1), Slot.RESPONSE)
        own.settle()
        adopted.settle()
        assert rates.adopt([key()], Amount(1, 0, 1), Slot.RESPONSE) is FREE

    @pytest.mark.parametrize("seed", range(3))
    async def test_never_more_than_the_bucket_and_what_came_back(self, rates: Rates, clock: Clock, seed: int) -> None:
        chance, limit = random.Random(seed), 50
        who = key(requests_per_minute=limit)
        began, granted = clock(), 0
        for _ in range(400):
            clock.pass_by(chance.random())
            try:
                await ask(rates, who)
            except RateLimited:
                continue
            granted += 1
            minutes = (clock() - began) / 60_000
            assert granted <= limit + limit * minutes + 0.01
        assert granted >= limit + limit * (clock() - began) / 60_000 - 2  # what came back before the first was lost
