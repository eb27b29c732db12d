"""Threads that projects share: short work never waits for long work, and whoever leaves frees a thread."""

import asyncio
import contextlib
import gc
import threading
import weakref
from collections.abc import Callable

import pytest

from engine.formats.harmony.encoding import encode_text
from engine.giving_up import check
from responses_app.runs.queues.turns import LONG, LONG_THREADS, SHORT_THREADS, FairThreads
from tests.kit.waiting import eventually

MANY = 20  # of a flood, more than there are threads


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
                check()
        finally:
            self.running.remove(name)
        return name

    async def come(self) -> tuple[FairThreads, list[asyncio.Task[str]]]:
        """Let a project have all threads for long work, and wait for more."""
        fair = FairThreads()
        tasks = [asyncio.create_task(fair.run("greedy", LONG + 1, self.work, "greedy")) for _ in range(MANY)]
        await eventually(lambda: len(self.running) == LONG_THREADS)
        return fair, tasks


@pytest.fixture
def flood() -> Flood:
    return Flood()


@pytest.mark.parametrize(("size", "threads"), [(LONG + 1, LONG_THREADS), (LONG, SHORT_THREADS)])
async def test_no_more_runs_at_once_than_there_are_threads(flood: Flood, size: int, threads: int) -> None:
    fair = FairThreads()
    tasks = [asyncio.create_task(fair.run("greedy", size, flood.work, "greedy")) for _ in range(MANY)]
    await eventually(lambda: len(flood.running) == threads)
    flood.may_end.set()
    assert await asyncio.gather(*tasks) == ["greedy"] * MANY


async def test_short_work_does_not_wait_for_long_work_of_whomever(flood: Flood) -> None:
    fair = FairThreads()
    tasks = [asyncio.create_task(fair.run(f"p{each}", LONG + 1, flood.work, "long")) for each in range(MANY)]
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


@pytest.mark.parametrize("raised", [ValueError("no"), KeyError("x")])
async def test_what_the_work_raises_is_raised(raised: Exception) -> None:
    def work() -> None:
        raise raised

    with pytest.raises(type(raised)):
        await FairThreads().run("p", 1, work)


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
