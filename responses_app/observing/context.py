"""What a log line is about: ids that are known where something begins, and that every line under it has."""

from collections.abc import Mapping
from contextvars import ContextVar

FACTS = "facts"  # `extra={FACTS: {…}}` of a log line: what its message says, as fields
_NOTHING: Mapping[str, str] = {}
_bound: ContextVar[Mapping[str, str]] = ContextVar("about", default=_NOTHING)


def bind(**fields: str) -> None:
    """Give all further lines of this task, and of those that it starts, these fields; empty ones are left out."""
    _bound.set({**_bound.get(), **{name: value for name, value in fields.items() if value}})


def bound() -> Mapping[str, str]:
    """Return what a line that is written here is about."""
    return _bound.get()
