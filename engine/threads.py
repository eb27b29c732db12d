"""Slow work beside the event loop: `in_thread` does it on a thread that the process does not wait for when it ends.

Long work gives up once nobody waits for it, as a thread cannot be ended from outside. Who has the work done sets an
event then (`gives_up_at`); the work looks for it between two of its steps (`check_given_up`).
"""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import TypeVar

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


class GivenUp(Exception):
    """Nobody waits for this work any more."""


# A context variable, not an argument: between who waits and the step that asks lie libraries that pass nothing on.
_given_up: ContextVar[threading.Event | None] = ContextVar("given_up", default=None)


@contextmanager
def gives_up_at(given_up: threading.Event) -> Iterator[None]:
    """Have what this thread does in the block end at its next `check_given_up` once the event is set."""
    token = _given_up.set(given_up)
    try:
        yield
    finally:
        _given_up.reset(token)


def check_given_up() -> None:
    """Raise `GivenUp` where nobody waits for what this thread does."""
    given_up = _given_up.get()
    if given_up is not None and given_up.is_set():
        raise GivenUp
