"""Log lines about a project that keeps nothing have nothing that a client may have written."""

import io
import json
import logging
from collections.abc import Callable
from contextvars import copy_context

import pytest

from responses_app.observing import logs
from responses_app.observing.logs import FACTS, Discreet, JsonLogLines, TextLines, bind

SECRET = "a secret"
ID = "resp_01a21c7a12eb70008bd92e703877c413"


@pytest.fixture(params=["line", "json"])
def said(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Log something for a project, in both formats; return what was written."""
    monkeypatch.setattr(logs, "_is_silent", lambda project: project == "quiet")
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(JsonLogLines() if request.param == "json" else TextLines())
    handler.addFilter(Discreet())

    def say(project: str, act: Callable[[logging.Logger], None], name: str = "respsite.test") -> str:
        logger = logging.getLogger(name)
        logger.addHandler(handler)
        logger.setLevel(logging.DEBUG)
        logger.propagate = False

        def bound() -> None:
            bind(project=project)
            act(logger)

        copy_context().run(bound)
        logger.removeHandler(handler)
        return out.getvalue()

    return say


def broken(logger: logging.Logger) -> None:
    try:
        raise ValueError(f"there is {SECRET} in it")
    except ValueError:
        logger.exception("request %s broke", ID)


ACTS: list[Callable[[logging.Logger], None]] = [
    lambda logger: logger.info("request %s: these fields have no effect: %s", ID, SECRET),
    lambda logger: logger.warning("it failed: %s", ValueError(SECRET)),
    lambda logger: logger.info("%(what)s", {"what": SECRET}),
    lambda logger: logger.info("response %s", f"{ID} {SECRET}"),
    lambda logger: logger.info("response %r", SECRET.encode()),
    broken,
]


@pytest.mark.parametrize("act", ACTS)
def test_nothing_is_left_of_it(said: Callable[..., str], act: Callable[[logging.Logger], None]) -> None:
    assert SECRET not in said("quiet", act)


def test_others_are_told_all_of_it(said: Callable[..., str]) -> None:
    assert SECRET in said("loud", ACTS[0])


def test_what_is_the_servers_own_stays(said: Callable[..., str]) -> None:
    def act(logger: logging.Logger) -> None:
        logger.info(
            "response %s %s input=%d ttft=%s", ID, "completed", 12, "3ms", extra={FACTS: {"status": "completed"}}
        )

    assert f"response {ID} completed input=12 ttft=3ms" in said("quiet", act)


def test_an_exception_has_its_type_and_its_places(said: Callable[..., str]) -> None:
    text = said("quiet", broken)
    assert f"request {ID} broke" in text
    assert "builtins.ValueError" in text
    assert "test_discreet.py" in text


def test_a_library_that_puts_its_text_together_itself_says_nothing(said: Callable[..., str]) -> None:
    text = said("quiet", lambda logger: logger.warning(SECRET), name="a.library")
    assert SECRET not in text
    assert "a.library says something (test_discreet.py:" in text


def test_json_stays_json(said: Callable[..., str]) -> None:
    for line in said("quiet", broken).splitlines():
        if line.startswith('{"time"'):
            assert json.loads(line)["project"] == "quiet"
