"""`keep_looking`: what wakes it while it looks leads to another look, and no failure ends it."""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise

import pytest

from responses_app.kit.duty import EARLY, attempted, end_tasks, keep_looking, until_look
from responses_app.kit.errors import NotMigrated, StoreClosed, StoreError

NEVER = 3600.0  # seconds
logger = logging.getLogger("respsite.tests")


@asynccontextmanager
async def looking(
    look: Callable[[], Awaitable[None]], news: asyncio.Event, *, seconds: float = NEVER
) -> AsyncIterator[None]:
    task = keep_looking(look, news, seconds=seconds, what="looking", logger=logger)
    try:
        yield
    finally:
        await end_tasks([task])


async def test_news_that_come_while_it_looks_lead_to_another_look() -> None:
    news, begun, goes_on, again = asyncio.Event(), asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def look() -> None:
        if begun.is_set():
            again.set()
        begun.set()
        await goes_on.wait()

    async with looking(look, news):
        await begun.wait()
        news.set()
        goes_on.set()
        await asyncio.wait_for(again.wait(), 10)


@pytest.mark.parametrize(
    ("problem", "told"),
    [
        (StoreError("away"), ["looking has to wait: away"]),
        (StoreError(), ["looking has to wait: StoreError"]),
        (StoreClosed("The readers are closed."), []),
    ],
)
async def test_the_log_says_why_a_look_has_to_wait_but_nothing_of_a_stop(
    caplog: pytest.LogCaptureFixture, problem: StoreError, told: list[str]
) -> None:
    async def look() -> None:
        raise problem

    await attempted(look, what="looking", logger=logger)
    assert [record.getMessage() for record in caplog.records] == told


async def test_it_looks_by_itself() -> None:
    looks, done = 0, asyncio.Event()

    async def look() -> None:
        nonlocal looks
        looks += 1
        if looks == 3:
            done.set()

    async with looking(look, asyncio.Event(), seconds=0.01):
        await asyncio.wait_for(done.wait(), 10)


async def test_what_goes_wrong_is_told_and_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    problems, news, done = (
        [NotMigrated(), StoreError("it is away"), ValueError("broken")],
        asyncio.Event(),
        asyncio.Event(),
    )

    async def look() -> None:
        if problems:
            news.set()
            raise problems.pop(0)
        done.set()

    with caplog.at_level(logging.WARNING, logger="respsite.tests"):
        async with looking(look, news):
            await asyncio.wait_for(done.wait(), 10)
    assert [record.message for record in caplog.records] == ["looking has to wait: it is away", "looking broke"]


@dataclass
class Loop:
    now: float

    def time(self) -> float:
        return self.now


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Loop:
    loop = Loop(1000.0)
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: loop)
    return loop


@pytest.mark.parametrize("seconds", [0.01, 1 / 3, 1.0, 5.0])
def test_the_next_look_is_at_most_so_far_away_and_all_look_in_the_same_moment(loop: Loop, seconds: float) -> None:
    moments = set()
    for part in (0.0, 0.2, 0.5, 0.9):
        loop.now = 1000.0 + part * seconds
        until = until_look(seconds)
        assert 0 < until <= seconds * (1 + EARLY)
        moments.add(round((loop.now + until) / seconds, 3))
    assert max(moments) - min(moments) in (0.0, 1.0)  # this moment, or the one behind it


@pytest.mark.parametrize(
    ("after", "every", "until"),
    [(0.0, 0.0, 0.0), (5.0, 1.0, 1.0), (1.0, 1.0, 1.0)],
    ids=["without a pause", "in some of the moments of who looks less often", "behind a timer that fires early"],
)
def test_when_the_next_look_is(loop: Loop, after: float, every: float, until: float) -> None:
    loop.now += max(0.0, until_look(after) - 1e-6)
    assert until_look(every) == pytest.approx(until, abs=1e-5)


def test_two_processes_look_in_different_moments(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    untils = []
    for pid in range(100, 110):
        monkeypatch.setattr(os, "getpid", lambda pid=pid: pid)
        untils.append(until_look(1.0))
    untils.sort()
    assert all(later - earlier > 0.03 for earlier, later in pairwise(untils))


def test_processes_of_one_number_in_two_containers_look_in_different_moments(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("responses_app.kit.duty._HOST", 0)
    here = until_look(1.0)
    monkeypatch.setattr("responses_app.kit.duty._HOST", 1)  # the digest of a host's name
    assert abs(until_look(1.0) - here) > 0.03
