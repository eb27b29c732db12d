"""The subjects of log lines (`bind`), and their forms: text (`TextLines`), or JSON objects (`JsonLogLines`).

A line has ids, and no content: of an exception, JSON has the type and where it was raised. Its text, which may show
what somebody wrote, is in lines of text only; and nowhere where the line is about a project that keeps nothing
(`Discreet`). There also whatever stands in a message is left out that is neither a number nor a word known to be the
server's own: a name of a field, an error's text, the id that a client chose.
"""

import logging
import os
import re
import time
import traceback
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from datetime import UTC, datetime

from engine import orjson
from engine.errors import reason_of
from responses_app.protocol.json_text import one_line

FACTS = "facts"  # `extra={FACTS: {…}}` of a log line: what its message says, as fields
OF_STRANGERS = {"of_strangers": True}  # `extra` of a line that anybody can cause who reaches the port: see `Seldom`
MAX_MESSAGE = 4096  # characters of a message: strangers have their part in many
MOST_OF_STRANGERS = 10  # lines of one kind in a minute
_SERVERS = ("uvicorn", "daphne", "websockets", "autobahn")
_OF_REQUESTS = "django.security"  # loggers: one for each fault of a request
# Controls, ends of lines to any reader, and what turns the order of a line around.
_UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")

_NOTHING: Mapping[str, str] = {}
_bound: ContextVar[Mapping[str, str]] = ContextVar("about", default=_NOTHING)


def bind(**fields: str) -> None:
    """Give all further lines of this task, and of those that it starts, these fields; empty ones are left out."""
    # A new mapping each time: tasks that were started before share the old one.
    _bound.set({**_bound.get(), **{name: value for name, value in fields.items() if value}})


_is_silent: Callable[[str], bool] = lambda project: False  # noqa: E731 - until `keep_silent` hands in another one


def keep_silent(is_silent: Callable[[str], bool]) -> None:
    """Have the lines about these projects say nothing that a client may have written."""
    global _is_silent
    _is_silent = is_silent


def is_silent() -> bool:
    """Whether what is done here is for a project that keeps nothing."""
    return _is_silent(_bound.get().get("project", ""))


_LEFT_OUT = "…"
# Ids that this server makes, as `protocol.ids` has them. Hexadecimal digits are not text.
_OWN_ID = re.compile(r"[a-z]{1,12}[_-][0-9a-f]{32}")
_OWN_WORDS = frozenset(
    """
    completed failed cancelled incomplete queued in_progress refused stopped
    background http json sse websocket chat completions messages batch text stream
    - POST GET DELETE
    """.split()
) | {""}


def _own(value: object) -> object:
    """Return what stands in a message, unless a client may have written it."""
    if value is None or isinstance(value, int | float):
        return value
    is_own = isinstance(value, str) and (
        value in _OWN_WORDS or _OWN_ID.fullmatch(value) or value.removesuffix("ms").isdecimal()
    )
    return value if is_own else _LEFT_OUT


class Discreet(logging.Filter):
    """Leaves out of lines about projects that keep nothing whatever a client may have written."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Change the record, and let it pass."""
        if not is_silent():
            return True
        if isinstance(record.args, Mapping):
            record.args = {name: _own(value) for name, value in record.args.items()}
        elif record.args:
            record.args = tuple(_own(value) for value in record.args)
        elif not record.name.startswith("respsite"):  # of a library, which may have put a text together itself
            record.msg = f"{record.name} says something ({record.filename}:{record.lineno})"
        if record.exc_info and record.exc_info[1]:
            # Types and places, as JSON lines have them.
            record.exc_text = orjson.dumps(_where(record.exc_info[1])).decode()  # instead of the usual traceback
        return True


class Seldom(logging.Filter):
    """Bounds the lines that strangers can cause: so many of a kind in a minute. The next one says how many are missing.

    Those are the lines with `OF_STRANGERS`, and what servers, their libraries and Django say of requests.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._now = now
        # By logger and place in the code: since when, and how many.
        self._seen: dict[tuple[str, str, int], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a line is written."""
        is_servers = record.name.startswith(_SERVERS) and record.levelno <= logging.WARNING
        is_of_request = is_servers or record.name.startswith(_OF_REQUESTS)
        if not is_of_request and not getattr(record, "of_strangers", False):
            return True
        now, place = self._now(), (record.name, record.pathname, record.lineno)
        since, count = self._seen.get(place, (now, 0))
        if now - since >= 60:
            if count > MOST_OF_STRANGERS:
                record.msg = f"{record.msg} ({count - MOST_OF_STRANGERS} more such lines were left out)"
            since, count = now, 0
        self._seen[place] = since, count + 1
        return count < MOST_OF_STRANGERS


def bound() -> Mapping[str, str]:
    """Return what a line that is written here is about."""
    return _bound.get()


def as_one_line(text: str) -> str:
    """Return text of others as one line, in which what cannot be seen is an escape, such as `\\u202e`."""
    return _UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


class TextLines(logging.Formatter):
    """Time, level, logger and message, on one line; the traceback of an exception comes behind it."""

    def __init__(self) -> None:
        super().__init__("{asctime} {levelname:<7} {name}: {message}", style="{")

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        record.message = as_one_line(_message(record))
        return super().formatMessage(record)


class JsonLogLines(logging.Formatter):
    """One JSON object a line: time, level, logger, message, pid, and what the line is about."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as a line."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _message(record),
            "pid": os.getpid(),
            **bound(),
            **getattr(record, FACTS, {}),
        }
        if record.exc_info and record.exc_info[1]:
            line["exception"] = _where(record.exc_info[1])
        return one_line(orjson.dumps(line, default=str, option=orjson.OPT_NON_STR_KEYS)).decode()


def _message(record: logging.LogRecord) -> str:
    """Return a message with a bound, in which no exception says nothing."""
    if isinstance(record.args, tuple):
        record.args = tuple(
            reason_of(each) if isinstance(each, BaseException) and not str(each).strip() else each
            for each in record.args
        )
    message = record.getMessage()
    more = len(message) - MAX_MESSAGE
    return message if more <= 0 else f"{message[:MAX_MESSAGE]} … ({more} more characters)"


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
