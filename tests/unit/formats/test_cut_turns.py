"""How turns of models with chat templates end: cut at every token, at their length or by a rule; and the laws."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import GenerationCut
from engine.formats.base import ModelFormat
from engine.types import AnyObject, CallRule, FinishReason, JsonSchema, TurnRules
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.response.steps import RunStarted, Sampled, ToolReturned
from responses_app.runs.plan.failures import BROKEN
from tests.kit.fakes import TOOL_F
from tests.kit.laws import assert_laws
from tests.unit.formats.families import LLAMA, QWEN, Family
from tests.unit.formats.rendering import FAMILIES, format_of
from tests.unit.formats.test_chat_template import FamilySite, kinds
from tests.unit.protocol import test_response_machine as gpt_oss
from tests.unit.protocol.machines import Driver, machine, turn_of
from tests.unit.protocol.test_response_machine import short_thoughts_are_summed_up  # noqa: F401 - a fixture

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


PARTS = {  # beginnings of turns
    "answer": {"qwen": " It is 1", "llama": " It is 1"},
    "call": {
        "qwen": '<tool_call>\n{"name": "f", "arguments": {"a": [1',
        "llama": '{"name": "f", "parameters": {"a": [1',
    },
}


@pytest.mark.parametrize("family", [QWEN, LLAMA], ids=lambda each: each.name)
class TestEndings:
    @pytest.mark.parametrize("part", PARTS)
    async def test_one_that_is_too_long_is_incomplete_and_is_gone_on_with(self, family: Family, part: str) -> None:
        said = PARTS[part][family.name]
        site = FamilySite(family, [said, FinishReason.LENGTH], f"Yes.{family.end}")
        limit = len(site.engine.encode(said))
        events = await (await site.begin(input="hi", tools=[TOOL_F], max_output_tokens=limit)).to_the_end()
        assert_laws(events)
        first: JsonObject = events[-1]["response"]  # type: ignore[assignment]
        assert (events[-1]["type"], first["status"]) == ("response.incomplete", "incomplete")
        assert first["incomplete_details"] == {"reason": "max_output_tokens"}
        [item] = first["output"]  # type: ignore[misc]
        assert item["status"] == "incomplete"
        assert (item["arguments"] if part == "call" else item["content"][0]["text"]) == (
            '{"a": [1' if part == "call" else said
        )
        assert first["usage"]["output_tokens"] == limit  # type: ignore[index]
        if part == "answer":
            await site.ask(input="Go on.", tools=[TOOL_F], previous_response_id=first["id"])
            site.assert_goes_on_behind(said)

    async def test_behind_a_call_of_the_only_one_nothing_is_said(self, family: Family) -> None:
        call = PARTS["call"][family.name] + "]}}" + ("\n</tool_call>" if family is QWEN else "")
        site = FamilySite(family, f"{call}\nLet me see.{family.end}")
        response = await site.ask(input="hi", tools=[TOOL_F], parallel_tool_calls=False)
        assert (kinds(response), response["status"]) == (["function_call"], "completed")


LAWS: dict[str, Any] = {name: law for name, law in vars(gpt_oss.TestLaws).items() if hasattr(law, "hypothesis")}


def test_there_are_laws() -> None:
    assert len(LAWS) >= 6


@pytest.mark.parametrize("family", [family.name for family in FAMILIES])
@pytest.mark.parametrize("law", LAWS)
@settings(max_examples=25, deadline=None)
@given(st.data())
def test_it_holds(law: str, family: str, data: st.DataObject) -> None:
    LAWS[law].hypothesis.inner_test(gpt_oss.TestLaws(), family, data)


CALLS = {
    "qwen": '<tool_call>\n{"name": "%s", "arguments": {}}\n</tool_call>',
    "llama": '{"name": "%s", "parameters": {}}',
}


@pytest.mark.parametrize("behind", [b"Wait.", b"\xc3"], ids=["text", "half a character"])
@pytest.mark.parametrize("name", ["python", "f"])
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_what_is_said_behind_the_last_call_of_a_turn_is_not_said(family: Family, name: str, behind: bytes) -> None:
    """The token that shows that a call has ended is the first one of what follows."""
    made, renderer = format_of(family)
    driver = Driver(machine(made, hosted=True, one_call=True))
    called = [*renderer.encode(CALLS[family.name] % name), *behind]
    answer = [*renderer.encode("It is 2."), family.ids[family.end]]
    turns = [
        [*(Sampled((token,)) for token in called[:-1]), Sampled(called[-1:], FinishReason.LENGTH)],
        turn_of(answer, [3]),
    ]
    driver.run(RunStarted(), turns, [ToolReturned("2")])
    assert_laws(driver.seen)
    types = [item["type"] for item in driver.items]
    assert types == ["function_call", "message"][: 2 if name == "python" else 1], "the server runs its own and goes on"
    assert "Wait" not in str(driver.items)
