"""Calls of the client's tools, from the model's tokens to items and back: each kind, streamed, kept and replayed."""

from collections.abc import Sequence
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
    "user": None,
    "working_directory": None,
}
ITEMS: list[tuple[str, JsonObject]] = [
    (call("f", '{"a":1}'), {"type": "function_call", "name": "f", "arguments": '{"a":1}'}),
    (call("apply", PATCH, " code"), {"type": "custom_tool_call", "name": "apply", "input": PATCH}),
    (call("apply", PATCH, ""), {"type": "custom_tool_call", "name": "apply", "input": PATCH}),
    (
        call("apply", orjson.dumps({"input": PATCH}).decode()),
        {"type": "custom_tool_call", "name": "apply", "input": PATCH},
    ),
    (call("apply", '{"input": 1}'), {"type": "custom_tool_call", "name": "apply", "input": '{"input": 1}'}),
    (
        call("crm.find", "{}"),
        {"type": "function_call", "name": "find", "namespace": "crm", "arguments": "{}"},
    ),
    (call("crm.note", "Hm", ""), {"type": "custom_tool_call", "name": "note", "namespace": "crm", "input": "Hm"}),
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
        {"type": "function_call", "name": "find", "namespace": "crm", "arguments": "{}"},
    ),
    # What nobody declared is the client's function, and what does not fit is one that it can answer.
    (call("some.where", "{}"), {"type": "function_call", "name": "some.where", "arguments": "{}"}),
    (call("shell", '{"commands":"ls"}'), {"type": "function_call", "name": "shell", "arguments": '{"commands":"ls"}'}),
    (call("local_shell", "ls -la"), {"type": "function_call", "name": "local_shell", "arguments": "ls -la"}),
    (call("apply_patch", "[1]"), {"type": "function_call", "name": "apply_patch", "arguments": "[1]"}),
    (call("f", "{oops"), {"type": "function_call", "name": "f", "arguments": "{oops"}),
]


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


async def test_the_events_of_each_kind() -> None:
    def types(events: Sequence[JsonObject]) -> list[str]:
        return [str(event["type"]).removeprefix("response.") for event in events][2:-1]

    custom = types(await events_of(site_with([f"{call('apply', 'a', '')[:-9]}", "a", "b<|call|>"])))
    delta = "custom_tool_call_input.delta"
    assert custom == ["output_item.added", delta, delta, "custom_tool_call_input.done", "output_item.done"]
    assert types(await events_of(site_with(call("shell", '{"commands":[]}')))) == [
        "output_item.added",
        "output_item.done",
    ]
    assert types(await events_of(site_with(call("shell", "{}")))) == [
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
    ]


async def test_a_call_that_is_cut_is_incomplete_and_needs_no_output() -> None:
    site = site_with([call("shell", '{"commands":["ls')[:-8], FinishReason.LENGTH])
    events = await events_of(site)
    response = events[-1]["response"]
    (item,) = response["output"]  # type: ignore[index]
    assert (item["type"], item["status"], item["arguments"]) == ("function_call", "incomplete", '{"commands":["ls')
    after = await site.ask(input="Stop that.", previous_response_id=response["id"], tools=TOOLS)  # type: ignore[index]
    assert after["status"] == "completed"


OUTPUTS = {
    "function_call": "function_call_output",
    "custom_tool_call": "custom_tool_call_output",
    "local_shell_call": "local_shell_call_output",
    "shell_call": "shell_call_output",
    "apply_patch_call": "apply_patch_call_output",
    "tool_search_call": "tool_search_output",
}


