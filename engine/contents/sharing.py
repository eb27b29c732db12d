"""What all schemas, patterns and Lark grammars of one request may take together: each alone may take a second."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from engine.errors import GrammarRefused

MAX_SHARED_PARTS = 1_500_000  # about two seconds
CHARACTER = 8  # what reading one of a pattern or a grammar takes, in parts


class SharedBudgetSpent(GrammarRefused):
    """All schemas of a request together are too much; each alone may not be."""


class Share:
    """What is left for the schemas and grammars of one request."""

    def __init__(self) -> None:
        self._parts = 0

    def take(self, parts: int) -> None:
        """Count parts, as a schema's `Budget` does; raises `SharedBudgetSpent`."""
        self._parts += parts
        if self._parts > MAX_SHARED_PARTS:
            raise SharedBudgetSpent(
                f"The schemas and grammars of this request take more than {MAX_SHARED_PARTS} steps to check, all "
                "together: send fewer tools at once, smaller schemas, or 'strict': false."
            )


_shared: ContextVar[Share | None] = ContextVar("shared", default=None)


@contextmanager
def shared_budget() -> Iterator[None]:
    """Let all schemas and grammars that are checked within share `MAX_SHARED_PARTS`, beside what each may take."""
    token = _shared.set(Share())
    try:
        yield
    finally:
        _shared.reset(token)


def current_share() -> Share:
    """Return what the schemas and grammars of the request at hand share; outside of one, each has its own."""
    return _shared.get() or Share()
