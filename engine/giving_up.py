"""Long work on a thread gives up once nobody waits for it: a thread cannot be ended from outside.

Who has the work done says by what to know (`until`); the work asks between two of its steps (`check`).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Event


class GivenUp(Exception):
    """Nobody waits for this work any more."""


# A context variable, not an argument: between who waits and the step that asks lie libraries that pass nothing on.
_given_up: ContextVar[Event | None] = ContextVar("given_up", default=None)


@contextmanager
def until(given_up: Event) -> Iterator[None]:
    """Have what this thread does in the block end at its next `check` once the event is set."""
    token = _given_up.set(given_up)
    try:
        yield
    finally:
        _given_up.reset(token)


def check() -> None:
    """Raise `GivenUp` where nobody waits for what this thread does."""
    given_up = _given_up.get()
    if given_up is not None and given_up.is_set():
        raise GivenUp
