"""Calls of the client's tools, from tokens to items and back: each kind, streamed, kept, replayed, chosen."""

from typing import ClassVar

import orjson
import pytest

from engine.errors import EngineUnavailable, GrammarRefused
from engine.formats.harmony.encoding import decode_tokens, encode_harmony
from engine.formats.harmony.prompt import generation_start
from engine.types import AnyText, FinishReason, JsonSchema, TurnGrammar, TurnRules
from responses_app.protocol.errors import ApiError, JsonObject
from tests.kit.fakes import ANSWER, FakeEngine, Site, Turn
from tests.kit.oracle import validate_event, validate_response
from tests.unit.runs.readers import refused, rules_of

PATCH = "*** Begin Patch\n*** End Patch"
TOOLS: list[JsonObject] = [
    {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}},
    {"type": "custom", "name": "apply", "description": "Applies a patch."},
    {
        "type": "namespace",
        "name": "crm",
        "description": "Customers.",
        "tools": [{"type": "function", "name": "find"}, {"type": "custom", "name": "note"}],
    },
    {"type": "local_shell"},
    {"type": "shell"},
    {"type": "apply_patch"},
    {"type": "tool_search", "execution": "client"},
    {"type": "computer"},
]


def call(name: str, text: str, header: str = " <|constrain|>json") -> str:
    return f"<|channel|>commentary to=functions.{name}{header}<|message|>{text}<|call|>"


class GrammarEngine(FakeEngine):
    """An engine that can hold the model to a grammar, or says that it cannot hold it to this one."""

    supports_grammar = True
    refuses = ""  # what a schema has that it cannot hold the model to
    is_away = False

    async def check_grammar(self, grammar: TurnGrammar) -> None:
        if self.is_away:
            raise EngineUnavailable("It went away.")
        if self.refuses and self.refuses in grammar.structural_tag:
            raise GrammarRefused("It is too much.")


def site_with(*turns: Turn, grammar: bool = False) -> Site:
    return Site((GrammarEngine if grammar else FakeEngine)([*turns, ANSWER]))


@pytest.fixture
def site() -> Site:
    """A service whose engine can hold its model to grammars."""
    return site_with(grammar=True)


async def events_of(site: Site, **fields: object) -> list[JsonObject]:
    events = await site.events(**{"tools": TOOLS, **fields})
    for event in events:
        validate_event(event)
    return events


async def item_of(site: Site, **fields: object) -> JsonObject:
    """Return the one item of a response, which must be the same when its stream is made again of the log."""
    events = await events_of(site, **fields)
    response = events[-1]["response"]
    validate_response(response)  # type: ignore[arg-type]
    again = await (await site.follow(response["id"])).to_the_end()  # type: ignore[index]
    assert [event["type"] for event in again] == [event["type"] for event in events]
    assert again[-1]["response"]["output"] == response["output"]  # type: ignore[index]
    (item,) = response["output"]  # type: ignore[index]
    return {name: value for name, value in item.items() if name not in ("id", "call_id", "status")}


LOCAL: JsonObject = {
    "type": "exec",
    "command": ["ls"],
    "env": {},
    "timeout_ms": 5,
}


def function(name: str, arguments: str, **more: object) -> JsonObject:
    return {"type": "function_call", "name": name, "arguments": arguments, **more}


def custom(name: str, input: str, **more: object) -> JsonObject:
    return {"type": "custom_tool_call", "name": name, "input": input, **more}


