"""`OptionReader` reads an operator's options. Whatever is wrong with one is told in one sentence."""

import math
from collections.abc import Collection, Mapping
from typing import TypeVar

from engine.errors import EngineConfigurationError

Default = TypeVar("Default")


class OptionReader:
    """Reads values that an operator gave; says in one sentence what is wrong with one. `None` means not given."""

    def __init__(self, place: str, given: Mapping[str, object], *, known: Collection[str]) -> None:
        """Refuse names that are not `known`. `place` begins every sentence: `The demo engine`."""
        self._place = place
        self._given = given
        for name in given:
            if name not in known:
                raise EngineConfigurationError(f"{place} does not know {name!r}; it knows {', '.join(sorted(known))}.")

    def whole_number(self, name: str, default: Default, *, minimum: int) -> int | Default:
        """Return a whole number of at least `minimum`."""
        value = self._given.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            raise self.wrong(name, f"a whole number of {minimum} or more")
        return value

    def seconds(self, name: str) -> float:
        """Return a time, 0 where none was given."""
        value = self._number(name)
        if value is None:
            return 0.0
        if value < 0:
            raise self.wrong(name, "a number of 0 or more")
        return value

    def rate(self, name: str) -> float | None:
        """Return how many of something per second."""
        value = self._number(name)
        if value is not None and value <= 0:
            raise self.wrong(name, "a number above 0")
        return value

    def text(self, name: str) -> str | None:
        """Return a string."""
        value = self._given.get(name)
        if value is None or isinstance(value, str):
            return value
        raise self.wrong(name, "a string")

    def choice(self, name: str, choices: Collection[str]) -> str | None:
        """Return one of `choices`."""
        value = self._given.get(name)
        if value is None:
            return None
        if not isinstance(value, str) or value not in choices:
            raise self.wrong(name, f"one of {', '.join(choices)}")
        return value

    def token_ids(self, name: str) -> tuple[int, ...] | None:
        """Return a list of token ids."""
        value = self._given.get(name)
        if value is None:
            return None
        if not isinstance(value, list | tuple) or not all(_is_token_id(each) for each in value):
            raise self.wrong(name, "a list of token ids")
        return tuple(value)

    def wrong(self, name: str, expected: str) -> EngineConfigurationError:
        """Return the error that says what `name` should have been."""
        shown = repr(self._given.get(name))
        shown = shown if len(shown) <= 80 else f"{shown[:79]}…"
        return EngineConfigurationError(f"{self._place} needs {name} to be {expected}, not {shown}.")

    def _number(self, name: str) -> float | None:
        value = self._given.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise self.wrong(name, "a number")
        return float(value)


def _is_token_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**32