@pytest.mark.parametrize("replays", [True, False], ids=["replayed", "continued"])
@pytest.mark.parametrize(("said", "item"), ITEMS[:13], ids=[str(item["type"]) for _, item in ITEMS[:13]])
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
        assert asked.grammar is not None
        rules: TurnRules = asked.grammar.rules
        assert ([rule.name for rule in rules.calls], rules.must_call) == (["f"], True)
        assert isinstance(rules.calls[0].content, JsonSchema)

    async def test_nothing_to_hold_to_is_not_a_grammar(self) -> None:
        site = site_with(ANSWER, ANSWER, grammar=True)
        await site.ask(input="hi")
        await site.ask(input="hi", generate=False, tools=TOOLS, tool_choice="required")
        assert [asked.grammar for asked in site.engine.requests] == [None, None]

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
            with pytest.raises(ApiError) as refused:
                await site.ask(input="hi", **fields)
            assert (refused.value.code, refused.value.param) == ("unsupported_parameter", param)
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
    async def test_what_cannot_be_enforced_is_named(self, fields: dict[str, object], param: str) -> None:
        site = site_with(grammar=True)
        with pytest.raises(ApiError) as refused:
            await site.ask(input="hi", **fields)
        assert (refused.value.status, refused.value.param) == (400, param), refused.value.message
        assert site.engine.requests == []

    async def test_what_the_engine_refuses_is_named(self) -> None:
        site = site_with(grammar=True)
        assert isinstance(site.engine, GrammarEngine)
        site.engine.refuses = "needle"
        schema = {"type": "object", "properties": {"needle": {"type": "string"}}, "required": ["needle"]}
        tools = [TOOLS[0], {"type": "function", "name": "g", "parameters": schema, "strict": True}]
        with pytest.raises(ApiError, match="It is too much") as refused:
            await site.ask(input="hi", tools=tools)
        assert refused.value.param == "tools[1].parameters"

    async def test_an_engine_that_goes_away_while_it_looks_at_a_grammar_is_told_as_that(self) -> None:
        site = site_with(grammar=True)
        assert isinstance(site.engine, GrammarEngine)
        site.engine.is_away = True
        with pytest.raises(ApiError) as refused:
            await site.ask(input="hi", tools=TOOLS)
        assert (refused.value.status, refused.value.code) == (503, "server_is_overloaded")

    async def test_what_the_engine_refuses_only_as_it_begins_is_told_too(self) -> None:
        site = Site(GrammarEngine([[GrammarRefused("It is too much.")]]))
        reading = await site.begin(input="hi", tools=TOOLS)
        await reading.to_the_end()
        problem = reading.run.problem
        assert problem is not None
        assert (problem.status, problem.message) == (400, "It is too much.")

    async def test_a_schema_that_cannot_be_enforced_is_only_shown_where_strict_is_not_said(self) -> None:
        site = site_with(grammar=True)
        odd = {"type": "function", "name": "g", "parameters": {"type": "object", "not": {"required": ["a"]}}}
        response = await site.ask(input="hi", tools=[odd])
        assert response["tools"][0]["strict"] is False  # type: ignore[index]
        grammar = site.engine.requests[0].grammar
        assert grammar is not None
        assert grammar.rules.calls[0].content == AnyText()


class TestLateTools:
    """Tools that a conversation declares in its middle."""

    MORE: ClassVar[JsonObject] = {
        "type": "additional_tools",
        "role": "developer",
        "tools": [{"type": "namespace", "name": "late", "tools": [{"type": "custom", "name": "sql"}]}],
    }

    async def test_a_call_of_one_is_its_own_item_also_when_the_stream_is_made_again(self) -> None:
        site = site_with(call("late.sql", "SELECT 1", ""), grammar=True)
        item = await item_of(site, input=[self.MORE, {"role": "user", "content": "hi"}])
        assert item == {"type": "custom_tool_call", "name": "sql", "namespace": "late", "input": "SELECT 1"}
        grammar = site.engine.requests[0].grammar
        assert grammar is not None
        assert "late.sql" in [rule.name for rule in grammar.rules.calls]

    async def test_a_chain_remembers_them(self) -> None:
        site = site_with(ANSWER, call("late.sql", "SELECT 1", ""))
        first = await site.ask(input=[self.MORE, {"role": "user", "content": "hi"}])
        item = await item_of(site, previous_response_id=first["id"], tools=[])
        assert item == {"type": "custom_tool_call", "name": "sql", "namespace": "late", "input": "SELECT 1"}

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
        grammar = site.engine.requests[1].grammar
        assert grammar is not None
        assert "found" in [rule.name for rule in grammar.rules.calls]


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
        with pytest.raises(ApiError) as refused:
            await site_with().ask(input="hi", tools=[{"type": kind, "name": "n", "tools": [], "async": True}])
        assert (refused.value.code, refused.value.param) == ("unknown_parameter", "tools[0].async")
