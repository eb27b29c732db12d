"""The demo engine has the server's interpreter run what stands behind `python:`, where it is offered one."""

import pytest

from engine.backends.demo.replies import render_reply
from engine.backends.demo.tools import DemoCall
from engine.formats.base import ToolNamespace
from engine.formats.harmony.encoding import decode_tokens
from tests.unit.engine.prompts import answer_of, reply_with

OFFERED = [ToolNamespace("python", "Runs code.")]


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ("python: 2**100", "2**100"),
        ("Please.\nPython: x = 1\nx + 1", "x = 1\nx + 1"),
        ("python:\n```python\nprint(1)\n```\nThank you.", "print(1)"),
        ("python: search for python", "search for python"),
    ],
)
def test_it_runs_what_it_is_told_to(asked: str, code: str) -> None:
    call = reply_with(asked, OFFERED)
    assert call == DemoCall("The user wants code to be run.", "python", code, hosted=True, freeform=True)
    assert decode_tokens(render_reply(call)).endswith(f" to=python code<|message|>{code}<|call|>")


def test_it_says_what_came_of_it_and_runs_nothing_twice() -> None:
    answer = answer_of(reply_with("python: 2**10", OFFERED, ("python", "1024\n")))
    assert answer == "The demo engine called python and it returned: 1024."


@pytest.mark.parametrize(("asked", "python"), [("python: 1", False), ("I like python", True), ("a python: 1", True)])
def test_it_runs_nothing_that_it_was_not_told_to(asked: str, python: bool) -> None:
    assert answer_of(reply_with(asked, OFFERED if python else []))
