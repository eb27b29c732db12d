"""The demo engine has the server's interpreter run what stands behind `python:`, where it is offered one."""

import pytest

from engine.backends.demo.replies import render_reply, reply_to
from engine.backends.demo.tools import DemoAnswer, DemoCall
from engine.backends.transcript import PromptTranscript
from engine.formats.base import ToolNamespace
from engine.formats.harmony.encoding import decode_tokens
from engine.formats.harmony.format import HarmonyFormat
from engine.formats.harmony.prompt import generation_start

HARMONY = HarmonyFormat()


def reply(asked: str, *, output: str | None = None, python: bool = True) -> DemoAnswer | DemoCall:
    """Return the reply to a user, behind what the interpreter gave back."""
    namespaces = [ToolNamespace("python", "Runs code.")] if python else []
    tokens = HARMONY.frame(instructions=None, functions=[], effort="low", date="2026-01-01", namespaces=namespaces)
    tokens.extend(HARMONY.user(asked).tokens)
    if output is not None:
        tokens.extend(HARMONY.call("python", "1", hosted=True, freeform=True).tokens)
        tokens.extend(HARMONY.output("python", output, hosted=True).tokens)
    tokens.extend(generation_start())
    return reply_to(PromptTranscript(tokens))


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
    call = reply(asked)
    assert call == DemoCall("The user wants code to be run.", "python", code, hosted=True, freeform=True)
    assert decode_tokens(render_reply(call)).endswith(f" to=python code<|message|>{code}<|call|>")


def test_it_says_what_came_of_it_and_runs_nothing_twice() -> None:
    answer = reply("python: 2**10", output="1024\n")
    assert isinstance(answer, DemoAnswer)
    assert answer.text == "The demo engine called python and it returned: 1024."


@pytest.mark.parametrize(("asked", "python"), [("python: 1", False), ("I like python", True), ("a python: 1", True)])
def test_it_runs_nothing_that_it_was_not_told_to(asked: str, python: bool) -> None:
    assert isinstance(reply(asked, python=python), DemoAnswer)
