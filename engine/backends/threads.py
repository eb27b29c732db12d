"""`in_thread`: slow work beside the event loop, on a thread that the process does not wait for when it ends."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from engine.formats.harmony.encoding import load_encoding

Result = TypeVar("Result")


def in_thread(function: Callable[[], Result]) -> "asyncio.Future[Result]":
    """Run a function in a daemon thread of its own.

    Unlike an executor's thread (`asyncio.to_thread`), one that is stuck keeps no process from ending.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Result] = loop.create_future()

    def settle(result: Result | None, error: Exception | None) -> None:
        # Who waited was cancelled; setting a result would raise now.
        if future.cancelled():
            return
        if error is None:
            future.set_result(result)  # type: ignore[arg-type]
        else:
            future.set_exception(error)

    def run() -> None:
        result, error = None, None
        try:
            result = function()
        except Exception as raised:  # noqa: BLE001 - handed to whoever waits
            error = raised
        with suppress(RuntimeError):  # the loop is closed, and nobody waits any more
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=run, name=getattr(function, "__name__", "in_thread"), daemon=True).start()
    return future


_loading = threading.Lock()  # two threads that miss a cache at once would both do the work


async def load_vocabulary() -> None:
    """Load Harmony's vocabulary, on a thread: 0.5 s the first time in a process, and nothing later.

    A model and its embeddings start beside each other: the second waits for what the first loads.
    """
    await asyncio.to_thread(load_vocabulary_here)


def load_vocabulary_here() -> None:
    """Load it on this thread."""
    with _loading:
        load_encoding()
