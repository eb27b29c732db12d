"""What log lines are about (`bind`), and log lines as JSON objects (`JsonLines`, LOG_FORMAT=json) for programs.

A line has ids, and no content: of an exception it has the type and where it was raised. Its text, which may show what
somebody wrote, is in the usual lines only.
"""

import logging
import os
import traceback
from collections.abc import Mapping
from contextvars import ContextVar
from datetime import UTC, datetime

import orjson

FACTS = "facts"  # `extra={FACTS: {…}}` of a log line: what its message says, as fields
_NOTHING: Mapping[str, str] = {}
_bound: ContextVar[Mapping[str, str]] = ContextVar("about", default=_NOTHING)


def bind(**fields: str) -> None:
    """Give all further lines of this task, and of those that it starts, these fields; empty ones are left out."""
    # A new mapping each time: tasks that were started before share the old one.
    _bound.set({**_bound.get(), **{name: value for name, value in fields.items() if value}})


def bound() -> Mapping[str, str]:
    """Return what a line that is written here is about."""
    return _bound.get()


class JsonLines(logging.Formatter):
    """One JSON object a line: time, level, logger, message, pid, and what the line is about."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as a line."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "pid": os.getpid(),
            **bound(),
            **getattr(record, FACTS, {}),
        }
        if record.exc_info and record.exc_info[1]:
            line["exception"] = _where(record.exc_info[1])
        return orjson.dumps(line, default=str, option=orjson.OPT_NON_STR_KEYS).decode()


def _where(error: BaseException) -> list[dict[str, object]]:
    """Return an exception and those that it came of, each with its type and its frames."""
    errors: list[dict[str, object]] = []
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        frames = traceback.extract_tb(current.__traceback__)
        kind = type(current)
        errors.append(
            {
                "type": f"{kind.__module__}.{kind.__qualname__}",
                "frames": [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames],
            }
        )
        # As a traceback is printed: `raise … from None` hides what came before.
        suppressed = current.__suppress_context__
        current = current.__cause__ or (None if suppressed else current.__context__)
    return errors
