"""Log lines as JSON objects."""

import asyncio
import contextvars
import json
import logging
import sys

from responses_app.observing.logs import (
    FACTS,
    MAX_MESSAGE,
    MOST_OF_STRANGERS,
    OF_STRANGERS,
    JsonLogLines,
    Seldom,
    TextLines,
    bind,
    bound,
)


def line(message: str, *args: object, **options: object) -> dict[str, object]:
    """Return what is written of a record."""
    record = logging.LogRecord("respsite.runs", logging.WARNING, "file.py", 1, message, args, options.get("exc_info"))  # type: ignore[arg-type]
    for name, value in dict(options.get("extra") or {}).items():  # type: ignore[call-overload]
        setattr(record, name, value)
    written = JsonLogLines().format(record)
    assert len(written.splitlines()) == 1
    read: dict[str, object] = json.loads(written)
    return read


def test_a_line_has_what_it_is_about() -> None:
    def write() -> dict[str, object]:
        bind(response_id="resp_1", key_id="")
        bind(project="p")
        return line("went %s\nwrong", "very", extra={FACTS: {"output_tokens": 3}})

    read = contextvars.Context().run(write)
    assert read["message"] == "went very\nwrong"
    assert (read["level"], read["logger"]) == ("warning", "respsite.runs")
    assert (read["response_id"], read["project"], read["output_tokens"]) == ("resp_1", "p", 3)
    assert "key_id" not in read
    assert str(read["time"]).endswith("+00:00")
    assert not bound()


ENDS = "a\u2028b\u2029c\x85d\x0be\x0cf\x1cg\x1dh\x1ei\r\nj\u202e — é"


def test_a_message_is_one_line_whatever_strangers_write() -> None:
    assert line("heard %s", ENDS)["message"] == f"heard {ENDS}"
    record = logging.LogRecord("respsite", logging.ERROR, "file.py", 1, "heard %s", (ENDS,), None)
    (text,) = TextLines().format(record).splitlines()
    assert text.endswith(
        r"ERROR   respsite: heard a\u2028b\u2029c\u0085d\u000be\u000cf\u001cg\u001dh\u001ei\u000d\u000aj\u202e — é"
    )


def test_a_message_is_bounded() -> None:
    told = str(line("heard %s", "x" * 100_000)["message"])
    assert told.endswith(f"x … ({100_006 - MAX_MESSAGE} more characters)")
    record = logging.LogRecord("respsite", logging.ERROR, "file.py", 1, "heard %s", ("\n" * 100_000,), None)
    assert len(TextLines().format(record)) < 7 * MAX_MESSAGE


def test_strangers_have_few_lines_of_each_kind_in_a_minute() -> None:
    clock, lines = [0.0], []
    seldom = Seldom(lambda: clock[0])

    def say(place: int, *, name: str = "respsite", level: int = logging.WARNING, **extra: object) -> bool:
        record = logging.LogRecord(name, level, "file.py", place, "refused %s", (place,), None)
        record.__dict__.update(extra)
        passes = seldom.filter(record)
        lines.append(record.getMessage())
        return passes

    forbidden = {"place": 2, "name": "django.security.csrf", "level": logging.ERROR}
    for kind in ({"place": 1, **OF_STRANGERS}, {"place": 2, "name": "uvicorn.error"}, forbidden):
        assert [say(**kind) for _ in range(MOST_OF_STRANGERS + 5)] == [True] * MOST_OF_STRANGERS + [False] * 5  # type: ignore[arg-type]
    assert all(say(3) for _ in range(100))
    assert all(say(4, name="uvicorn.error", level=logging.ERROR) for _ in range(100))
    clock[0] = 60.0
    assert say(1, **OF_STRANGERS)
    assert lines[-1] == "refused 1 (5 more such lines were left out)"
    assert say(1, **OF_STRANGERS)
    assert lines[-1] == "refused 1"


async def test_tasks_inherit_it_and_do_not_give_it_back() -> None:
    async def inner() -> object:
        bind(response_id="resp_1")
        return dict(bound())

    async def outer() -> None:
        bind(request_id="req_1")
        assert await asyncio.create_task(inner()) == {"request_id": "req_1", "response_id": "resp_1"}
        assert dict(bound()) == {"request_id": "req_1"}

    await asyncio.create_task(outer())


def test_of_an_exception_there_is_no_text() -> None:
    try:
        try:
            int("what somebody wrote")
        except ValueError as error:
            raise RuntimeError("and what the model said") from error
    except RuntimeError:
        read = line("a run broke", exc_info=sys.exc_info())
    written = json.dumps(read)
    assert "somebody" not in written
    assert "model said" not in written
    outer, inner = read["exception"]  # type: ignore[misc]
    assert (outer["type"], inner["type"]) == ("builtins.RuntimeError", "builtins.ValueError")
    assert outer["frames"][-1].endswith("test_of_an_exception_there_is_no_text")
