"""`respsite rollouts list` prints what servers answer, whatever that is, and ends."""

import json
from argparse import Namespace
from typing import Any

import pytest

from responses_app.command_line import rollouts
from responses_app.command_line.endpoint import CommandFailed

OPTIONS = Namespace(action="list", limit=250, group=None, url="http://127.0.0.1:1/v1", key_variable="NO_SUCH_KEY")
ONE = {"data": [{"id": "a"}], "last_id": "a", "has_more": True}


def answering(monkeypatch: pytest.MonkeyPatch, *pages: dict[str, Any]) -> list[dict[str, str]]:
    """Answer with pages, and with the last one again and again; return what is asked."""
    asked = list[dict[str, str]]()

    async def fetch(*_: object, params: dict[str, str]) -> dict[str, Any]:
        asked.append(params)
        assert len(asked) < 1_000, "it does not end"
        return pages[min(len(asked), len(pages)) - 1]

    monkeypatch.setattr(rollouts, "fetch", fetch)
    return asked


@pytest.mark.parametrize(
    "page",
    [{}, {**ONE, "data": None}, {**ONE, "data": "abc"}, {**ONE, "last_id": None}, {**ONE, "last_id": {}}],
)
def test_what_is_no_list_is_told(monkeypatch: pytest.MonkeyPatch, page: dict[str, Any]) -> None:
    answering(monkeypatch, page)
    with pytest.raises(CommandFailed, match="did not answer with a list"):
        rollouts.run(OPTIONS)


def test_a_server_that_always_has_more_is_asked_for_as_many_as_are_wanted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = answering(monkeypatch, ONE)
    assert rollouts.run(OPTIONS) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(asked) == 250
    answering(monkeypatch, {**ONE, "data": [{"id": "a"}] * 300})
    assert rollouts.run(OPTIONS) == 0


def test_a_page_without_anything_is_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = answering(monkeypatch, ONE, {**ONE, "data": []})
    assert rollouts.run(OPTIONS) == 0
    assert asked == [{"limit": "100"}, {"limit": "100", "after": "a"}]


def test_what_a_terminal_obeys_is_printed_as_escapes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rollout = {"id": "a", "metadata": {"\u202e": "\x9b2J\x1b]0;\ud800ü"}}
    answering(monkeypatch, {"data": [rollout], "last_id": "a", "has_more": False})
    assert rollouts.run(OPTIONS) == 0
    printed = capsys.readouterr().out
    assert printed.strip().isascii()
    assert printed.strip().isprintable()
    assert json.loads(printed) == rollout
