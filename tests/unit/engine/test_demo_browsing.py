"""The demo engine browses where it is offered a browser: it searches, opens the first hit, and cites it."""

import json

from engine.backends.demo.replies import reply_to
from engine.backends.demo.tools import DemoAnswer, DemoCall
from engine.backends.transcript import PromptTranscript
from engine.formats.base import ToolNamespace
from engine.formats.harmony.format import HarmonyFormat
from engine.formats.harmony.prompt import generation_start
from responses_app.tools.browser.tool import DESCRIPTION, FUNCTIONS

HARMONY = HarmonyFormat()
RESULTS = (
    "[0] turtles\n**viewing lines [0 - 2] of 2**\n\nL0: # Search Results\nL1: \nL2:   * 【0†Turtles†a.example】 All."
)
PAGE = "[1] On turtles (https://a.example/)\n**viewing lines [0 - 1] of 1**\n\nL0: A 【0†shell】 is bone.\nL1: Always."


def reply(asked: str, *outputs: tuple[str, str], browser: bool = True) -> DemoAnswer | DemoCall:
    """Return the reply to a user, behind what the browser has shown."""
    namespaces = [ToolNamespace("browser", DESCRIPTION, FUNCTIONS)] if browser else []
    tokens = HARMONY.frame(instructions=None, functions=[], effort="low", date="2026-01-01", namespaces=namespaces)
    tokens.extend(HARMONY.user(asked).tokens)
    for name, text in outputs:
        tokens.extend(HARMONY.call(name, "{}", hosted=True).tokens)
        tokens.extend(HARMONY.output(name, text, hosted=True).tokens)
    tokens.extend(generation_start())
    return reply_to(PromptTranscript(tokens))


def test_it_searches_opens_and_cites() -> None:
    asked = "Please search the web for old turtles, and tell me."
    search = reply(asked)
    assert isinstance(search, DemoCall)
    assert (search.name, search.hosted) == ("browser.search", True)
    assert json.loads(search.arguments) == {"query": "old turtles, and tell me"}
    opened = reply(asked, ("browser.search", RESULTS))
    assert isinstance(opened, DemoCall)
    assert (opened.name, json.loads(opened.arguments)) == ("browser.open", {"id": 0})
    answer = reply(asked, ("browser.search", RESULTS), ("browser.open", PAGE))
    assert isinstance(answer, DemoAnswer)
    assert "On turtles (https://a.example/)" in answer.text
    assert answer.text.endswith("A [0†shell] is bone. Always.【1†L0-L1】")


def test_it_says_what_went_wrong() -> None:
    answer = reply("search for x", ("browser.search", "Error: The search failed."))
    assert isinstance(answer, DemoAnswer)
    assert "Error: The search failed." in answer.text
    nothing = reply("search for x", ("browser.search", "[0] x\n**v**\n\nL0: # Search Results\nL2: Nothing was found."))
    assert isinstance(nothing, DemoAnswer)
    assert "Nothing was found." in nothing.text


def test_without_a_browser_it_does_not() -> None:
    assert isinstance(reply("search for x", browser=False), DemoAnswer)
    assert isinstance(reply("I search my keys"), DemoAnswer)
