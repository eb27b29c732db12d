"""Servers that list their tools inside a response, and calls that were approved: cut anywhere, and in compactions."""

from collections.abc import Sequence
from typing import ClassVar

import pytest

from engine.formats.base import FunctionTool, ToolNamespace
from engine.types import AnyText, FinishReason, JsonSchema
from responses_app.api.responses import read_to_end
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.items.offers import Offer, OfferedTool
from responses_app.protocol.response.input_codec import decode
from responses_app.protocol.response.steps import Failed, Stopped, StopReason
from responses_app.tools.base import BaseTool, ToolCall, ToolFailed, ToolList, ToolResult, ToolUse
from tests.kit.fakes import ANSWER, CALL_F, THOUGHT, TOOL_F, FakeEngine, Site
from tests.unit.protocol.machines import BROKEN
from tests.unit.runs.readers import refused, response_of
from tests.unit.runs.test_server_tools import prompt_of
from tests.unit.runs.test_takeover import TokenEngine, assert_the_same_wherever_it_is_cut, gone_on, undisturbed

SCHEMA = '{"type":"object","properties":{"q":{"type":"string"}},"required":["q"],"additionalProperties":false}'
BROKEN_SCHEMA = '{"type":"object","properties":{"q":{"type":"string","pattern":"("}}}'
CALL = f'{THOUGHT}<|channel|>commentary to=wiki.ask <|constrain|>json<|message|>{{"q":"a"}}<|call|>'
OTHER = CALL.replace("wiki.ask", "maps.ask")


class Servers(BaseTool):
    """Servers that list one tool; those whose label is in `away` cannot be reached."""

    kinds: ClassVar = ("mcp",)

    def __init__(self, *, asks: bool = False, away: Sequence[str] = (), fits: bool = True, known: bool = False) -> None:
        self.asks, self.away, self.schema = asks, away, SCHEMA if fits else BROKEN_SCHEMA
        self.known = known  # what they list
        self.calls: list[ToolCall] = []

    async def offer(self, use: ToolUse) -> Offer | None:
        return self.offer_listed(use, ()) if self.known else None

    async def list_tools(self, use: ToolUse) -> ToolList:
        if use.declared["server_label"] in self.away:
            raise ToolFailed("It is away.")
        return ToolList([{"name": "ask", "description": "Asks.", "input_schema": {}, "annotations": None}])

    def offer_listed(self, use: ToolUse, tools: Sequence[JsonObject]) -> Offer:
        label = str(use.declared["server_label"])
        name = f"{label}.ask"
        tool = OfferedTool(name=name, item="mcp_call", server=label, tool="ask", asks=self.asks, repeatable=True)
        namespace = ToolNamespace(label, "", (FunctionTool("ask", "Asks.", self.schema),))
        return Offer(namespace, [tool], {name: JsonSchema(self.schema)})

    async def call(self, call: ToolCall) -> ToolResult:
        self.calls.append(call)
        return ToolResult(f"{call.name} says b", {"output": "b"})


def servers(*labels: str) -> list[JsonObject]:
    return [{"type": "mcp", "server_label": label, "server_url": "https://mcp.example/"} for label in labels]


BOTH = servers("wiki", "maps")
CASES: dict[str, tuple[list[str], dict[str, object]]] = {
    "two servers": ([CALL, OTHER, ANSWER], {"tools": BOTH}),
    "with seals and functions": (
        [CALL, CALL_F],
        {"tools": [*BOTH, TOOL_F], "include": ["reasoning.encrypted_content"]},
    ),
    "one call": ([CALL, CALL, ANSWER], {"tools": BOTH, "max_tool_calls": 1}),
    "few tokens": ([CALL, ANSWER], {"tools": BOTH, "max_output_tokens": 40}),
}


@pytest.mark.parametrize("case", CASES)
async def test_cut_anywhere_the_stream_is_the_one_of_an_undisturbed_run(case: str) -> None:
    turns, fields = CASES[case]
    accepted, events = await undisturbed(turns, fields, tools=[Servers()])
    assert "wiki.ask" in str(accepted.log)
    await assert_the_same_wherever_it_is_cut(accepted, events, lambda: TokenEngine(turns), tools=[Servers()])


