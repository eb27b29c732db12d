"""The demo engine calls the tools that it is offered: the interpreter, those of MCP servers, a browser, files."""

import json

import pytest

from engine.backends.demo.arguments import read_functions, read_server_tools
from engine.backends.demo.replies import render_reply, reply_to, reply_tokens
from engine.backends.demo.tools import DemoCall
from engine.backends.simulated import PromptTranscript
from engine.formats.base import FunctionTool, ToolNamespace
from engine.formats.harmony.encoding import decode_tokens
from engine.formats.harmony.prompt import developer_text
from engine.types import TurnRules
from responses_app.resources.vector_stores.tool import DESCRIPTION as ABOUT_FILES
from responses_app.resources.vector_stores.tool import FUNCTION, NAME, NAMESPACE, SCHEMA
from responses_app.tools.browser.tool import DESCRIPTION, FUNCTIONS
from tests.unit.engine.prompts import answer_of, call_of, prompt_with, reply_with

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


CITY = '{"type":"object","properties":{"city":{"type":"string"}},"required":["city"]}'
WEATHER = ToolNamespace("weather", "Of the world.", (FunctionTool("now", "", CITY), FunctionTool("say", "", "")))
ADD = FunctionTool("add", "", "")


def answer_by(text: str, rules: TurnRules, *outputs: tuple[str, str]) -> str:
    said = decode_tokens(reply_tokens(prompt_with(text, [WEATHER], *outputs), rules))
    return said.rpartition("<|channel|>final<|message|>")[2].removesuffix("<|return|>")


def test_it_reads_each_namespace_apart() -> None:
    for functions in ((), (ADD,)):
        text = developer_text("Be brief.", functions, (WEATHER,))
        assert [name for name, _ in read_server_tools(text)] == ["weather.now", "weather.say"]
        assert [name for name, _ in read_functions(text)] == [each.name for each in functions]
    assert read_server_tools(developer_text(None, (ADD,))) == ()


@pytest.mark.parametrize(
    ("text", "called"),
    [
        ('call weather.now for "Rome"', ("weather.now", {"city": "Rome"}, True)),
        ('call now for "Rome"', ("weather.now", {"city": "Rome"}, True)),
        ("call add", ("add", {}, False)),
    ],
)
def test_it_calls_what_the_user_names(text: str, called: tuple[str, object, bool]) -> None:
    asked = prompt_with(text, [WEATHER], functions=[ADD])
    assert call_of(reply_to(PromptTranscript(asked))) == called


def test_it_says_what_came_of_it() -> None:
    answer = answer_of(reply_with("call weather.now", [WEATHER], ("weather.now", "18 °C")))
    assert "called weather.now and it returned: 18 °C." in answer


@pytest.mark.parametrize(
    ("text", "prompt"), [("Please draw a cat.", "a cat"), ("call image_generation", "call image_generation")]
)
def test_it_draws_once_where_images_can_be_made(text: str, prompt: str) -> None:
    draw = FunctionTool("generate", "", '{"type":"object","properties":{"prompt":{"type":"string"}}}')
    images, name = [ToolNamespace("image_generation", "", (draw,))], "image_generation.generate"
    assert call_of(reply_with(text, images)) == (name, {"prompt": prompt}, True)
    done = answer_of(reply_with(text, images, (name, "It was made.")))
    assert "called image_generation.generate and it returned: It was made." in done
    assert answer_of(reply_with("Please draw a cat.", [WEATHER]))


def test_what_it_may_not_call_it_says() -> None:
    rules = TurnRules()
    text = answer_by('call weather.now for "Rome" and weather.now', rules, ("weather.now", "18 °C"))
    assert "called weather.now and it returned: 18 °C." in text
    assert text.endswith("The demo engine would call weather.now now, and may not.")
    assert answer_by("call weather.now", rules) == "The demo engine would call weather.now now, and may not."


RESULTS = (
    "[0] turtles\n**viewing lines [0 - 2] of 2**\n\nL0: # Search Results\nL1: \nL2:   * 【0†Turtles†a.example】 All."
)
PAGE = "[1] On turtles (https://a.example/)\n**viewing lines [0 - 1] of 1**\n\nL0: A 【0†shell】 is bone.\nL1: Always."
BROWSER = [ToolNamespace("browser", DESCRIPTION, FUNCTIONS)]


def test_it_searches_opens_and_cites() -> None:
    asked = "Please search the web for old turtles, and tell me."
    assert call_of(reply_with(asked, BROWSER)) == ("browser.search", {"query": "old turtles, and tell me"}, True)
    found = ("browser.search", RESULTS)
    assert call_of(reply_with(asked, BROWSER, found)) == ("browser.open", {"id": 0}, True)
    answer = answer_of(reply_with(asked, BROWSER, found, ("browser.open", PAGE)))
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
    assert said in answer_of(reply_with("search for x", BROWSER, ("browser.search", output)))


def test_without_a_browser_it_does_not() -> None:
    assert answer_of(reply_with("search for x", []))
    assert answer_of(reply_with("I search my keys", BROWSER))


FILES = [ToolNamespace(NAMESPACE, ABOUT_FILES, (FunctionTool(FUNCTION, "Searches.", json.dumps(SCHEMA)),))]
FOUND = "[2:0] a b.txt\nThe shell is bone.\nIt is hard.\n\n[2:1] c.txt\nElse."


def test_it_searches_and_cites() -> None:
    asked = "Please search the files for turtle shells."
    assert call_of(reply_with(asked, FILES)) == (NAME, {"queries": ["turtle shells"]}, True)
    answer = answer_of(reply_with(asked, FILES, (NAME, FOUND)))
    assert answer.endswith("a b.txt says: The shell is bone.\nIt is hard.【2:0†a b.txt】")
    assert answer_of(reply_with(asked, FILES, (NAME, "Nothing was found."))).endswith("was told: Nothing was found.")
    assert answer_of(reply_with(asked, []))