ITEMS: list[tuple[str, JsonObject]] = [
    (call("f", '{"a":1}'), function("f", '{"a":1}')),
    (call("apply", PATCH, " code"), custom("apply", PATCH)),
    (call("apply", PATCH, ""), custom("apply", PATCH)),
    (call("apply", orjson.dumps({"input": PATCH}).decode()), custom("apply", PATCH)),
    (call("apply", '{"input": 1}'), custom("apply", '{"input": 1}')),
    (call("crm.find", "{}"), function("find", "{}", namespace="crm")),
    (call("crm.find", '{ "a" : 1 }'), function("find", '{ "a" : 1 }', namespace="crm")),
    (call("apply", '{"input": "a \\u00e9"}'), custom("apply", "a é")),
    (call("crm.note", "Hm", ""), custom("note", "Hm", namespace="crm")),
    (call("local_shell", '{"command":["ls"],"timeout_ms":5}'), {"type": "local_shell_call", "action": LOCAL}),
    (
        call("shell", '{"commands":["ls","pwd"]}'),
        {
            "type": "shell_call",
            "action": {"commands": ["ls", "pwd"], "timeout_ms": None, "max_output_length": None},
            "environment": None,
        },
    ),
    (
        call("apply_patch", '{"type":"delete_file","path":"a","diff":""}'),
        {"type": "apply_patch_call", "operation": {"type": "delete_file", "path": "a"}},
    ),
    (
        call("apply_patch", '{"type":"create_file","path":"a","diff":"+b"}'),
        {"type": "apply_patch_call", "operation": {"type": "create_file", "path": "a", "diff": "+b"}},
    ),
    (
        call("tool_search", '{"query":"x"}'),
        {"type": "tool_search_call", "execution": "client", "arguments": {"query": "x"}},
    ),
    # What is said otherwise is the same call.
    (
        " to=functions.crm.find<|channel|>analysis <|constrain|>json<|message|>{}<|call|>",
        function("find", "{}", namespace="crm"),
    ),
    # What nobody declared is the client's function, and what does not fit is one that it can answer.
    (call("some.where", "{}"), function("some.where", "{}")),
    (call("shell", '{"commands":"ls"}'), function("shell", '{"commands":"ls"}')),
    (call("local_shell", "ls -la"), function("local_shell", "ls -la")),
    (call("apply_patch", "[1]"), function("apply_patch", "[1]")),
    (call("f", "{oops"), function("f", "{oops")),
]


SAID = ITEMS[:15]


@pytest.mark.parametrize(
    ("said", "item"), ITEMS, ids=[f"{index}-{item['type']}" for index, (_, item) in enumerate(ITEMS)]
)
async def test_a_call_becomes_its_item(said: str, item: JsonObject) -> None:
    assert await item_of(site_with(said)) == item
    letters = [said[: said.index("<|message|>") + 11], *said[said.index("<|message|>") + 11 : -8], said[-8:]]
    assert await item_of(site_with(letters)) == item, "however its text comes"


async def test_what_does_not_fit_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="respsite.runs"):
        await item_of(site_with(call("f", "{oops")))
        await item_of(site_with(call("shell", "{}")))
        await item_of(site_with(call("shell", '{"commands":[]}')))
    assert [record.getMessage().count("misfit_calls=1") for record in caplog.records] == [1, 1, 0]


async def test_a_call_that_is_cut_is_incomplete_and_needs_no_output() -> None:
    site = site_with([call("shell", '{"commands":["ls')[:-8], FinishReason.LENGTH])
    events = await events_of(site)
    response = events[-1]["response"]
    (item,) = response["output"]  # type: ignore[index]
    assert (item["type"], item["status"], item["arguments"]) == ("function_call", "incomplete", '{"commands":["ls')
    after = await site.ask(input="Stop that.", previous_response_id=response["id"], tools=TOOLS)  # type: ignore[index]
    assert after["status"] == "completed"


KINDS = ("function_call", "custom_tool_call", "local_shell_call", "shell_call", "apply_patch_call")
OUTPUTS = {**{kind: f"{kind}_output" for kind in KINDS}, "tool_search_call": "tool_search_output"}


