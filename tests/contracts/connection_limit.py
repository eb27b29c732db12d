"""What every connection limit does."""

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from responses_app.limits.ledger import Ask, BaseLedger, Hold
from responses_app.limits.rates import CONNECTIONS, ConnectionLimit

OpenLimit = Callable[[int], Awaitable[ConnectionLimit]]


class Holders:
    """Count connections that believe to hold a slot, and remember the most there were at once."""

    def __init__(self) -> None:
        self.now = 0
        self.most = 0

    async def come_and_go(self, limit: ConnectionLimit, chance: random.Random, *, times: int) -> None:
        """Try `times` times to take a slot, and hold it for a few turns of the loop."""
        for _ in range(times):
            if await limit.acquire():
                self.now += 1
                self.most = max(self.most, self.now)
                await turns(chance.randrange(1, 6))
                self.now -= 1
                limit.release()
            await turns(chance.randrange(3))


async def turns(count: int) -> None:
    """Let the loop turn `count` times."""
    for _ in range(count):
        await asyncio.sleep(0)


async def fill(limit: ConnectionLimit, count: int) -> None:
    """Take `count` slots, all of which must be free."""
    assert await asyncio.gather(*(limit.acquire() for _ in range(count))) == [True] * count


async def total(limit: ConnectionLimit) -> int:
    """Count the connections of all workers."""
    return (await limit.ledger.ask(Ask((), [Hold(CONNECTIONS, 0)]))).held[0]


class ConnectionLimitContract:
    """Give a subclass the fixtures `make_ledger()`, and `open_limit(limit)` over a ledger closed at the end."""

    async def test_grants_up_to_the_limit_and_no_more(self, open_limit: OpenLimit) -> None:
        limit = await open_limit(2)
        assert [await limit.acquire() for _ in range(4)] == [True, True, False, False]
        assert limit.open_connections == 2
        assert await total(limit) == 2
        assert limit.degraded is None

    async def test_a_released_slot_is_free_at_once(self, open_limit: OpenLimit) -> None:
        limit = await open_limit(1)
        for _ in range(5):
            assert await limit.acquire()
            assert not await limit.acquire()
            limit.release()
            assert limit.open_connections == 0
        assert await total(limit) == 0

    async def test_a_limit_of_zero_grants_nothing(self, open_limit: OpenLimit) -> None:
        limit = await open_limit(0)
        assert not await limit.acquire()

    async def test_many_at_once_get_exactly_what_is_there(self, open_limit: OpenLimit) -> None:
        limit = await open_limit(7)
        answers = await asyncio.gather(*(limit.acquire() for _ in range(50)))
        assert sum(answers) == limit.open_connections == await total(limit) == 7

    @pytest.mark.parametrize("seed", range(3))
    async def test_never_over_the_limit(self, open_limit: OpenLimit, seed: int) -> None:
        limit = await open_limit(5)
        holders, chance = Holders(), random.Random(seed)
        await asyncio.gather(*(holders.come_and_go(limit, chance, times=30) for _ in range(20)))
        assert holders.most == 5
        assert await total(limit) == limit.open_connections == 0
        await fill(limit, 5)

    async def test_a_cancelled_acquire_takes_no_slot(self, open_limit: OpenLimit) -> None:
        limit = await open_limit(3)
        for count in range(60):
            task = asyncio.create_task(limit.acquire())
            await turns(count % 20)
            task.cancel()
            [answer] = await asyncio.gather(task, return_exceptions=True)
            if answer is True:
                limit.release()
        assert limit.open_connections == 0
        assert await total(limit) == 0

    async def test_a_slot_granted_in_the_turn_of_the_cancellation_is_given_back(self, open_limit: OpenLimit) -> None:
        limit = await open_limit(1)
        task = asyncio.create_task(limit.acquire())
        async with asyncio.timeout(60):
            while limit.open_connections == 0:  # until it is granted; the task goes on one turn later
                await turns(1)
        task.cancel()
        [answer] = await asyncio.gather(task, return_exceptions=True)
        if answer is True:  # it had no need to wait, so there was nothing to cancel
            limit.release()
        assert limit.open_connections == 0

    async def test_a_release_too_many_is_logged_and_changes_nothing(
        self, open_limit: OpenLimit, caplog: pytest.LogCaptureFixture
    ) -> None:
        limit = await open_limit(1)
        limit.release()
        assert "released that nobody held" in caplog.text
        assert [await limit.acquire() for _ in range(2)] == [True, False]

    async def test_closing_gives_all_back_and_refuses_more(self, open_limit: OpenLimit) -> None:
        limit = await open_limit(3)
        await fill(limit, 2)
        await limit.ledger.aclose()
        await limit.ledger.aclose()
        assert limit.open_connections == 0
        assert not await limit.acquire()
        limit.release()
        assert limit.open_connections == 0
        assert await total(limit) == 0

    async def test_closing_answers_those_who_wait(self, open_limit: OpenLimit) -> None:
        limit = await open_limit(3)
        waiting = [asyncio.create_task(limit.acquire()) for _ in range(3)]
        counting = asyncio.create_task(total(limit))
        await turns(1)
        await limit.ledger.aclose()
        async with asyncio.timeout(60):
            await asyncio.gather(*waiting, counting)
        assert limit.open_connections == 0

    async def test_wants_to_be_started_and_only_once(
        self, make_ledger: Callable[[], BaseLedger], open_limit: OpenLimit
    ) -> None:
        new = ConnectionLimit(make_ledger(), 1)
        with pytest.raises(RuntimeError, match="not started"):
            await new.acquire()
        await new.ledger.aclose()
        started = await open_limit(1)
        with pytest.raises(RuntimeError, match="once"):
            await started.ledger.start()
