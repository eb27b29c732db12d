"""Tools that come in the middle of a conversation: what a request can choose of them, and what they are held to."""

import pytest

from engine.types import AnyText, JsonSchema
from responses_app.protocol.errors import ApiError, JsonObject
from tests.kit.fakes import ANSWER, FakeEngine, Site

LATE: JsonObject = {
    "type": "additional_tools",
    "role": "developer",
    "tools": [
        {"type": "function", "name": "late", "parameters": {"type": "object", "properties": {}}},
        {"type": "namespace", "name": "crm", "tools": [{"type": "function", "name": "find"}]},
    ],
}
CHOICES: list[JsonObject | str] = [
    {"type": "function", "name": "late"},
    {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "late"}]},
    {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "namespace", "name": "crm"}]},
    "required",
]


class GrammarEngine(FakeEngine):
    """One that holds a model to grammars, or says so."""

    @property
    def supports_grammar(self) -> bool:
        return True


def site_with(*said: str) -> Site:
    return Site(GrammarEngine([*said, ANSWER]))


@pytest.mark.parametrize("choice", CHOICES)
async def test_those_in_the_input_can_be_chosen(choice: JsonObject | str) -> None:
    site = site_with()
    response = await site.ask(input=[LATE, {"role": "user", "content": "hi"}], tool_choice=choice)
    assert response["tool_choice"] == choice
    grammar = site.engine.requests[0].grammar
    assert grammar is not None
    called = {rule.name for rule in grammar.rules.calls}
    assert called <= {"late", "crm.find"}
    assert grammar.rules.must_call is (choice == "required" or choice == CHOICES[0] or choice == CHOICES[1])


@pytest.mark.parametrize("choice", CHOICES)
async def test_those_of_the_chain_can_be_chosen(choice: JsonObject | str) -> None:
    site = site_with()
    first = await site.ask(input=[LATE, {"role": "user", "content": "hi"}])
    second = await site.ask(input="And?", previous_response_id=first["id"], tool_choice=choice)
    assert second["tool_choice"] == choice
    grammar = site.engine.requests[1].grammar
    assert grammar is not None
    assert grammar.rules.calls


@pytest.mark.parametrize("choice", CHOICES)
async def test_what_neither_has_is_refused(choice: JsonObject | str) -> None:
    site = site_with()
    first = await site.ask(input="hi")
    for before in ({}, {"previous_response_id": first["id"]}):
        with pytest.raises(ApiError) as refused:
            await site.ask(input="And?", tool_choice=choice, **before)
        assert (refused.value.status, refused.value.param) == (400, "tool_choice")
        assert "is in 'tools'" in refused.value.message or "is not in 'tools'" in refused.value.message


@pytest.mark.parametrize("strict", [None, False])
async def test_a_schema_that_cannot_be_enforced_is_only_shown(strict: bool | None) -> None:
    site = site_with()
    tool = {"type": "function", "name": "late", "parameters": {"not": {"type": "integer"}}, "strict": strict}
    await site.ask(input=[{**LATE, "tools": [tool]}, {"role": "user", "content": "hi"}])
    grammar = site.engine.requests[0].grammar
    assert grammar is not None
    assert [rule.content for rule in grammar.rules.calls] == [AnyText()]


async def test_a_schema_that_can_be_enforced_is() -> None:
    site = site_with()
    await site.ask(input=[LATE, {"role": "user", "content": "hi"}])
    grammar = site.engine.requests[0].grammar
    assert grammar is not None
    assert isinstance(grammar.rules.calls[0].content, JsonSchema)


@pytest.mark.parametrize("late", [False, True])
async def test_a_call_in_the_background_that_lost_its_mark_needs_no_output(late: bool) -> None:
    later: JsonObject = {"type": "function", "name": "later", "async": True}
    call: JsonObject = {"type": "function_call", "call_id": "call_1", "name": "later", "arguments": "{}"}
    declared: list[JsonObject] = [{**LATE, "tools": [later]}] if late else []
    tools = [] if late else [later]
    site = site_with(ANSWER)
    first = await site.ask(input=[*declared, call, {"role": "user", "content": "And?"}], tools=tools)
    second = await site.ask(input="And now?", previous_response_id=first["id"], tools=tools)
    assert second["status"] == "completed"
