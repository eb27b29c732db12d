"""What workers look for in the store again and again: what others have left there, or time has made due.

    keep_looking   look ── wait for `seconds`, or for news ── look ── …
    attempted      one look: what goes wrong is told in the log, and the next look tries again
    until_kept     no look, but something that has to get into the store: it is tried again until it is there
    end_tasks      the end of all that looks, or does what was found

The event is cleared before the look. So what comes while one looks leads to another look, and no wake-up is lost.

All who look every second do so in the same moments, those of `until_look`: so an idle process wakes up once a second,
and asks the database once. Two processes have other moments, and do not ask together.
"""

import asyncio
import logging
import os
import socket
import zlib
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from engine.errors import reason_of
from responses_app.kit.errors import NotMigrated, StoreClosed, StoreError

EARLY = 0.01  # share of the time between two looks by which a timer may be early
_HOST = zlib.crc32(socket.gethostname().encode())


@dataclass(frozen=True, slots=True)
class Duty:
    """Something that each worker looks for."""

    name: str  # for the log: "sending webhooks"
    look: Callable[[], Awaitable[None]]
    seconds: float  # between two looks


def until_look(seconds: float) -> float:
    """Return the seconds until the next look of those that happen every `seconds`, at most about so many.

    All of a process that look every second have the same moments; who looks less often has some of them.
    """
    if not seconds:
        return 0.0
    # By the golden ratio, so that processes with neighbouring numbers have moments that are far apart. The host's name
    # counts too: the containers of a machine have its clock and the same few numbers.
    phase = (os.getpid() + _HOST) * 0.618034 % 1.0
    until = seconds - (asyncio.get_running_loop().time() - phase) % seconds
    # A timer may fire a little early: the look that was due is being made.
    return until if until > seconds * EARLY else until + seconds


async def attempted(look: Callable[[], Awaitable[None]], *, what: str, logger: logging.Logger) -> None:
    """Do something once. What goes wrong ends nothing: the log says that `what`, "sending webhooks" say, failed."""
    try:
        await look()
    except (NotMigrated, StoreClosed):  # the one is told once, not with every look; the other is a stop
        pass
    except StoreError as problem:
        logger.warning("%s has to wait: %s", what, reason_of(problem))
    except Exception:
        logger.exception("%s broke", what)


def keep_looking(
    look: Callable[[], Awaitable[None]], news: asyncio.Event, *, seconds: float, what: str, logger: logging.Logger
) -> "asyncio.Task[None]":
    """Return a task that looks at once, and again with each of the news, or when `seconds` are over."""

    async def go_on() -> None:
        while True:
            news.clear()
            await attempted(look, what=what, logger=logger)
            with suppress(TimeoutError):
                async with asyncio.timeout(until_look(seconds)):
                    await news.wait()

    return asyncio.create_task(go_on(), name=what)


async def until_kept(keep: Callable[[], Awaitable[None]], *, seconds: float, what: str, logger: logging.Logger) -> None:
    """Keep something, again `seconds` after each time that the store fails; the log says `what` cannot be kept now."""
    while True:
        try:
            await keep()
        except StoreClosed:
            return
        except StoreError as problem:
            logger.warning("%s cannot be kept now: %s", what, reason_of(problem))
            await asyncio.sleep(seconds)
        else:
            return


async def end_tasks(tasks: Iterable["asyncio.Task[Any] | None"]) -> None:
    """Cancel tasks, and return when they have ended; whatever they raise is not raised here."""
    present = [task for task in tasks if task is not None]
    for task in present:
        task.cancel()
    if present:
        await asyncio.wait(present)
