"""How a setting is declared, and how its text is read.

Each room declares its settings, as fields of a frozen dataclass that is a `RoomSettings`: with the default, what reads
the text, and one sentence. A field's name in capitals is the environment variable. `responses_app.settings` gathers
them. A reader raises `ValueError` for an invalid text, and says what the variable takes: the end of a sentence.
"""

import json
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from typing import Any

KIB, MIB = 1024, 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class RoomSettings:
    """The settings of one room."""

    # Rooms override it whose settings depend on each other.
    def problem(self, given: Container[str]) -> str | None:
        """Return what does not fit together, as one sentence; None for nothing. `given` are those that are set."""
        return None


def setting(
    default: Any, parse: Callable[[str], Any], about: str, *, default_text: str | None = None, secret: bool = False
) -> Any:
    """Declare a setting: a field of a `RoomSettings`. `about` and `default_text` are what the reference says."""
    # What `responses_app.settings` reads a field's text with, and what the reference and `repr` say of it.
    metadata = {"parse": parse, "about": about, "default_text": default_text, "secret": secret}
    # dataclasses refuse a mutable default. The default is always empty, so a factory can stand for it.
    if isinstance(default, dict):
        return field(default_factory=dict, metadata=metadata, repr=not secret)
    return field(default=default, metadata=metadata, repr=not secret)


def text(value: str) -> str:
    """Any text."""
    return value


def flag(value: str) -> bool:
    """On or off."""
    lowered = value.strip().lower()
    if lowered in ("1", "true", "yes", "on"):
        return True
    if lowered in ("0", "false", "no", "off"):
        return False
    raise ValueError("on or off")


def whole(minimum: int = 0, maximum: int | None = None) -> Callable[[str], int]:
    """A whole number."""
    description = f"a whole number of at least {minimum}" + (f" and at most {maximum}" if maximum is not None else "")

    def parse(value: str) -> int:
        if not value.strip().isdecimal() or int(value) < minimum or (maximum is not None and int(value) > maximum):
            raise ValueError(description)
        return int(value)

    return parse


def seconds(minimum: float = 0.0) -> Callable[[str], float]:
    """A number of seconds."""

    def parse(value: str) -> float:
        try:
            seconds = float(value)
        except ValueError:
            seconds = -1.0  # out of every range, so one error says it all
        # NaN is refused by this, too; 10**9 seconds are 30 years.
        if not minimum <= seconds < 10**9:
            raise ValueError(f"a number of seconds of at least {minimum:g}")
        return seconds

    return parse


def choice(*allowed: str) -> Callable[[str], str]:
    """One of several words."""

    def parse(value: str) -> str:
        if value.strip().lower() not in allowed:
            raise ValueError(f"one of {', '.join(allowed)}")
        return value.strip().lower()

    return parse


def url_of(description: str, *schemes: str) -> Callable[[str], str]:
    """A URL that begins with one of these schemes."""

    def parse(value: str) -> str:
        if not value.strip().startswith(schemes):
            raise ValueError(description)
        return value.strip()

    return parse


def names(value: str) -> tuple[str, ...]:
    """Names, separated by commas."""
    names = tuple(name.strip() for name in value.split(",") if name.strip())
    if not names:
        raise ValueError("names, separated by commas")
    return names


def json_object(example: str) -> Callable[[str], dict[str, Any]]:
    """A JSON object; the example is shown to those who give something else."""

    def parse(value: str) -> dict[str, Any]:
        try:
            parsed = json.loads(value)
        except ValueError:
            parsed = None
        if not isinstance(parsed, dict):
            raise ValueError(f"a JSON object, like {example}")
        return parsed

    return parse