@pytest.mark.parametrize("replays", [True, False], ids=["replayed", "continued"])
@pytest.mark.parametrize(("said", "item"), SAID, ids=[str(item["type"]) for _, item in SAID])
async def test_its_output_continues_with_exactly_the_sampled_tokens(said: str, item: JsonObject, replays: bool) -> None:
    site = site_with(said)
    events = await events_of(site)
    first = events[-1]["response"]
    made = first["output"][0]  # type: ignore[index]
    kind = str(item["type"])
    output = {"type": OUTPUTS[kind], "call_id": made["call_id"], "output": "It is done.", "status": "completed"}
    if replays:
        fields: JsonObject = {"input": [{"role": "user", "content": "hi"}, made, output]}
    else:
        fields = {"input": [output], "previous_response_id": first["id"]}  # type: ignore[index]
    assert (await site.ask(**fields, tools=TOOLS))["status"] == "completed"
    before, after = site.engine.prompts
    kept = [*before, *encode_harmony(said)]
    assert after[: len(kept)] == kept
    told = decode_tokens(after[len(kept) : -len(generation_start())])
    name = said.partition("to=functions.")[2].partition("<")[0].split()[0]
    assert told.startswith(f"<|start|>functions.{name} to=assistant<|channel|>commentary<|message|>")


async def test_the_model_is_told_of_what_it_can_call() -> None:
    site = site_with()
    await events_of(site)
    told = decode_tokens(site.engine.prompts[0])
    for name in ("f", "apply", "crm.find", "crm.note", "local_shell", "shell", "apply_patch", "tool_search"):
        assert f"\ntype {name} = (" in told
    assert "type apply = (FREEFORM) => any;" in told
    assert "computer" not in told


class TestRules:
    """What a request asks for reaches the engine as a grammar, or is refused."""

    async def test_the_engine_gets_the_grammar_of_the_turn(self) -> None:
        site = site_with(call("f", "{}"), grammar=True)
        await events_of(site, tool_choice={"type": "function", "name": "f"})
        (asked,) = site.engine.requests
        rules: TurnRules = asked.grammar.rules
        assert ([rule.name for rule in rules.calls], rules.must_call) == (["f"], True)
        assert isinstance(rules.calls[0].content, JsonSchema)

    async def test_a_call_that_was_demanded_is_not_demanded_again(self) -> None:
        later = {"type": "function", "name": "later", "async": True}
        site = site_with(call("later", "{}"), grammar=True)
        response = await site.ask(input="hi", tools=[later], tool_choice="required")
        assert [item["type"] for item in response["output"]] == ["function_call", "message"]  # type: ignore[union-attr,index]
        assert [asked.grammar.rules.must_call for asked in site.engine.requests if asked.grammar] == [True, False]

    async def test_an_engine_without_grammars_serves_what_need_not_be_enforced(self) -> None:
        site = site_with()
        assert (await site.ask(input="hi", tools=TOOLS))["status"] == "completed"
        assert site.engine.requests[0].grammar is None
        for fields, param in (
            ({"tools": TOOLS, "tool_choice": "required"}, "tool_choice"),
            ({"text": {"format": {"type": "json_object"}}}, "text.format"),
        ):
            error = await site.refusal(input="hi", **fields)
            assert (error.code, error.param) == ("unsupported_parameter", param)
        assert len(site.engine.requests) == 1
        assert await site.store.response("default", "resp_00000000000000000000000000000002") is None

    @pytest.mark.parametrize(
        ("fields", "param"),
        [
            ({"text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": 5}}}}, "text.format.schema"),
            (
                {"tools": [*TOOLS, {"type": "function", "name": "g", "strict": True, "parameters": {"type": "o"}}]},
                "tools[8].parameters",
            ),
            (
                {"tools": [{"type": "namespace", "name": "n", "tools": [{"type": "custom", "name": "g", "format": {
                    "type": "grammar", "syntax": "lark", "definition": "start: ("
                }}]}]},
                "tools[0].tools[0].format.definition",
            ),
            (
                {"tools": [{"type": "custom", "name": "g", "format": {
                    "type": "grammar", "syntax": "regex", "definition": "(?=a)a"
                }}]},
                "tools[0].format.definition",
            ),
        ],
    )  # fmt: skip
    async def test_what_cannot_be_enforced_is_named(self, fields: dict[str, object], param: str, site: Site) -> None:
        error = await site.refusal(input="hi", **fields)
        assert (error.status, error.param) == (400, param), error.message
        assert site.engine.requests == []

    async def test_what_the_engine_refuses_is_named(self, site: Site) -> None:
        site.engine.refuses = "needle"
        schema = {"type": "object", "properties": {"needle": {"type": "string"}}, "required": ["needle"]}
        tools = [TOOLS[0], {"type": "function", "name": "g", "parameters": schema, "strict": True}]
        with pytest.raises(ApiError, match="It is too much") as refused:
            await site.ask(input="hi", tools=tools)
        assert refused.value.param == "tools[1].parameters"

    async def test_an_engine_that_goes_away_while_it_looks_at_a_grammar_is_told_as_that(self, site: Site) -> None:
        site.engine.is_away = True
        error = await site.refusal(input="hi", tools=TOOLS)
        assert (error.status, error.code) == (503, "server_is_overloaded")

    async def test_what_the_engine_refuses_only_as_it_begins_is_told_too(self) -> None:
        site = Site(GrammarEngine([[GrammarRefused("It is too much.")]]))
        reading = await site.begin(input="hi", tools=TOOLS)
        await reading.to_the_end()
        problem = reading.run.problem
        assert (problem.status, problem.message) == (400, "It is too much.")

    async def test_a_schema_that_cannot_be_enforced_is_only_shown_where_strict_is_not_said(self, site: Site) -> None:
        odd = {"type": "function", "name": "g", "parameters": {"type": "object", "not": {"required": ["a"]}}}
        response = await site.ask(input="hi", tools=[odd])
        assert response["tools"][0]["strict"] is False  # type: ignore[index]
        assert rules_of(site, 0).calls[0].content == AnyText()


