"""Programs that call tools: which tools, in which items, and what becomes of both when workers go away."""

from collections.abc import Callable, Coroutine
from typing import Any, ClassVar

import pytest

from engine.formats.base import ToolNamespace
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.items.offers import Offer, OfferedTool
from responses_app.protocol.items.programs import ITEM, KIND, MAX_CALLS, NAME
from responses_app.protocol.response.input_codec import decode
from responses_app.tools.base import BaseTool, ToolCall, ToolResult, ToolUse
from tests.kit.fakes import ANSWER, THOUGHT, FakeEngine, Site
from tests.kit.oracle import validate_event, validate_response
from tests.unit.runs.test_listed_tools import Servers
from tests.unit.runs.test_server_tools import prompt_of
from tests.unit.runs.test_takeover import TokenEngine, gone_on, undisturbed

CALLERS = "tools[0].allowed_callers"
PROGRAMS: JsonObject = {"type": KIND}
HOSTED_SHELL: JsonObject = {"type": "shell", "environment": {"type": "container_auto"}}
PROGRAM = f"{THOUGHT}<|channel|>commentary to=program code<|message|>a program<|call|>"
DIRECT = f'{THOUGHT}<|channel|>commentary to=wiki.ask <|constrain|>json<|message|>{{"q":"a"}}<|call|>'


def wiki(*callers: str) -> JsonObject:
    server: JsonObject = {"type": "mcp", "server_label": "wiki", "server_url": "https://mcp.example/"}
    return {**server, "require_approval": "never", **({"allowed_callers": list(callers)} if callers else {})}


def function(name: str, *callers: str) -> JsonObject:
    return {"type": "function", "name": name, "parameters": {"type": "object"}, "allowed_callers": list(callers)}


class Programs(BaseTool):
    """Runs one program, which is Python of the test's."""

    kinds: ClassVar = (KIND,)

    def __init__(self, program: Callable[[ToolCall], Coroutine[Any, Any, str]]) -> None:
        self.program = program
        self.runs = 0

    async def offer(self, use: ToolUse) -> Offer:
        return Offer(ToolNamespace(NAME), [OfferedTool(name=NAME, item=ITEM)])

    async def call(self, call: ToolCall) -> ToolResult:
        self.runs += 1
        return ToolResult(await self.program(call))


async def twice(call: ToolCall) -> str:
    outputs = [await call.answer({"name": "wiki.ask", "arguments": {"q": n}}) for n in range(2)]
    return str([each.get("output") for each in outputs])


def kinds(response: JsonObject) -> list[str]:
    return [item["type"] for item in response["output"] if item["type"] != "reasoning"]  # type: ignore[attr-defined]


async def test_a_program_calls_tools_in_one_turn() -> None:
    servers = Servers()
    site = Site(FakeEngine([PROGRAM, ANSWER]), tools=[servers, Programs(twice)])
    events = await site.events(tools=[wiki("programmatic"), PROGRAMS])
    for event in events:
        validate_event(event)
    response = events[-1]["response"]
    validate_response(response)
    assert kinds(response) == ["mcp_list_tools", "program", "mcp_call", "mcp_call", "program_output", "message"]
    program, *calls, output = [i for i in response["output"] if i["type"] in ("program", "mcp_call", "program_output")]
    assert (program["code"], output["result"]) == ("a program", "['b', 'b']")
    assert [call["arguments"] for call in calls] == ['{"q":0}', '{"q":1}']
    caller = {"type": "program", "caller_id": program["call_id"]}
    assert [call["caller"] for call in calls] == [caller, caller]
    assert output["call_id"] == program["call_id"]
    assert len(site.engine.requests) == 2
    before, behind = prompt_of(site, 0), prompt_of(site, 1)
    assert "- wiki.ask: Asks." in before
    assert "namespace wiki" not in before
    assert "<|message|>['b', 'b']<|end|>" in behind
    # The model reads what the program printed, and not what each call gave; so does whoever is sent the items again.
    assert behind.count("wiki.ask") == before.count("wiki.ask")
    tools = [wiki("programmatic"), PROGRAMS]
    question: JsonObject = {"role": "user", "content": "hi"}
    await site.ask(input=[question, *response["output"][:-1], question], tools=tools)
    replayed = prompt_of(site, -1)
    assert behind.removesuffix("<|start|>assistant") in replayed


async def test_who_may_call_a_tool() -> None:
    for callers, told in (
        ((), False),
        (("direct",), False),
        (("direct", "programmatic"), True),
    ):
        site = Site(FakeEngine([DIRECT, ANSWER]), tools=[Servers(), Programs(twice)])
        response = await site.ask(input="hi", tools=[wiki(*callers), PROGRAMS])
        assert ("- wiki.ask: Asks." in prompt_of(site, 0)) is told
        assert "mcp_call" in kinds(response)
    site = Site(FakeEngine([DIRECT, ANSWER]), tools=[Servers(), Programs(twice)])
    response = await site.ask(input="hi", tools=[wiki("programmatic"), PROGRAMS])
    assert "mcp_call" not in kinds(response), "only programs may call it"
    assert "Available tools: program." in prompt_of(site, 1)


