"""`Budget`: what checking one schema may take.

A schema of 100 KiB can mean gigabytes: a `$ref` with a keyword beside it is read again wherever it stands, an enum is
checked value by value, and what is left of all that is written down for the engine. Work is counted in *parts*: about
a microsecond each.
"""

import time
from collections.abc import Iterator, Sized
from contextlib import contextmanager

import regex

from engine.contents.patterns import check_regex
from engine.contents.sharing import current_share
from engine.errors import GrammarRefused

MAX_PARTS = 500_000
MAX_NODES = 20_000  # schemas within a schema, once `allOf` and its like are resolved
MAX_LEVELS = 120  # of schemas in each other, the same: Python's own end comes later, and jsonschema breaks down there
MATCH_SECONDS = 0.5  # for all patterns over values of enums

NODE = 10  # what a schema within a schema takes, in parts

_RESOLVED = "The schema is too large once its references and combinations are resolved"


class Budget:
    """What is left of it, for the schema `root`. All methods raise `GrammarRefused` where that is nothing."""

    def __init__(self, root: object) -> None:
        self.root = root
        self._parts = self._nodes = self._levels = 0
        self._shared = current_share()
        self._patterns: set[str] = set()  # that can be compiled
        self._until = time.monotonic() + MATCH_SECONDS

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

    @contextmanager
    def deeper(self) -> Iterator[None]:
        """Count a level, while a schema's own schemas are looked at."""
        self._levels += 1
        try:
            if self._levels > MAX_LEVELS:
                raise GrammarRefused(f"{_RESOLVED}: it is nested more than {MAX_LEVELS} levels deep then.")
            yield
        finally:
            self._levels -= 1

    def matches(self, pattern: str, text: str) -> bool:
        """Whether a pattern is found in a text; Python's own `re` may try without end, and holds the lock."""
        if pattern not in self._patterns:
            check_regex(pattern)
            self._patterns.add(pattern)
        try:
            left = max(self._until - time.monotonic(), 0.001)
            return regex.search(pattern, text, timeout=left, concurrent=True) is not None
        except TimeoutError:
            raise GrammarRefused(f"A pattern takes too long to match a value: {pattern[:200]!r}.") from None
        except (regex.error, RecursionError, OverflowError):
            raise GrammarRefused(f"The regular expression {pattern[:200]!r} cannot be read.") from None


def width(*values: object) -> int:
    """Return how many parts values have at their top, and the containers right within them."""
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
        case bool():
            return bool, value
        case list():
            return tuple(map(frozen, value))
        case dict():
            return frozenset((name, frozen(each)) for name, each in value.items())
    return value


def _inside(value: object) -> "list[object]":
    return list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
