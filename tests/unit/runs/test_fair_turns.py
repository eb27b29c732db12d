"""The engine's turns and threads, shared between projects: bounded, never lost, the short before the long."""

import asyncio
import contextlib
import gc
import random
import threading
import time
import weakref
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from engine.formats.harmony.encoding import encode_text
from engine.threads import check_given_up
from responses_app.protocol.errors import ApiError
from responses_app.protocol.tiers import BEHIND_ALL, PRIORITIES, QueueBounds
from responses_app.runs.plan.turns import LONG, LONG_THREADS, SHORT_THREADS, FairThreads, FairTurns, TurnPlace
from tests.kit.waiting import eventually

MANY = QueueBounds(1000)


class Office:
    """Asks for turns, and ends those it has."""

    def __init__(self, **settings: Any) -> None:
        self.time = 0.0
        self.turns = FairTurns(**{"now": lambda: self.time, "bounds": MANY, **settings})
        self.order: list[str] = []  # who got a turn
        self._ends: dict[str, list[asyncio.Event]] = {}
        self.tasks: list[asyncio.Task[None]] = []

    async def ask(
        self, project: str, times: int = 1, *, tier: str = "default", label: str = "", of_rollout: bool = False
    ) -> None:
        """Ask for turns as requests do; those that are there are had when this returns."""
        for _ in range(times):
            place = self.turns.place(project, tier, PRIORITIES[tier], of_rollout=of_rollout)
            place.admit()
            self.tasks.append(asyncio.create_task(self._have(place, label or project)))
        await settle()

    async def end(self, label: str) -> str:
        """End the oldest turn of these; return who had the next."""
        before = len(self.order)
        self._ends[label].pop(0).set()
        await settle()
        return ",".join(self.order[before:])

    def refused(self, project: str, tier: str = "default") -> ApiError:
        """Return why one more cannot come."""
        with pytest.raises(ApiError, match="ENGINE_MAX_QUEUED") as refused:
            self.turns.place(project, tier, PRIORITIES[tier]).admit()
        assert (refused.value.status, refused.value.code) == (503, "server_is_overloaded")
        return refused.value

    async def _have(self, place: TurnPlace, label: str) -> None:
        async with place.turn():
            self.order.append(label)
            end = asyncio.Event()
            self._ends.setdefault(label, []).append(end)
            await end.wait()

    async def close(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        assert (self.turns.running, self.turns.waiting.total()) == (0, 0)
        assert not self.turns._admitted
        assert not self.turns._served


@pytest.fixture
async def offices() -> AsyncIterator[Callable[..., Office]]:
    """Open offices, of which nothing is left at the end."""
    made: list[Office] = []

    def opened(**settings: Any) -> Office:
        made.append(Office(**settings))
        return made[-1]

    yield opened
    for office in made:
        await office.close()


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_project_that_comes_later_has_its_share_as_soon_as_turns_end(offices: Callable[..., Office]) -> None:
    office = offices(max_running=4)
    await office.ask("a", 100)
    await office.ask("b", 10)
    assert office.order == ["a"] * 4
    assert [await office.end("a") for _ in range(2)] == ["b", "b"]
    for _ in range(5):  # each has two from now on
        assert await office.end("a") == "a"
        assert await office.end("b") == "b"


@pytest.mark.parametrize(
    "asked",
    [[("a", "a", False), ("b", "b", False), ("c", "c", False)], [("a", "rollout", True), ("a", "person", False)]],
    ids=["projects", "roll-outs and people"],
)
async def test_they_take_turns_where_there_is_one(
    asked: list[tuple[str, str, bool]], offices: Callable[..., Office]
) -> None:
    office = offices(max_running=1)
    for project, label, of_rollout in asked:
        await office.ask(project, 3, label=label, of_rollout=of_rollout)
    seen = [office.order[0]]
    for _ in range(3 * len(asked) - 1):
        seen.append(await office.end(seen[-1]))
    assert seen == [label for _, label, _ in asked] * 3


async def test_a_tier_moves_the_order_inside_a_project_and_nothing_waits_for_ever(
    offices: Callable[..., Office],
) -> None:
    office = offices(max_running=1)
    await office.ask("a")
    for tier in ("flex", "default", "priority", "ultrafast"):
        await office.ask("a", tier=tier, label=tier)
    office.time = 61
    await office.ask("a", label="late")
    assert [await office.end(each) for each in ("a", "ultrafast", "priority", "default", "flex")] == [
        "ultrafast",
        "priority",
        "default",
        "flex",  # it has waited for a minute
        "late",
    ]


async def test_flex_lets_all_projects_go_first_for_a_minute(offices: Callable[..., Office]) -> None:
    office = offices(max_running=2)
    await office.ask("a", 2, label="first")
    await office.ask("b", 10, tier="flex", label="flex")
    await office.ask("a", 10)
    assert [await office.end(each) for each in ("first", "first", "a")] == ["a", "a", "a"], "b has nothing, and yet"
    office.time = 61
    assert [await office.end(each) for each in ("a", "a")] == ["flex", "a"], "equal shares from now on"


async def test_what_may_take_hours_lets_all_go_first_for_most_of_its_time(offices: Callable[..., Office]) -> None:
    office = offices(max_running=1)
    await office.ask("b", label="first")
    late = office.turns.place("a", "default", BEHIND_ALL, 5400.0)
    office.tasks.append(asyncio.create_task(office._have(late, "late")))
    await settle()
    await office.ask("a")
    await office.ask("b", 2)
    assert [await office.end(each) for each in ("first", "a")] == ["a", "b"]
    await office.ask("b", 2)
    office.time = 5401
    assert await office.end("b") == "late", "it has waited long enough"


async def test_a_response_that_has_begun_keeps_its_place_for_its_later_turns(offices: Callable[..., Office]) -> None:
    office, order = offices(max_running=1, now=time.monotonic), []
    place = office.turns.place("a", "default", 0)
    async with place.turn():
        await office.ask("a", 2)

    async def go_on() -> None:
        async with place.turn():
            order.append(list(office.order))

    later = asyncio.create_task(go_on())
    await settle()
    await office.end("a")
    await later
    assert order == [["a"]], "before the second, which has waited longer for its turn, and came later"


async def test_who_waits_is_bounded_for_each_project_and_tier(offices: Callable[..., Office]) -> None:
    office = offices(max_running=2, bounds=QueueBounds(3, {"flex": 1, "scale": 0}))
    await office.ask("a", 5)
    assert office.refused("a").retry_after == 2, "four turns of 1 s, two at once"
    assert "3 of the service tier 'default'" in office.refused("a").message
    await office.ask("a", tier="flex")
    assert "'flex'" in office.refused("a", "flex").message
    assert office.refused("a", "scale").retry_after == 1
    await office.ask("b", 3)
    office.time = 5
    await office.ask("a", tier="priority")
    assert office.refused("b").retry_after == 20, "none of the turns has ended, so they take 5 s at least"
    office.time = 20
    await office.end("a")


async def test_how_long_to_wait_is_made_of_how_long_turns_took(offices: Callable[..., Office]) -> None:
    office = offices(max_running=1, bounds=QueueBounds(1))
    await office.ask("a", 2)
    for seconds in (7, 9):
        office.time += seconds
        await office.end("a")
        await office.ask("a")
    assert office.refused("a").retry_after == 16, "two turns of 8 s"
    office.time += 300
    assert office.refused("a").retry_after == 60, "longer than that nobody is sent away"


async def test_those_that_come_are_counted_before_they_ask() -> None:
    turns = FairTurns(max_running=1, bounds=QueueBounds(1))
    places = [turns.place("a", "default", 0) for _ in range(3)]
    for place in places[:2]:
        place.admit()
    with pytest.raises(ApiError, match="ENGINE_MAX_QUEUED"):
        places[2].admit()
    places[0].leave()
    places[2].admit()
    for place in places:
        place.leave()
        place.leave()
    assert not turns._admitted


async def test_nothing_is_lost_however_they_come_and_go() -> None:
    chance = random.Random(1)
    waits: list[float] = []
    turns = FairTurns(max_running=3, bounds=QueueBounds(1000), waited=lambda _, seconds: waits.append(seconds))
    now, most = Counter[str](), 0

    async def have(project: str) -> None:
        nonlocal most
        place = turns.place(project, "default", chance.randrange(-5, 5))
        place.admit()
        for _ in range(chance.randrange(1, 3)):
            async with place.turn():
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
    assert (turns.running, turns.waiting.total()) == (0, 0)
    assert not turns._running
    assert not turns._served
    assert waits
    held = [turns.place(project, "default", 0) for project in "abc"]
    assert all(place.ask() for place in held)
    assert turns.running == 3


async def test_what_stands_behind_all_is_served_only_while_nothing_else_waits() -> None:
    time = [1000.0]
    turns = FairTurns(max_running=4, bounds=QueueBounds(100), now=lambda: time[0])
    lines = [turns.place("a", "default", BEHIND_ALL) for _ in range(5)]
    for place in lines:
        place.admit()  # it takes no place from requests that somebody waits for
    assert not turns._admitted
    assert [place.ask() for place in lines] == [True, True, True, False, False], "the last turn is left free"
    assert lines[3].would_wait
    asked = [turns.place("a", "flex", PRIORITIES["flex"]) for _ in range(2)]
    assert [place.ask() for place in asked] == [True, False]
    time[0] += 1e6  # however long it waits
    other = turns.place("b", "default", 0)
    assert not other.ask()
    lines[0].leave()
    assert other.ask(), "of another project, which has nothing"
    lines[1].leave()
    assert asked[1].ask()
    assert not lines[3].ask()
    other.leave()
    assert not lines[3].ask(), "three run, and the last turn is left free"
    asked[0].leave()
    assert lines[3].ask()
    assert not lines[4].ask()
    for place in (*lines, *asked, other):
        place.leave()
    assert (turns.running, turns.waiting.total()) == (0, 0)


@pytest.mark.parametrize(("share", "of_8"), [(0.5, 4), (0.25, 2), (0.75, 6), (0.0, 0), (0.99, 8)])
async def test_rollouts_and_people_have_their_shares_while_both_wait(
    offices: Callable[..., Office], share: float, of_8: int
) -> None:
    office = offices(max_running=8, rollout_share=share)
    await office.ask("a", 200, label="rollout", of_rollout=True)
    assert office.order == ["rollout"] * 8, "nobody else waits, so they have all turns"
    await office.ask("a", 200, label="person")
    came = [await office.end("rollout") for _ in range(8 - of_8)]
    assert came == ["person"] * (8 - of_8), "nobody waits behind the roll-outs that came before"
    # From then on each has its share, whoever ends.
    for label in ("rollout", "person") * 3:
        if of_8 not in (0, 8):
            assert await office.end(label) == label


async def test_lines_of_batches_take_nothing_of_a_share() -> None:
    turns = FairTurns(max_running=8, bounds=MANY)
    lines = [turns.place("a", "default", BEHIND_ALL) for _ in range(7)]
    assert all(place.ask() for place in lines)
    rollouts = [turns.place("a", "default", 0, of_rollout=True) for _ in range(3)]
    assert [place.ask() for place in rollouts] == [True, False, False]
    person = turns.place("a", "default", 0)
    assert not person.ask()
    lines.pop().leave()
    assert person.ask(), "people have nothing of their share, however many lines run"
    for place in (*lines, *rollouts, person):
        place.leave()
    assert (turns.running, turns.waiting.total()) == (0, 0)


async def test_rollouts_fill_no_queue_but_their_own(offices: Callable[..., Office]) -> None:
    office = offices(max_running=1, bounds=QueueBounds(2))
    await office.ask("a", 3, label="rollout", of_rollout=True)
    with pytest.raises(ApiError, match="no more requests of roll-outs of this project"):
        await office.ask("a", of_rollout=True)
    await office.ask("a", 2, label="person")
    office.refused("a")


async def test_with_one_turn_it_is_served_too() -> None:
    place = FairTurns(max_running=1).place("a", "default", BEHIND_ALL)
    assert place.ask()
    place.leave()
    assert FairTurns().place("a", "default", BEHIND_ALL).ask(), "nobody waits where turns are not bounded"


MANY_THREADS = 20  # of a flood, more than there are threads


class Flood:
    """Work that goes on, step by step, until it may end or is given up."""

    def __init__(self) -> None:
        self.running: list[str] = []
        self.order: list[str] = []  # who began
        self.may_end = threading.Event()

    def work(self, name: str) -> str:
        self.order.append(name)
        self.running.append(name)
        try:
            while not self.may_end.wait(0.001):
                check_given_up()
        finally:
            self.running.remove(name)
        return name

    async def come(self) -> tuple[FairThreads, list[asyncio.Task[str]]]:
        """Let a project have all threads for long work, and wait for more."""
        fair = FairThreads()
        tasks = [asyncio.create_task(fair.run("greedy", LONG + 1, self.work, "greedy")) for _ in range(MANY_THREADS)]
        await eventually(lambda: len(self.running) == LONG_THREADS)
        return fair, tasks


@pytest.fixture
def flood() -> Flood:
    return Flood()


@pytest.mark.parametrize(("size", "threads"), [(LONG + 1, LONG_THREADS), (LONG, SHORT_THREADS)])
async def test_no_more_runs_at_once_than_there_are_threads(flood: Flood, size: int, threads: int) -> None:
    fair = FairThreads()
    tasks = [asyncio.create_task(fair.run("greedy", size, flood.work, "greedy")) for _ in range(MANY_THREADS)]
    await eventually(lambda: len(flood.running) == threads)
    flood.may_end.set()
    assert await asyncio.gather(*tasks) == ["greedy"] * MANY_THREADS


async def test_short_work_does_not_wait_for_long_work_of_whomever(flood: Flood) -> None:
    fair = FairThreads()
    tasks = [asyncio.create_task(fair.run(f"p{each}", LONG + 1, flood.work, "long")) for each in range(MANY_THREADS)]
    await eventually(lambda: len(flood.running) == LONG_THREADS)
    assert await fair.run("p0", LONG, lambda: "short") == "short"
    assert await fair.wait("p0", lambda: "elsewhere") == "elsewhere"
    flood.may_end.set()
    await asyncio.gather(*tasks)


async def test_the_next_thread_is_for_the_project_that_has_none(flood: Flood) -> None:
    fair, tasks = await flood.come()
    modest = asyncio.create_task(fair.run("modest", LONG + 1, flood.work, "modest"))
    await asyncio.sleep(0)
    flood.may_end.set()
    await asyncio.gather(*tasks, modest)
    # All threads come free together, and which of the next begins first is the system's choice.
    assert flood.order.index("modest") < 2 * LONG_THREADS


async def test_who_leaves_frees_the_thread_or_the_place_in_the_queue(flood: Flood) -> None:
    fair, tasks = await flood.come()
    for task in tasks:
        task.cancel()
    assert all(
        isinstance(each, asyncio.CancelledError) for each in await asyncio.gather(*tasks, return_exceptions=True)
    )
    assert not flood.running
    assert len(flood.order) == LONG_THREADS, "what waited never began"
    assert await fair.run("modest", LONG + 1, lambda: "done") == "done"


async def test_encoding_a_long_text_is_given_up_at_its_next_part() -> None:
    """A minute's work ends within one part of it."""
    done: list[int] = []

    def work(text: str, note: Callable[[int], None]) -> None:
        note(len(encode_text(text)))

    began = threading.Event()
    running = asyncio.create_task(
        FairThreads().run("p", LONG + 1, lambda: (began.set(), work(" " * 5_000_000, done.append)))
    )
    await eventually(began.is_set)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not done


async def test_what_was_refused_is_gone_without_the_garbage_collector() -> None:
    fair, body = FairThreads(), Flood()
    known = weakref.ref(body)

    def refuse(body: Flood) -> None:
        raise ValueError(body.order)

    async def ask(body: Flood) -> None:
        with contextlib.suppress(ValueError):
            await fair.run("p", 1, refuse, body)

    gc.disable()
    try:
        await ask(body)
        del body
        await eventually(lambda: known() is None)
    finally:
        gc.enable()
