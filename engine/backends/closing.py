"""`unless`: work that ends as soon as an engine is closed."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from engine.errors import EngineError

Result = TypeVar("Result")


async def unless(
    closed: asyncio.Event, work: Coroutine[Any, Any, Result], *, error: Callable[[], EngineError]
) -> Result:
    """Do some work, or raise `error` as soon as `closed` is set."""
    working = asyncio.create_task(work)
    closing = asyncio.create_task(closed.wait())
    try:
        await asyncio.wait([working, closing], return_when=asyncio.FIRST_COMPLETED)
        if closed.is_set():
            raise error()
        return await working
    # On every way out, being cancelled too: neither task may outlive this.
    finally:
        working.cancel()
        closing.cancel()
        await asyncio.wait([working, closing])
        working.cancelled() or working.exception()  # else asyncio would log an error that nobody asked for
