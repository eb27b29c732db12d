"""The demo engine calls the tools of MCP servers that a developer message declares beside the client's functions."""

import pytest

from engine.backends.demo.arguments import read_functions, read_server_tools
from engine.backends.demo.replies import reply_to, reply_tokens
from engine.backends.transcript import PromptTranscript
from engine.formats.base import FunctionTool, ToolNamespace
from engine.formats.harmony.encoding import decode_tokens
from engine.formats.harmony.prompt import developer_text
from engine.types import TurnRules
from tests.unit.engine.prompts import answer_of, call_of, prompt_with, reply_with

CITY = '{"type":"object","properties":{"city":{"type":"string"}},"required":["city"]}'
WEATHER = ToolNamespace("weather", "Of the world.", (FunctionTool("now", "", CITY), FunctionTool("say", "", "")))
ADD = FunctionTool("add", "", "")


def answer_by(text: str, rules: TurnRules, *outputs: tuple[str, str]) -> str:
    """Return the answer that rules without calls allow."""
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