class TestLateTools:
    """Tools that a conversation declares in its middle."""

    MORE: ClassVar[JsonObject] = {
        "type": "additional_tools",
        "role": "developer",
        "tools": [{"type": "namespace", "name": "late", "tools": [{"type": "custom", "name": "sql"}]}],
    }

    async def test_what_a_search_has_found_can_be_called(self) -> None:
        site = site_with(call("tool_search", '{"query":"x"}'), call("found", "{}"), grammar=True)
        first = await site.ask(input="hi", tools=TOOLS)
        found = {
            "type": "tool_search_output",
            "call_id": first["output"][0]["call_id"],  # type: ignore[index]
            "tools": [{"type": "function", "name": "found", "defer_loading": True}],
        }
        second = await site.ask(input=[found], previous_response_id=first["id"], tools=TOOLS)
        assert second["output"][0]["name"] == "found"  # type: ignore[index]
        assert "found" in [rule.name for rule in rules_of(site, 1).calls]


class TestAsyncTools:
    """A tool that runs in the background: the model goes on."""

    LATER: ClassVar[JsonObject] = {"type": "function", "name": "later", "async": True}

    async def test_the_model_answers_on_in_the_same_response(self) -> None:
        site = site_with(call("later", "{}"))
        response = await site.ask(input="hi", tools=[self.LATER])
        validate_response(response)
        call_item, message = response["output"]  # type: ignore[misc]
        assert (call_item["async"], call_item["name"]) == (True, "later")
        assert message["type"] == "message"
        assert "functions.later to=assistant" in decode_tokens(site.engine.prompts[1])
        assert "runs in the background" in decode_tokens(site.engine.prompts[0]), "and is told so beforehand"

    async def test_a_continuation_is_taken_while_it_runs_and_outputs_late_and_twice(self) -> None:
        site = site_with(call("later", "{}"))
        first = await site.ask(input="hi", tools=[self.LATER])
        second = await site.ask(input="And?", previous_response_id=first["id"], tools=[self.LATER])
        call_id = first["output"][0]["call_id"]  # type: ignore[index]
        output = {"type": "function_call_output", "call_id": call_id, "output": "It is done."}
        third = await site.ask(input=[output], previous_response_id=second["id"], tools=[self.LATER])
        fourth = await site.ask(input=[output], previous_response_id=third["id"], tools=[self.LATER])
        assert fourth["status"] == "completed"
        assert decode_tokens(site.engine.prompts[-1]).count("It is done.") == 2

    async def test_another_call_beside_it_waits_for_its_output(self) -> None:
        both = f"{call('later', '{}')[:-8]}<|end|><|start|>assistant{call('f', '{}')}"
        site = site_with(both)
        first = await site.ask(input="hi", tools=[self.LATER, TOOLS[0]])
        assert [item["name"] for item in first["output"]] == ["later", "f"]  # type: ignore[union-attr,index]
        with pytest.raises(ApiError, match=r"^No tool output found for function call call_\w+\. Send"):
            await site.ask(input="And?", previous_response_id=first["id"], tools=[self.LATER, TOOLS[0]])

    async def test_a_model_that_calls_on_and_on_comes_to_an_end(self) -> None:
        site = Site(FakeEngine([call("later", "{}")]))
        response = await site.ask(input="hi", tools=[self.LATER])
        assert (response["status"], len(response["output"])) == ("completed", 17)  # type: ignore[arg-type]

    @pytest.mark.parametrize("kind", ["shell", "tool_search", "web_search", "namespace"])
    async def test_other_kinds_cannot(self, kind: str) -> None:
        error = await refused(
            site_with().ask(input="hi", tools=[{"type": kind, "name": "n", "tools": [], "async": True}])
        )
        assert (error.code, error.param) == ("unknown_parameter", "tools[0].async")


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


