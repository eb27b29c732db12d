"""Calls with one id: outputs answer them in their order, in the words of each API and in each format."""

from typing import Any

import pytest

from engine.formats.base import PlainKind
from engine.formats.harmony.format import HarmonyFormat, render_messages
from engine.models import plain_messages
from responses_app.extensions.console.watch.transcript import PageTranscript
from responses_app.protocol.errors import ApiError, JsonObject
from responses_app.protocol.items.calls import check_outputs
from responses_app.protocol.messages.blocks import read_messages
from responses_app.protocol.prompt.chain import new_link
from responses_app.protocol.prompt.rendering import render_items
from responses_app.protocol.requests.requests import parse_create
from tests.kit.fakes import Site
from tests.unit.formats.families import QWEN
from tests.unit.formats.rendering import format_of
from tests.unit.protocol.test_chat import chat

FORMATS = {"harmony": HarmonyFormat(), "chat template": format_of(QWEN)[0]}
USER: JsonObject = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "go"}]}


def call(name: str, kind: str = "function_call", **fields: Any) -> JsonObject:
    said: JsonObject = {"name": name, "input" if kind[0] == "c" else "arguments": "{}"}
    return {"type": kind, "call_id": "X", **({"action": {"commands": []}} if kind[0] == "s" else said), **fields}


def output(text: str, kind: str = "function_call_output") -> JsonObject:
    return {"type": kind, "call_id": "X", "output": text}


def custom(name: str) -> JsonObject:
    return call(name, "custom_tool_call")


def custom_output(text: str) -> JsonObject:
    return output(text, "custom_tool_call_output")


APPROVALS: list[JsonObject] = [
    {"type": "mcp_approval_request", "id": "X", "server_label": "s", "name": name, "arguments": "{}"} for name in "ab"
]
DENIED: list[JsonObject] = [
    {"type": "mcp_approval_response", "approval_request_id": "X", "approve": False, "reason": each} for each in "xy"
]
SHELL = call("", "shell_call")
CASES: dict[str, tuple[list[JsonObject], str]] = {  # items, and which tool gave what
    "functions": ([call("a"), call("b"), output("1"), output("2")], "a=1 b=2"),
    "three": ([*map(call, "abc"), *map(output, "123")], "a=1 b=2 c=3"),
    "between": ([call("a"), call("b"), output("1"), call("c"), output("2"), output("3")], "a=1 b=2 c=3"),
    "custom": ([custom("a"), custom("b"), custom_output("1"), custom_output("2")], "a=1 b=2"),
    "kinds": ([call("a"), custom("b"), custom_output("2"), output("1")], "b=2 a=1"),
    "mixed": ([custom("a"), call("b"), call("c"), *map(output, "23"), custom_output("1")], "b=2 c=3 a=1"),
    "shell": ([SHELL, call("b"), output("1", "shell_call_output"), output("2")], "shell=1 b=2"),
    "codex": ([SHELL, call("b"), output("1"), output("2")], "shell=1 b=2"),
    "asynchronous": ([call(each, **{"async": True}) for each in "ab"] + [output("1"), output("2")], "a=1 b=2"),
    "inside": ([call("a", output="1"), call("b"), output("2")], "a=1 b=2"),
    "late": ([call("a"), call("b"), output("1"), output("2"), USER, output("3")], "a=1 b=2 b=3"),
    "turns": ([call("a"), output("1"), USER, call("b"), output("2")], "a=1 b=2"),
    "never answered": ([call("a", **{"async": True}), USER, call("b"), output("2")], "b=2"),
    "approvals": ([*APPROVALS, *DENIED], "s.a=x s.b=y"),
}


def given(format_name: str, items: list[JsonObject], before: list[JsonObject] | None = None) -> str:
    """Return which tools the model reads to have given what; `before` are items of the chain."""
    model_format = FORMATS[format_name]
    parent = new_link(None, response_id="r", started_on="2026-01-01", messages=[], items=before) if before else None
    request = parse_create({"input": items})
    messages = render_items(model_format, request.input, request.input_json, parent=parent, sampled={})
    told = [each for message in messages for each in plain_messages(message) or ()]
    outputs = [(each.name, str(each.body)) for each in told if each.kind is PlainKind.OUTPUT]
    return " ".join(
        f"{name}={text.removeprefix('[the user did not approve this call: ').rstrip(']')}" for name, text in outputs
    )


@pytest.mark.parametrize("format_name", FORMATS)
@pytest.mark.parametrize("case", CASES)
def test_outputs_answer_calls_in_their_order(case: str, format_name: str) -> None:
    items, expected = CASES[case]
    assert given(format_name, [USER, *items]) == expected
    check_outputs(items, before=[], known={}, in_background=())
    half = next(place for place, item in enumerate(items) if "output" in str(item["type"]) or item in DENIED)
    if case not in ("turns", "inside", "approvals"):  # a chain knows no approvals, nor what was answered in it
        assert given(format_name, items[half:], before=items[:half]) == expected, "of a chain"


