"""Log lines as JSON objects."""

import asyncio
import contextvars
import json
import logging
import sys

from responses_app.observing.logs import FACTS, JsonLines, bind, bound


def line(message: str, *args: object, **options: object) -> dict[str, object]:
    """Return what is written of a record."""
    record = logging.LogRecord("respsite.runs", logging.WARNING, "file.py", 1, message, args, options.get("exc_info"))  # type: ignore[arg-type]
    for name, value in dict(options.get("extra") or {}).items():  # type: ignore[call-overload]
        setattr(record, name, value)
    written = JsonLines().format(record)
    assert "\n" not in written
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
