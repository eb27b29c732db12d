"""What checking schemas and grammars may take: `SchemaBudget` for one schema, `Share` for all of one request.

A schema of 100 KiB can mean gigabytes: a `$ref` with a keyword beside it is read again wherever it stands, an enum is
checked value by value, and what is left of all that is written down for the engine. Work is counted in *parts*: about
a microsecond each.
"""

import time
from collections.abc import Iterator, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from engine.errors import GrammarRefused

MAX_SHARED_PARTS = 1_500_000  # about two seconds, at a microsecond each
CHARACTER = 8  # what reading one of a pattern or a grammar takes, in parts


class SharedBudgetSpent(GrammarRefused):
    """All schemas of a request together are too much; each alone may not be."""


class Share:
    """What is left for the schemas and grammars of one request."""

    def __init__(self) -> None:
        self._parts = 0  # that were taken so far

    def take(self, parts: int) -> None:
        """Count parts, as a schema's `SchemaBudget` does; raises `SharedBudgetSpent`."""
        self._parts += parts
        if self._parts > MAX_SHARED_PARTS:
            raise SharedBudgetSpent(
                f"The schemas and grammars of this request take more than {MAX_SHARED_PARTS} steps to check, all "
                "together: send fewer tools at once, smaller schemas, or 'strict': false."
            )


# A context variable: the budget is shared by whatever the request checks, without being handed through all of it.
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


MAX_PARTS = 500_000  # of one schema: half a second
MAX_NODES = 20_000  # schemas within a schema, once `allOf` and its like are resolved
MAX_LEVELS = 120  # of schemas in each other, the same: Python's own end comes later, and jsonschema breaks down there
ENUM_SECONDS = 0.5  # for all patterns over values of enums

NODE = 10  # what a schema within a schema takes, in parts

_RESOLVED = "The schema is too large once its references and combinations are resolved"


class SchemaBudget:
    """What is left of it, for the schema `root`. All methods raise `GrammarRefused` where that is nothing."""

    def __init__(self, root: object) -> None:
        self.root = root
        # These count up, each to a limit of its own.
        self._parts = self._nodes = self._levels = 0
        self._shared = current_share()
        self.patterns: set[str] = set()  # those that were checked, and can be compiled
        self.patterns_until = time.monotonic() + ENUM_SECONDS  # by the monotonic clock

    def take(self, parts: int = 1) -> None:
        """Count parts that are looked at or written down."""
        self._parts += parts
        self._shared.take(parts)
        if self._parts > MAX_PARTS:
            raise GrammarRefused(f"{_RESOLVED}: it takes more than {MAX_PARTS} steps to check.")

    def take_node(self) -> None:
        """Count a schema within the schema."""
        self._nodes += 1
        self._shared.take(NODE)
        if self._nodes > MAX_NODES:
            raise GrammarRefused(f"{_RESOLVED}: it has more than {MAX_NODES} schemas within it then.")

    def target(self, reference: str) -> object:
        """Return what `#/…` refers to in the schema; raises `GrammarRefused`."""
        if not reference.startswith("#"):
            raise GrammarRefused(f"{reference[:200]!r} is outside of the schema; a $ref may only begin with '#'.")
        node: Any = self.root
        for part in filter(None, reference[1:].split("/")):
            # JSON Pointer: `~1` stands for `/`, `~0` for `~`. In this order: `~01` is `~1`.
            key = part.replace("~1", "/").replace("~0", "~")
            try:
                node = node[int(key)] if isinstance(node, list) else node[key]
            except (LookupError, ValueError, TypeError):
                raise GrammarRefused(f"The schema refers to {reference[:200]!r}, which it does not have.") from None
        return node

    @contextmanager
    def deeper(self) -> Iterator[None]:
        """Count a level, while a schema's own schemas are looked at."""
        self._levels += 1
        try:
            if self._levels > MAX_LEVELS:
                raise GrammarRefused(f"{_RESOLVED}: it is nested more than {MAX_LEVELS} levels deep then.")
            yield
        finally:
            # Also where it raised: an alternative that does not fit is left, and another one is looked at.
            self._levels -= 1


def width(*values: object) -> int:
    """Return how many parts values have at their top, and the containers right within them."""
    # Two levels: what copying and comparing the top of a schema takes.
    return sum(
        1 + sum(len(each) if isinstance(each, list | dict) else 1 for each in _inside(value)) for value in values
    )


def size(value: object) -> int:
    """Return how many values a JSON value has, at all levels."""
    return 1 + sum(map(size, _inside(value)))


def length(value: object) -> int:
    """Return how many parts a value has at its top."""
    return len(value) if isinstance(value, Sized) and not isinstance(value, str) else 1


def frozen(value: object) -> object:
    """Return what is equal for values that JSON has as the same: 1 and 1.0, not 1 and true."""
    match value:
        case bool():  # Python has True == 1
            return bool, value
        case list():
            return tuple(map(frozen, value))
        case dict():
            return frozenset((name, frozen(each)) for name, each in value.items())
    return value


def _inside(value: object) -> "list[object]":
    return list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
