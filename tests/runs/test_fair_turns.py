"""The engine's turns: shared between projects, bounded, and never lost."""

import asyncio
import random
from collections import Counter
from contextlib import AsyncExitStack

import pytest

from responses_app.protocol.errors import ApiError
from responses_app.runs.fair_turns import FairTurns
from responses_app.runs.registry import RunLimits
from tests.runs.fakes import FakeEngine, Site


class Office:
    """Asks for turns, and ends those it has."""

    def __init__(self, turns: FairTurns) -> None:
        self._turns = turns
        self.order: list[str] = []  # who got a turn
        self._ends: dict[str, list[asyncio.Event]] = {}
        self.tasks: list[asyncio.Task[None]] = []

    async def ask(self, project: str, times: int = 1, *, priority: int = 0, label: str = "") -> None:
        """Ask for turns; those that are there are had when this returns."""
        for _ in range(times):
            self.tasks.append(asyncio.create_task(self._have(project, priority, label or project)))
        await settle()

    async def end(self, project: str) -> str:
        """End the oldest turn of a project; return who had the next."""
        before = len(self.order)
        self._ends[project].pop(0).set()
        await settle()
        return ",".join(self.order[before:])

    async def _have(self, project: str, priority: int, label: str) -> None:
        async with self._turns.turn(project, priority):
            self.order.append(label)
            end = asyncio.Event()
            self._ends.setdefault(project, []).append(end)
            await end.wait()

    async def close(self) -> None:
        """End all."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_without_a_bound_nobody_waits() -> None:
    turns = FairTurns()
    async with AsyncExitStack() as stack:
        for _ in range(1000):
            await stack.enter_async_context(turns.turn("a", 0))
        turns.check("a")


async def test_a_project_that_comes_later_has_its_share_as_soon_as_turns_end() -> None:
    office = Office(FairTurns(max_running=4, max_queued=1000))
    await office.ask("a", 100)
    await office.ask("b", 10)
    assert office.order == ["a"] * 4
    assert [await office.end("a") for _ in range(2)] == ["b", "b"]
    for _ in range(5):  # each has two from now on
        assert await office.end("a") == "a"
        assert await office.end("b") == "b"
    await office.close()


async def test_projects_take_turns_where_there_is_one() -> None:
    office = Office(FairTurns(max_running=1, max_queued=1000))
    for project in ("a", "b", "c"):
        await office.ask(project, 3)
    seen = [office.order[0]]
    for _ in range(8):
        seen.append(await office.end(seen[-1]))
    assert seen == ["a", "b", "c"] * 3
    await office.close()


async def test_a_priority_moves_the_order_inside_a_project_and_nothing_waits_for_ever() -> None:
    time = [0.0]
    office = Office(FairTurns(max_running=1, max_queued=1000, now=lambda: time[0]))
    await office.ask("a")
    await office.ask("a", priority=10, label="flex")
    await office.ask("a", label="default")
    await office.ask("a", priority=-10, label="priority")
    time[0] = 15
    await office.ask("a", label="late")
    assert [await office.end("a") for _ in range(4)] == ["priority", "default", "flex", "late"]
    await office.close()


async def test_who_waits_is_bounded_for_each_project_by_itself() -> None:
    time = [0.0]
    turns = FairTurns(max_running=2, max_queued=3, now=lambda: time[0])
    office = Office(turns)
    turns.check("a")
    await office.ask("a", 5)
    with pytest.raises(ApiError, match="ENGINE_MAX_QUEUED") as refused:
        turns.check("a")
    assert (refused.value.status, refused.value.code) == (503, "server_is_overloaded")
    assert refused.value.retry_after == 2  # four turns of 1 s, two at once
    turns.check("b")
    time[0] = 20
    await office.end("a")
    await office.ask("a")
    with pytest.raises(ApiError) as refused:
        turns.check("a")
    assert refused.value.retry_after == 6  # turns take longer than it knew
    await office.close()


async def test_nothing_is_lost_however_they_come_and_go() -> None:
    chance = random.Random(1)
    turns = FairTurns(max_running=3, max_queued=1000)
    now, most = Counter[str](), 0

    async def have(project: str) -> None:
        nonlocal most
        async with turns.turn(project, chance.randrange(-5, 5)):
            now[project] += 1
            most = max(most, now.total())
            try:
                for _ in range(chance.randrange(4)):
                    await asyncio.sleep(0)
            finally:
                now[project] -= 1

    tasks = [asyncio.create_task(have(chance.choice("abcd"))) for _ in range(2000)]
    while not all(task.done() for task in tasks):
        for task in chance.sample(tasks, 20):
            if chance.random() < 0.3:
                task.cancel()
        await asyncio.sleep(0)
    await asyncio.gather(*tasks, return_exceptions=True)
    assert most == 3
    assert (turns.running, turns.waiting) == (0, 0)
    assert not turns._running
    assert not turns._served
    async with turns.turn("a", 0), turns.turn("b", 0), turns.turn("c", 0):
        assert turns.running == 3


async def test_a_response_that_waits_for_the_engine_can_be_cancelled() -> None:
    held = asyncio.Event()
    site = Site(FakeEngine([[held]]), run_limits=RunLimits(max_runs=10, max_turns=1, max_turns_queued=1))
    first = await site.begin(input="first", project="a")
    await settle()
    second = await site.begin(input="second", project="a")
    await settle()
    turns = site.registry.queues.engine
    assert (turns.running, turns.waiting) == (1, 1)
    with pytest.raises(ApiError, match="ENGINE_MAX_QUEUED"):
        await site.begin(input="third", project="a")
    other = await site.begin(input="other", project="b")
    await settle()
    assert turns.waiting == 2
    for reading in (second, other):
        reading.reader.cancel("this test")
    await settle()
    assert turns.waiting == 0
    first.reader.cancel("this test")
    await settle()
    assert turns.running == 0
    await site.registry.aclose()
