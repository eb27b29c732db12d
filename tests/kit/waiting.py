"""Waiting for a condition that another task or process brings about.

Most looks cost both sides some milliseconds of CPU, and several tests wait at once: with a look every 10 ms, what they
wait for would come later. So the longer one has waited, the longer it is until the next look.
"""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Iterator

PATIENCE = 60.0  # seconds: a test that fails waits so long on a machine that is busy, none that passes
LEAST, MOST = 0.01, 0.1  # seconds between two looks


def pause_behind(waited: float) -> float:
    """Return how long to wait until the next look: a tenth of the seconds that were waited so far."""
    return min(MOST, max(LEAST, waited / 10))


def looks(seconds: float) -> Iterator[None]:
    """Yield at once, then whenever it is time to look again; for the last time once the seconds are over."""
    began = time.monotonic()
    while True:
        yield
        waited = time.monotonic() - began
        if waited > seconds:
            return
        time.sleep(pause_behind(waited))


async def eventually(predicate: Callable[[], bool | Awaitable[bool]], *, timeout: float = PATIENCE) -> None:
    """Return once `predicate`, asked again and again, is true.

    Raises:
        AssertionError: it was not within `timeout` seconds.
    """
    began = time.monotonic()
    while True:
        answer = predicate()
        if inspect.isawaitable(answer):
            answer = await answer
        if answer:
            return
        waited = time.monotonic() - began
        if waited > timeout:
            raise AssertionError(f"{predicate!r} was not true within {timeout} s.")
        await asyncio.sleep(pause_behind(waited))
