"""`respsite rollouts`: what servers answer is printed, `export --resume` goes on; how large an answer may be."""

import io
import json
from argparse import Namespace
from typing import Any

import pytest

from responses_app.command_line.endpoint import CommandFailed
from responses_app.extensions.training import program as command
from responses_app.extensions.training import rollouts
from responses_app.extensions.training.program import whole_rollouts
from responses_app.protocol.errors import ApiError
from responses_app.protocol.rollouts import tree
from responses_app.resources.rollouts.fields import RolloutRecord
from tests.kit.recorded import placed, recorded

OPTIONS = Namespace(action="list", limit=250, group=None, url="http://127.0.0.1:1/v1", key_variable="NO_SUCH_KEY")
ONE = {"data": [{"id": "a"}], "last_id": "a", "has_more": True}


def answering(monkeypatch: pytest.MonkeyPatch, *pages: dict[str, Any]) -> list[dict[str, str]]:
    """Answer with pages, and with the last one again and again; return what is asked."""
    asked = list[dict[str, str]]()

    async def fetch(*_: object, params: dict[str, str]) -> dict[str, Any]:
        asked.append(params)
        assert len(asked) < 1_000, "it does not end"
        return pages[min(len(asked), len(pages)) - 1]

    monkeypatch.setattr(command, "fetch", fetch)
    return asked


@pytest.mark.parametrize(
    "page",
    [{}, {**ONE, "data": None}, {**ONE, "data": "abc"}, {**ONE, "last_id": None}, {**ONE, "last_id": {}}],
)
def test_what_is_no_list_is_told(monkeypatch: pytest.MonkeyPatch, page: dict[str, Any]) -> None:
    answering(monkeypatch, page)
    with pytest.raises(CommandFailed, match="did not answer with a list"):
        command.run(OPTIONS)


def test_a_server_that_always_has_more_is_asked_for_as_many_as_are_wanted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = answering(monkeypatch, ONE)
    assert command.run(OPTIONS) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(asked) == 250
    answering(monkeypatch, {**ONE, "data": [{"id": "a"}] * 300})
    assert command.run(OPTIONS) == 0


def test_a_page_without_anything_is_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = answering(monkeypatch, ONE, {**ONE, "data": []})
    assert command.run(OPTIONS) == 0
    assert asked == [{"limit": "100"}, {"limit": "100", "after": "a"}]


def test_what_a_terminal_obeys_is_printed_as_escapes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rollout = {"id": "a", "metadata": {"\u202e": "\x9b2J\x1b]0;\ud800ü"}}
    answering(monkeypatch, {"data": [rollout], "last_id": "a", "has_more": False})
    assert command.run(OPTIONS) == 0
    printed = capsys.readouterr().out
    assert printed.strip().isascii()
    assert printed.strip().isprintable()
    assert json.loads(printed) == rollout


HEAD = RolloutRecord(id="rollout_1", project="p", name="task", created_at=1, last_at=1).as_json()
FORKS = placed([recorded(list(range(100)), [1000 + fork]) for fork in range(20)])


def test_a_tree_that_is_too_large_says_how_it_is_shorter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollouts, "MAX_NUMBERS", 1_000)
    with pytest.raises(ApiError, match=r"\?sequences=false") as refused:
        rollouts._tree(HEAD, FORKS, "first", True)
    assert (refused.value.status, refused.value.code) == (400, "rollout_too_large")
    shown = json.loads(rollouts._tree(HEAD, FORKS, "first", False))
    assert shown["sequences"] is None
    assert sum(len(node["token_ids"]) for node in shown["nodes"]) == 120
    monkeypatch.setattr(rollouts, "MAX_NUMBERS", 100)
    with pytest.raises(ApiError, match="Export it") as refused:
        rollouts._tree(HEAD, FORKS, "first", False)
    assert "sequences=false" not in refused.value.message


def test_files_leave_sequences_out_that_are_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    forks = tree.tree_of(HEAD, FORKS)
    for most, count in ((10_000, 20), (1_000, None)):
        monkeypatch.setattr(tree, "MAX_NUMBERS", most)
        sequences = forks.in_files()["sequences"]
        assert (None if sequences is None else len(sequences)) == count


def test_a_tree_of_the_usual_size_has_its_sequences() -> None:
    assert len(json.loads(rollouts._tree(HEAD, FORKS, "first", True))["sequences"]) == 20


A, B, C = (b'{"rollout_id":"%b","group":null}\n' % name for name in (b"a", b"b:1", b"c.2"))


@pytest.mark.parametrize(
    ("content", "kept", "last"),
    [
        (b"", b"", None),
        (A, b"", None),
        (A + A, b"", None),
        (A + A + B, A + A, "a"),
        (A + B + B, A, "a"),
        (A + B + B + C[:20], A, "a"),
        (A + B + C, A + B, "b:1"),
        (A[:20], b"", None),
        (b'{"id":"t"}\n{"id":"u"}\n', b'{"id":"t"}\n', "t"),
    ],
)
def test_the_rows_of_the_last_rollout_are_dropped(content: bytes, kept: bytes, last: str | None) -> None:
    file = io.BytesIO(content)
    assert whole_rollouts(file) == last
    assert (file.getvalue(), file.tell()) == (kept, len(kept))


@pytest.mark.parametrize("content", [b"{}\n", b"words\n", b'{"rollout_id":1}\n' + A])
def test_another_file_is_left_as_it_is(content: bytes) -> None:
    file = io.BytesIO(content)
    with pytest.raises(CommandFailed):
        whole_rollouts(file)
    assert file.getvalue() == content
