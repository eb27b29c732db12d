"""The demo engine searches files where it is offered that, and cites what it finds."""

import json

from engine.backends.demo.replies import reply_to
from engine.backends.demo.tools import DemoAnswer, DemoCall
from engine.backends.transcript import PromptTranscript
from engine.formats.base import FunctionTool, ToolNamespace
from engine.formats.harmony.format import HarmonyFormat
from engine.formats.harmony.prompt import generation_start
from responses_app.tools.file_search import DESCRIPTION, FUNCTION, NAME, NAMESPACE, SCHEMA

HARMONY = HarmonyFormat()
FOUND = "[2:0] a b.txt\nThe shell is bone.\nIt is hard.\n\n[2:1] c.txt\nElse."


def reply(asked: str, *outputs: str, offered: bool = True) -> DemoAnswer | DemoCall:
    """Return the reply to a user, behind what was found."""
    functions = (FunctionTool(FUNCTION, "Searches.", json.dumps(SCHEMA)),)
    namespaces = [ToolNamespace(NAMESPACE, DESCRIPTION, functions)] if offered else []
    tokens = HARMONY.frame(instructions=None, functions=[], effort="low", date="2026-01-01", namespaces=namespaces)
    tokens.extend(HARMONY.user(asked).tokens)
    for text in outputs:
        tokens.extend(HARMONY.call(NAME, "{}", hosted=True).tokens)
        tokens.extend(HARMONY.output(NAME, text, hosted=True).tokens)
    tokens.extend(generation_start())
    return reply_to(PromptTranscript(tokens))


def test_it_searches_and_cites() -> None:
    asked = "Please search the files for turtle shells."
    call = reply(asked)
    assert isinstance(call, DemoCall)
    assert (call.name, json.loads(call.arguments), call.hosted) == (NAME, {"queries": ["turtle shells"]}, True)
    answer = reply(asked, FOUND)
    assert isinstance(answer, DemoAnswer)
    assert answer.text.endswith("a b.txt says: The shell is bone.\nIt is hard.【2:0†a b.txt】")
    nothing = reply(asked, "Nothing was found.")
    assert isinstance(nothing, DemoAnswer)
    assert nothing.text.endswith("was told: Nothing was found.")
    assert isinstance(reply(asked, offered=False), DemoAnswer)
