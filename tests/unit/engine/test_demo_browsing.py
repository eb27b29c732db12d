"""The demo engine browses where it is offered a browser: it searches, opens the first hit, and cites it."""

import pytest

from engine.formats.base import ToolNamespace
from responses_app.tools.browser.tool import DESCRIPTION, FUNCTIONS
from tests.unit.engine.prompts import answer_of, call_of, reply_with

RESULTS = (
    "[0] turtles\n**viewing lines [0 - 2] of 2**\n\nL0: # Search Results\nL1: \nL2:   * 【0†Turtles†a.example】 All."
)
PAGE = "[1] On turtles (https://a.example/)\n**viewing lines [0 - 1] of 1**\n\nL0: A 【0†shell】 is bone.\nL1: Always."
OFFERED = [ToolNamespace("browser", DESCRIPTION, FUNCTIONS)]


def test_it_searches_opens_and_cites() -> None:
    asked = "Please search the web for old turtles, and tell me."
    assert call_of(reply_with(asked, OFFERED)) == ("browser.search", {"query": "old turtles, and tell me"}, True)
    found = ("browser.search", RESULTS)
    assert call_of(reply_with(asked, OFFERED, found)) == ("browser.open", {"id": 0}, True)
    answer = answer_of(reply_with(asked, OFFERED, found, ("browser.open", PAGE)))
    assert "On turtles (https://a.example/)" in answer
    assert answer.endswith("A [0†shell] is bone. Always.【1†L0-L1】")


@pytest.mark.parametrize(
    ("output", "said"),
    [
        ("Error: The search failed.", "Error: The search failed."),
        ("[0] x\n**v**\n\nL0: # Search Results\nL2: Nothing was found.", "Nothing was found."),
    ],
)
def test_it_says_what_went_wrong(output: str, said: str) -> None:
    assert said in answer_of(reply_with("search for x", OFFERED, ("browser.search", output)))


def test_without_a_browser_it_does_not() -> None:
    assert answer_of(reply_with("search for x", []))
    assert answer_of(reply_with("I search my keys", OFFERED))
