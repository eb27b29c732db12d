"""Waiting for a condition that another task or process brings about."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable

PATIENCE = 60.0  # seconds: a test that fails waits so long on a machine that is busy, none that passes


async def eventually(predicate: Callable[[], bool | Awaitable[bool]], *, timeout: float = PATIENCE) -> None:
    """Return as soon as `predicate`, asked every 10 ms, is true.

    Raises:
        AssertionError: it was not within `timeout` seconds.
    """
    deadline = asyncio.get_running_loop().time() + timeout
    while True:
        answer = predicate()
        if inspect.isawaitable(answer):
            answer = await answer
        if answer:
            return
        if asyncio.get_running_loop().time() > deadline:
            raise AssertionError(f"{predicate!r} was not true within {timeout} s.")
        await asyncio.sleep(0.01)