@pytest.mark.parametrize("format_name", FORMATS)
def test_the_template_reads_them_with_the_ids_of_their_calls(format_name: str) -> None:
    """The second output of one function is that of its second call, whatever their ids."""
    assert given(format_name, [USER, call("a"), call("a", arguments='{"n": 2}'), output("1"), output("2")]) == "a=1 a=2"


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([call("a"), call("b"), output("1")], "No tool output found for function call X"),
        ([call("a"), custom("b"), output("1")], "No tool output found for custom tool call X"),
        ([call("a"), output("1"), USER, call("b")], "No tool output found for function call X"),
        ([call("a"), call("a"), output("1")], ""),  # one call, sent twice
        (
            [call("a"), call("b"), custom_output("1"), output("2")],
            "No tool call found for custom tool call output with call_id X",
        ),
    ],
)
def test_each_call_of_a_turn_needs_its_output(items: list[JsonObject], message: str) -> None:
    problem = ""
    try:
        check_outputs(items, before=[], known={}, in_background=())
    except ApiError as error:
        problem = error.message.partition(".")[0]
    assert problem == message


def test_chat_completions() -> None:
    calls = [
        {"id": "X", "type": "function", "function": {"name": "a", "arguments": "{}"}},
        {"id": "X", "type": "custom", "custom": {"name": "b", "input": ""}},
        {"id": "X", "type": "function", "function": {"name": "c", "arguments": "{}"}},
    ]
    outputs = [{"role": "tool", "tool_call_id": "X", "content": each} for each in "123"]
    messages = [{"role": "user", "content": "go"}, {"role": "assistant", "tool_calls": calls}, *outputs]
    assert given("harmony", chat(messages=messages).create.input_json) == "a=1 b=2 c=3"
    olds = [{"role": "assistant", "content": None, "function_call": {"name": each, "arguments": "{}"}} for each in "ab"]
    answers = [{"role": "function", "name": each, "content": each * 2} for each in "ba"]
    assert given("harmony", chat(messages=[messages[0], *olds, *answers]).create.input_json) == "b=bb a=aa"


def test_messages_of_anthropic() -> None:
    uses = [{"type": "tool_use", "id": "X", "name": each, "input": {}} for each in "ab"]
    served = [{"type": "server_tool_use", "id": "Y", "name": "web_search", "input": {"query": each}} for each in "cd"]
    came = [
        {"type": "web_search_tool_result", "tool_use_id": "Y", "content": [{"type": "web_search_result", "url": each}]}
        for each in ("http://c", "http://d")
    ]
    results = [{"type": "tool_result", "tool_use_id": "X", "content": each} for each in "12"]
    read = read_messages(
        [{"role": "assistant", "content": [*served, *came, *uses]}, {"role": "user", "content": results}]
    ).items
    assert given("harmony", read[-4:]) == "a=1 b=2"
    assert ["http://c" in str(read[0]), "http://d" in str(read[1])] == [True, True]


def test_messages_in_the_shape_of_chat_for_harmony() -> None:
    calls = [{"id": "X", "function": {"name": each, "arguments": "{}"}} for each in "ab"]
    outputs = [{"role": "tool", "tool_call_id": "X", "content": each} for each in "12"]
    rendered = render_messages([{"role": "assistant", "tool_calls": calls}, *outputs])
    told = [each for message in rendered for each in plain_messages(message) or () if each.kind is PlainKind.OUTPUT]
    assert [(each.name, each.body) for each in told] == [("a", "1"), ("b", "2")]


def test_the_page_shows_each_output_with_its_call() -> None:
    transcript = PageTranscript()
    blocks = transcript.read([USER, call("a"), call("b"), call("c"), output("1"), output("2")])
    assert [block.title for block in blocks] == ["User", "a", "b", "c"]
    assert transcript.unanswered() == ["X"]
    transcript.read_answers([output("3")], "resp_2")
    answers = [block.answer.code.shown for block in blocks[1:] if block.answer and block.answer.code]
    assert (answers, transcript.unanswered()) == (["1", "2", "3"], [])


@pytest.mark.parametrize("calls", [[call("a"), custom("b")], [custom("b"), call("a")]])
async def test_a_chain_knows_the_types_of_its_calls(calls: list[JsonObject]) -> None:
    site = Site()
    first = await site.ask(input=[USER, *calls], generate=False)
    answered = await site.ask(input=[custom_output("2"), output("1")], previous_response_id=first["id"])
    assert answered["status"] == "completed"
