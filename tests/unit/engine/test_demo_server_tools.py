"""The demo engine calls the tools of MCP servers that a developer message declares beside the client's functions."""

from collections.abc import Sequence

from engine.backends.demo.arguments import read_functions, read_server_tools
from engine.backends.demo.replies import reply_to, reply_tokens
from engine.backends.demo.tools import DemoAnswer, DemoCall
from engine.backends.transcript import PromptTranscript
from engine.formats.base import FunctionTool, ToolNamespace
from engine.formats.harmony.encoding import decode_tokens
from engine.formats.harmony.format import HarmonyFormat
from engine.formats.harmony.prompt import developer_text
from engine.types import TurnRules

HARMONY = HarmonyFormat()
CITY = '{"type":"object","properties":{"city":{"type":"string"}},"required":["city"]}'
WEATHER = ToolNamespace("weather", "Of the world.", (FunctionTool("now", "", CITY), FunctionTool("say", "", "")))
ADD = FunctionTool("add", "", "")


def reply(
    text: str,
    *functions: FunctionTool,
    outputs: tuple[tuple[str, str], ...] = (),
    namespaces: tuple[ToolNamespace, ...] = (WEATHER,),
) -> DemoAnswer | DemoCall:
    return reply_to(PromptTranscript(prompt_of(text, *functions, outputs=outputs, namespaces=namespaces)))


def prompt_of(
    text: str,
    *functions: FunctionTool,
    outputs: tuple[tuple[str, str], ...] = (),
    namespaces: tuple[ToolNamespace, ...] = (WEATHER,),
) -> Sequence[int]:
    """Return a prompt, with calls of the server's tools and what they gave back."""
    prompt = HARMONY.frame(
        instructions=None, functions=functions, effort="low", date="2026-01-01", namespaces=namespaces
    )
    prompt.extend(HARMONY.user(text).tokens)
    for name, output in outputs:
        prompt.extend(HARMONY.call(name, "{}", hosted=True).tokens)
        prompt.extend(HARMONY.output(name, output, hosted=True).tokens)
    prompt.extend(HARMONY.generation_start())
    return prompt


def answer_by(text: str, rules: TurnRules, outputs: tuple[tuple[str, str], ...] = ()) -> str:
    """Return the answer that rules without calls allow."""
    said = decode_tokens(reply_tokens(prompt_of(text, outputs=outputs), rules))
    return said.rpartition("<|channel|>final<|message|>")[2].removesuffix("<|return|>")


def test_it_reads_each_namespace_apart() -> None:
    for functions in ((), (ADD,)):
        text = developer_text("Be brief.", functions, (WEATHER,))
        assert [name for name, _ in read_server_tools(text)] == ["weather.now", "weather.say"]
        assert [name for name, _ in read_functions(text)] == [each.name for each in functions]
    assert read_server_tools(developer_text(None, (ADD,))) == ()


def test_it_calls_what_the_user_names() -> None:
    for text in ('call weather.now for "Rome"', 'call now for "Rome"'):
        call = reply(text, ADD)
        assert isinstance(call, DemoCall)
        assert (call.name, call.arguments, call.hosted) == ("weather.now", '{"city":"Rome"}', True)
    call = reply("call add", ADD)
    assert isinstance(call, DemoCall)
    assert (call.name, call.hosted) == ("add", False)


def test_it_says_what_came_of_it() -> None:
    answer = reply("call weather.now", outputs=(("weather.now", "18 °C"),))
    assert isinstance(answer, DemoAnswer)
    assert "called weather.now and it returned: 18 °C." in answer.text


def test_it_draws_once_where_images_can_be_made() -> None:
    draw = FunctionTool("generate", "", '{"type":"object","properties":{"prompt":{"type":"string"}}}')
    images = ToolNamespace("image_generation", "", (draw,))
    for text, prompt in (("Please draw a cat.", "a cat"), ("call image_generation", "call image_generation")):
        call = reply(text, namespaces=(images,))
        assert isinstance(call, DemoCall)
        assert (call.name, call.arguments, call.hosted) == (
            "image_generation.generate",
            f'{{"prompt": "{prompt}"}}',
            True,
        )
        done = reply(text, namespaces=(images,), outputs=(("image_generation.generate", "It was made."),))
        assert isinstance(done, DemoAnswer)
        assert "called image_generation.generate and it returned: It was made." in done.text
    assert isinstance(reply("Please draw a cat."), DemoAnswer)


def test_what_it_may_not_call_it_says() -> None:
    rules = TurnRules()
    text = answer_by('call weather.now for "Rome" and weather.now', rules, outputs=(("weather.now", "18 °C"),))
    assert "called weather.now and it returned: 18 °C." in text
    assert text.endswith("The demo engine would call weather.now now, and may not.")
    assert answer_by("call weather.now", rules) == "The demo engine would call weather.now now, and may not."
