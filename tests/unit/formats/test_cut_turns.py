"""A turn of a model with a chat template that has to fit a rule, and is cut: at every token, and taken over."""

import json

import pytest

from engine.errors import GenerationCut
from engine.formats.base import ModelFormat
from engine.types import AnyObject, CallRule, JsonSchema, TurnRules
from responses_app.protocol.errors import JsonObject
from responses_app.runs.plan.failures import BROKEN
from tests.kit.laws import assert_laws
from tests.unit.formats.families import LLAMA, QWEN, Family
from tests.unit.formats.rendering import format_of
from tests.unit.formats.test_chat_template import FamilySite

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
TOOL: JsonObject = {"type": "function", "name": "f", "strict": True, "parameters": SCHEMA}
THOUGHT = "<think>\nHm.\n</think>\n\n"
ASKED: dict[str, dict[str, object]] = {
    "an answer": {"text": {"format": {"type": "json_schema", "name": "it", "strict": True, "schema": SCHEMA}}},
    "a call": {"tools": [TOOL], "tool_choice": "required"},
}
SAID = {
    ("qwen", "an answer"): THOUGHT + '{"n": 17}',
    ("qwen", "a call"): THOUGHT + '<tool_call>\n{"name": "f", "arguments": {"n": 17}}\n</tool_call>',
    ("llama", "an answer"): '{"n": 17}',
    ("llama", "a call"): '{"name": "f", "parameters": {"n": 17}}',
}


@pytest.mark.parametrize("rest", [None, "oops"], ids=["ends as it should", "does not fit"])
@pytest.mark.parametrize("case", ASKED)
@pytest.mark.parametrize("family", [QWEN, LLAMA], ids=lambda each: each.name)
async def test_a_turn_that_has_to_fit_is_cut_at_every_token(family: Family, case: str, rest: str | None) -> None:
    """What the grammar of the rest still holds, an engine holds; the middle of a content is checked at its end."""
    whole, site = SAID[family.name, case], FamilySite(family)
    site.engine.supports_grammar = True
    ends = {"completed": 0, "failed": 0, "held": 0}
    for cut in range(1, len(whole)):
        left = whole[cut:] if rest is None else rest
        site.engine.turns = [[whole[:cut], GenerationCut("its replica went away")], [left + family.end]]
        site.engine.requests.clear()
        events = await (await site.begin(input="hi", **ASKED[case])).to_the_end()
        assert_laws(events)
        response: JsonObject = events[-1]["response"]  # type: ignore[assignment]
        grammar = site.engine.requests[1].grammar
        assert grammar is not None, "the rest is held to something"
        if not grammar.loose and rest is not None:
            ends["held"] += 1
            continue  # a real engine would have held to it
        ends[str(response["status"])] += 1
        if rest is None:
            item = response["output"][-1]  # type: ignore[index]
            text = item["arguments"] if case == "a call" else item["content"][0]["text"]
            assert json.loads(text) == {"n": 17}
        else:
            assert response["error"] == {"code": "server_error", "message": BROKEN}
            done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
            assert {item["type"] for item in done} <= {"reasoning"}, "never told as whole"  # type: ignore[index]
    assert (ends["failed"] == 0, ends["completed"] == 0) == (rest is None, rest is not None)
    assert (ends["held"] > 0) == (family is QWEN and rest is not None), "a thought goes on under its grammar"


RULES = TurnRules(calls=(CallRule("f", JsonSchema(json.dumps(SCHEMA))), CallRule("g", AnyObject())), must_call=True)
TURNS = [
    (THOUGHT + '<tool_call>\n{"name": "f", "arguments": {"n": 1}}\n</tool_call>', None),
    ('<tool_call>{"name": "g", "arguments": {}}</tool_call><tool_call>{"name": "f", "arguments": {"n": 1}}', None),
    ('<tool_call>\n{"name": "f", "arguments": {"n": "1"}}\n</tool_call>', "does not fit its schema"),
    ('<tool_call>\n{"name": "h", "arguments": {}}\n</tool_call>', "cannot be called"),
    ('<tool_call>\n{"name": "g", "arguments": {"a": \n</tool_call>', "malformed"),
    ("Hello.", "has to call"),
    ("<think>Hm.", "has to call"),
]


@pytest.mark.parametrize(("said", "problem"), TURNS)
def test_a_turn_is_read_as_a_whole(said: str, problem: str | None) -> None:
    model_format, renderer = format_of(QWEN)
    tokens = [*renderer.encode(said), QWEN.ids[QWEN.end]]
    found = model_format.problem_of(RULES, tokens)
    assert (found is None) == (problem is None)
    assert problem is None or problem in str(found)


def shape_behind(model_format: ModelFormat, said: str, rules: TurnRules = RULES) -> str:
    grammar = model_format.grammar(rules, format_of(QWEN)[1].encode(said))
    assert grammar is not None
    shape = json.loads(grammar.structural_tag)["format"]
    return "loose" if grammar.loose else "+".join(each["type"] for each in shape.get("elements", [shape]))


@pytest.mark.parametrize(
    ("said", "shape"),
    [
        ("<think>", "tag+tags_with_separator"),
        ("<think>Hm.", "tag+tags_with_separator"),
        ("<think>Hm. <", "loose"),
        ("<think>Hm.</think>", "const_string+tags_with_separator"),
        ("<think>Hm.</think>\n", "const_string+tags_with_separator"),
        ("<think>Hm.</think>\n\n", "tags_with_separator"),
        ("<think>Hm.</think>\n\n<tool_call>", "loose"),
        ("<tool_call>", "loose"),
    ],
)
def test_what_holds_the_rest_of_a_turn(said: str, shape: str) -> None:
    assert shape_behind(format_of(QWEN)[0], said) == shape


@pytest.mark.parametrize(
    ("said", "shape"),
    [
        ("Well, ", "triggered_tags"),
        ("Well, <tool_", "loose"),
        ("Well, <tool_call>", "loose"),
        ('<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>', "triggered_tags"),
    ],
)
def test_free_text_with_calls_goes_on_under_its_grammar(said: str, shape: str) -> None:
    rules = TurnRules(calls=RULES.calls)
    assert shape_behind(format_of(QWEN)[0], said, rules) == shape


def test_a_thought_that_the_prompt_began_goes_on_under_its_grammar() -> None:
    model_format, _ = format_of(QWEN, thinks_first=True)
    assert shape_behind(model_format, "Hm.") == "tag+tags_with_separator"
    assert shape_behind(model_format, "Hm.</think>\n\n") == "tags_with_separator"