async def test_what_goes_on_elsewhere_has_the_same_prompt() -> None:
    turns, fields = CASES["two servers"]
    accepted, _ = await undisturbed(turns, fields, tools=[Servers()])
    inputs = list(decode(accepted.log))
    place = next(index for index, given in enumerate(inputs) if type(given).__name__ == "ToolReturned")
    whole = Site(TokenEngine(turns), tools=[Servers()])
    await whole.ask(input="hi", **fields)
    site, reading = await gone_on(accepted, inputs[: place + 1], TokenEngine(turns), tools=[Servers()])
    await reading.to_the_end()
    assert prompt_of(site, 0) == prompt_of(whole, 1)


@pytest.mark.usefixtures("approvals")
async def test_approved_calls_of_several_servers_are_made_in_order() -> None:
    tool = Servers(asks=True)
    site = Site(FakeEngine([CALL, OTHER, ANSWER]), tools=[tool])
    first = await site.ask(input="hi", tools=BOTH)
    second = await site.ask(input="and?", tools=BOTH, previous_response_id=first["id"])
    requests = [response["output"][-1] for response in (first, second)]  # type: ignore[index]
    approvals = [
        {"type": "mcp_approval_response", "approval_request_id": request["id"], "approve": True} for request in requests
    ]
    await site.events(input=approvals, tools=BOTH, previous_response_id=second["id"])
    assert [call.name for call in tool.calls] == ["wiki.ask", "maps.ask"]
    prompt = prompt_of(site, 2)
    assert prompt.endswith(
        "<|start|>wiki.ask to=assistant<|channel|>commentary<|message|>wiki.ask says b<|end|>"
        "<|start|>maps.ask to=assistant<|channel|>commentary<|message|>maps.ask says b<|end|><|start|>assistant"
    )


@pytest.mark.usefixtures("approvals")
async def test_more_are_approved_than_may_be_made() -> None:
    tool = Servers(asks=True)
    site = Site(FakeEngine([CALL, ANSWER]), tools=[tool])
    tools = servers("wiki")
    first = await site.ask(input="hi", tools=tools)
    approval = {
        "type": "mcp_approval_response",
        "approval_request_id": first["output"][-1]["id"],  # type: ignore[index]
        "approve": True,
    }
    items = [*first["output"], {**first["output"][-1], "id": "mcpr_2"}, approval]  # type: ignore[misc,index]
    items.append({**approval, "approval_request_id": "mcpr_2"})
    response = await site.ask(input=items, tools=tools, max_tool_calls=1)
    kinds = [item["type"] for item in response["output"]]  # type: ignore[attr-defined]
    assert (kinds.count("mcp_call"), len(tool.calls)) == (1, 1)
    assert "(max_tool_calls)" in prompt_of(site, 1)


@pytest.mark.usefixtures("approvals")
async def test_what_is_approved_and_not_there_any_more_fails_with_its_type() -> None:
    site = Site(FakeEngine([CALL, ANSWER]), tools=[Servers(asks=True)])
    tools = servers("wiki")
    first = await site.ask(input="hi", tools=tools)
    asked = {**first["output"][-1], "name": "gone"}  # type: ignore[misc,index]
    approval = {"type": "mcp_approval_response", "approval_request_id": asked["id"], "approve": True}
    response = await site.ask(input=[asked, approval], tools=tools)
    (made,) = [item for item in response["output"] if item["type"] == "mcp_call"]  # type: ignore[attr-defined]
    assert (made["name"], made["status"], made["error"]["type"]) == ("gone", "failed", "mcp_tool_execution_error")


async def test_a_request_for_approval_that_was_cut_is_kept_as_a_thought() -> None:
    half = CALL.removesuffix('"a"}<|call|>')
    site = Site(FakeEngine([[half, FinishReason.LENGTH]]), tools=[Servers(asks=True)])
    response = await response_of(await site.begin(input="hi", tools=servers("wiki")))
    assert response["status"] == "incomplete"  # type: ignore[index]
    assert [item["type"] for item in response["output"]] == ["mcp_list_tools", "reasoning", "reasoning"]  # type: ignore[index]