@pytest.mark.parametrize("choice", CHOICES)
async def test_those_in_the_input_can_be_chosen(choice: JsonObject | str, site: Site) -> None:
    response = await site.ask(input=[LATE, {"role": "user", "content": "hi"}], tool_choice=choice)
    assert response["tool_choice"] == choice
    rules = rules_of(site, 0)
    called = {rule.name for rule in rules.calls}
    assert called <= {"late", "crm.find"}
    assert rules.must_call is (choice == "required" or choice == CHOICES[0] or choice == CHOICES[1])


@pytest.mark.parametrize("choice", CHOICES)
async def test_those_of_the_chain_can_be_chosen(choice: JsonObject | str, site: Site) -> None:
    first = await site.ask(input=[LATE, {"role": "user", "content": "hi"}])
    second = await site.ask(input="And?", previous_response_id=first["id"], tool_choice=choice)
    assert second["tool_choice"] == choice
    assert rules_of(site, 1).calls


@pytest.mark.parametrize("choice", CHOICES)
async def test_what_neither_has_is_refused(choice: JsonObject | str, site: Site) -> None:
    first = await site.ask(input="hi")
    for before in ({}, {"previous_response_id": first["id"]}):
        error = await site.refusal(input="And?", tool_choice=choice, **before)
        assert (error.status, error.param) == (400, "tool_choice")
        assert "is in 'tools'" in error.message or "is not in 'tools'" in error.message


@pytest.mark.parametrize("strict", [None, False])
async def test_a_schema_that_cannot_be_enforced_is_only_shown(strict: bool | None, site: Site) -> None:
    tool = {"type": "function", "name": "late", "parameters": {"not": {"type": "integer"}}, "strict": strict}
    await site.ask(input=[{**LATE, "tools": [tool]}, {"role": "user", "content": "hi"}])
    assert [rule.content for rule in rules_of(site, 0).calls] == [AnyText()]


async def test_a_schema_that_can_be_enforced_is(site: Site) -> None:
    await site.ask(input=[LATE, {"role": "user", "content": "hi"}])
    assert isinstance(rules_of(site, 0).calls[0].content, JsonSchema)


@pytest.mark.parametrize("late", [False, True])
async def test_a_call_in_the_background_that_lost_its_mark_needs_no_output(late: bool) -> None:
    later: JsonObject = {"type": "function", "name": "later", "async": True}
    call: JsonObject = {"type": "function_call", "call_id": "call_1", "name": "later", "arguments": "{}"}
    declared: list[JsonObject] = [{**LATE, "tools": [later]}] if late else []
    tools = [] if late else [later]
    site = site_with(ANSWER, grammar=True)
    first = await site.ask(input=[*declared, call, {"role": "user", "content": "And?"}], tools=tools)
    second = await site.ask(input="And now?", previous_response_id=first["id"], tools=tools)
    assert second["status"] == "completed"
