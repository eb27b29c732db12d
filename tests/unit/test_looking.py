"""`keep_looking`: what wakes it while it looks leads to another look, and no failure ends it."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from responses_app.runs.log.run_log import end_tasks
from responses_app.stores.base import NotMigrated, StoreError
from responses_app.stores.looking import keep_looking

NEVER = 3600.0  # seconds
logger = logging.getLogger("respsite.tests")


@asynccontextmanager
async def looking(
    look: Callable[[], Awaitable[None]], news: asyncio.Event, *, seconds: float = NEVER
) -> AsyncIterator[None]:
    """Look until the block ends."""
    task = asyncio.create_task(keep_looking(look, news, seconds=seconds, what="looking", logger=logger))
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