async def test_a_schema_that_nobody_can_be_held_to_is_only_shown() -> None:
    engine = FakeEngine([CALL, ANSWER])
    engine.supports_grammar = True
    site = Site(engine, tools=[Servers(fits=False)])
    response = await site.ask(input="hi", tools=servers("wiki"))
    assert [item["type"] for item in response["output"]][-1] == "message"  # type: ignore[attr-defined]
    grammar = engine.requests[0].grammar
    (rule,) = grammar.rules.calls
    assert (rule.name, rule.content) == ("wiki.ask", AnyText())


async def test_one_server_that_is_away_keeps_no_other_from_being_listed() -> None:
    site = Site(FakeEngine([CALL, ANSWER]), tools=[Servers(away=["maps"])])
    response = await site.ask(input="hi", tools=BOTH)
    listed = [item for item in response["output"] if item["type"] == "mcp_list_tools"]  # type: ignore[attr-defined]
    assert ["error" in item for item in listed] == [False, True]
    assert "It is away." in listed[1]["error"]


@pytest.mark.parametrize("end", [Stopped(StopReason.CANCELLED), Failed(BROKEN)], ids=["cancelled", "failed"])
async def test_an_end_while_a_server_is_asked(end: Stopped | Failed) -> None:
    accepted, _ = await undisturbed([CALL, ANSWER], {"tools": BOTH}, tools=[Servers()])
    inputs = list(decode(accepted.log))
    place = next(index for index, given in enumerate(inputs) if type(given).__name__ == "ToolsListed")
    site = Site(FakeEngine([ANSWER]))
    machine = site.service.machines.of("default", accepted.response)
    events = [event for given in inputs[:place] for event in machine.receive(given).events]
    events += machine.receive(end).events
    kinds = [event.type for event in events]
    assert ("response.mcp_list_tools.failed" in kinds) is isinstance(end, Stopped)


MCP = {"type": "mcp", "server_label": "wiki"}
ABSENT = {**MCP, "name": "nope"}


def chosen(*tools: JsonObject) -> JsonObject:
    return {"type": "allowed_tools", "mode": "required", "tools": list(tools)}


AWAY = (424, "external_connector_error", "tools", "The tools of 'wiki' could not be listed: It is away.")
LACKS = (
    *(400, "invalid_request_error", "tool_choice"),
    "The MCP server 'wiki' has no tool 'nope' that this request allows. Its tools: ask.",
)


@pytest.mark.parametrize(
    ("choice", "labels", "away", "expected"),
    [
        ("required", ["wiki"], ["wiki"], AWAY),
        (MCP, ["wiki"], ["wiki"], AWAY),
        ({**MCP, "name": "ask"}, ["wiki"], ["wiki"], AWAY),
        (ABSENT, ["wiki"], ["wiki"], AWAY),
        (chosen(MCP), ["wiki"], ["wiki"], AWAY),
        (chosen({**MCP, "name": "ask"}), ["wiki", "maps"], ["wiki"], AWAY),
        (ABSENT, ["wiki"], [], LACKS),
        (ABSENT, ["wiki", "maps"], ["maps"], LACKS),  # the one that is away has nothing to do with it
        (chosen(ABSENT), ["wiki"], [], LACKS),
    ],
)
async def test_a_demanded_call_with_nothing_to_call_is_refused_with_its_cause(
    choice: object, labels: list[str], away: list[str], expected: tuple[object, ...]
) -> None:
    engine = FakeEngine([ANSWER])
    engine.supports_grammar = True
    ways = [Servers(away=away)] + ([] if away else [Servers(known=True)])  # an earlier response may have listed them
    for tool in ways:
        site = Site(engine, tools=[tool])

        async def answered(site: Site = site) -> None:
            reading = await site.begin(input="hi", tools=servers(*labels), tool_choice=choice, transport="json")
            await read_to_end(reading.reader)

        error = await refused(answered())
        status, kind, param, said = expected
        assert (error.status, error.type, error.param) == (status, kind, param)
        assert error.message.endswith(str(said))
    assert engine.requests == []