async def test_what_a_program_may_not_call_is_an_error_in_it() -> None:
    async def program(call: ToolCall) -> str:
        asked: list[JsonObject] = [
            {"name": "program", "arguments": {}},
            {"name": "gone", "arguments": {}},
            {"name": "wiki.ask", "arguments": "x"},
            {"name": ["wiki.ask"], "arguments": {}},
            {},
        ]
        return str([list(await call.answer(each)) for each in asked])

    servers = Servers()
    site = Site(FakeEngine([PROGRAM, ANSWER]), tools=[servers, Programs(program)])
    response = await site.ask(input="hi", tools=[wiki("programmatic"), PROGRAMS])
    assert kinds(response) == ["mcp_list_tools", "program", "program_output", "message"]
    assert str([["error"]] * 5) in prompt_of(site, 1)
    assert servers.calls == []


async def test_a_tool_that_needs_approval_is_not_called_by_programs() -> None:
    async def program(call: ToolCall) -> str:
        return str(await call.answer({"name": "wiki.ask", "arguments": {}}))

    servers = Servers(asks=True)
    site = Site(FakeEngine([PROGRAM, ANSWER]), tools=[servers, Programs(program)])
    await site.ask(input="hi", tools=[wiki("programmatic"), PROGRAMS])
    assert "needs the user's approval" in prompt_of(site, 1)
    assert servers.calls == []


@pytest.mark.parametrize(("limit", "made"), [(3, 2), (None, MAX_CALLS)])
async def test_a_program_that_calls_on_and_on_is_told_to_stop(limit: int | None, made: int) -> None:
    async def program(call: ToolCall) -> str:
        outcomes = [await call.answer({"name": "wiki.ask", "arguments": {}}) for _ in range(made + 5)]
        return f"{sum('output' in each for each in outcomes)} made, {sum('error' in each for each in outcomes)} not"

    servers = Servers()
    site = Site(FakeEngine([PROGRAM, ANSWER]), tools=[servers, Programs(program)])
    tools = [wiki("programmatic"), PROGRAMS]
    await site.ask(input="hi", tools=tools, max_tool_calls=limit, background=True)
    assert f"{made} made, 5 not" in prompt_of(site, 1)
    assert len(servers.calls) == made


async def test_cut_anywhere_it_goes_on_with_what_its_calls_gave() -> None:
    fields: dict[str, object] = {"tools": [wiki("programmatic"), PROGRAMS]}
    accepted, events = await undisturbed([PROGRAM, ANSWER], fields, tools=[Servers(), Programs(twice)])
    inputs = list(decode(accepted.log))
    names = [type(each).__name__ for each in inputs]
    for count in range(names.index("TurnBegan") + 1, len(inputs)):
        servers = Servers()
        engine = TokenEngine([PROGRAM, ANSWER])
        _, reading = await gone_on(accepted, inputs[:count], engine, tools=[servers, Programs(twice)])
        assert await reading.to_the_end() == events, f"cut behind {count} of {len(inputs)} inputs"
        assert len(servers.calls) == 2 - names[:count].count("ToolReturned"), "only what was under way is made again"


@pytest.mark.parametrize(
    ("tools", "param"),
    [
        ([wiki("programmatic")], CALLERS),
        (
            [{**wiki("programmatic"), "defer_loading": True}, {"type": "tool_search"}, PROGRAMS],
            CALLERS,
        ),
        ([wiki("nobody"), PROGRAMS], CALLERS),
        ([{**wiki(), "server_label": "program"}, PROGRAMS], "tools[0].server_label"),
        ([{**wiki(), "server_label": "tool_search"}, {"type": "tool_search"}], "tools[0].server_label"),
        ([{**wiki(), "server_label": "shell"}, HOSTED_SHELL], "tools[0].server_label"),
        ([{"type": "namespace", "name": "program", "tools": [function("f", "direct")]}, PROGRAMS], "tools[0].name"),
        ([{**wiki(), "allowed_callers": []}, PROGRAMS], CALLERS),
        (
            [{"type": "custom", "name": "f", "allowed_callers": ["programmatic"]}, PROGRAMS],
            CALLERS,
        ),
        ([function("f", "programmatic")], CALLERS),
        ([{**function("f", "direct", "programmatic"), "async": True}, PROGRAMS], CALLERS),
        ([{**function("f", "programmatic"), "defer_loading": True}, {"type": "tool_search"}, PROGRAMS], CALLERS),
        ([function("f", "nobody"), PROGRAMS], CALLERS),
        ([{"type": "namespace", "name": "n", "tools": [function("f", "programmatic")]}], "tools[0].tools[0]"),
    ],
)
async def test_declarations_that_cannot_be_are_refused(tools: list[JsonObject], param: str) -> None:
    site = Site(tools=[Servers(), Programs(twice)])
    error = await site.refusal(input="hi", tools=tools)
    assert error.status == 400
    assert str(error.param).startswith(param)


async def test_without_a_sandbox_there_are_no_programs() -> None:
    error = await Site(tools=[Servers()]).refusal(input="hi", tools=[wiki("programmatic"), PROGRAMS])
    assert (error.status, error.param) == (400, "tools[1].type")


@pytest.mark.parametrize("label", ["program", "tool_search"])
async def test_a_server_may_be_labelled_as_a_tool_that_is_not_declared(label: str) -> None:
    response = await Site(tools=[Servers()]).ask(input="hi", tools=[{**wiki(), "server_label": label}])
    assert kinds(response)[0] == "mcp_list_tools"
