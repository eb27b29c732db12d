"""Programs that call tools of the server, and functions of the client, for which they pause and go on."""

import random
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import orjson
import pytest

from engine.formats.base import ToolNamespace
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.items import offers
from responses_app.protocol.items.offers import MAX_PROGRAM_CALLS, MadeCall, Offer, OfferedTool
from responses_app.protocol.response.input_codec import decode
from responses_app.protocol.response.steps import OutputGiven, ProgramEnded, ProgramPaused, RunProgram
from responses_app.runs.driving import programs
from responses_app.runs.plan.plan import RunPlan
from responses_app.tools.base import BaseTool, ToolCall, ToolResult, ToolUse
from tests.kit.fakes import ANSWER, THOUGHT, FakeEngine, Site
from tests.kit.oracle import validate_event, validate_response
from tests.unit.runs.readers import id_of, response_of
from tests.unit.runs.test_listed_tools import Servers
from tests.unit.runs.test_server_tools import prompt_of
from tests.unit.runs.test_takeover import TokenEngine, gone_on, undisturbed

CALLERS = "tools[0].allowed_callers"
PROGRAMS: JsonObject = {"type": offers.PROGRAMS}
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

    kinds: ClassVar = (offers.PROGRAMS,)

    def __init__(self, program: Callable[[ToolCall], Coroutine[Any, Any, str]]) -> None:
        self.program = program
        self.runs = 0

    async def offer(self, use: ToolUse) -> Offer:
        return Offer(ToolNamespace(offers.PROGRAM), [OfferedTool(name=offers.PROGRAM, item=offers.PROGRAM)])

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


@pytest.mark.parametrize(("limit", "made"), [(3, 2), (None, MAX_PROGRAM_CALLS)])
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


TOOLS = [wiki("programmatic"), function("stock", "programmatic"), PROGRAMS]
Call = tuple[str, JsonObject]


async def together(call: ToolCall, *calls: Call) -> list[Any]:
    """Make calls as `call_tools` does."""
    answers = await call.answer({"calls": [{"name": name, "arguments": arguments} for name, arguments in calls]})
    return [each.get("output", each) for each in answers["answers"]]  # type: ignore[attr-defined]


async def plan(call: ToolCall) -> str:
    """Ask for two things at once, look one up, and ask for a third."""
    first = await together(call, ("stock", {"q": 1}), ("wiki.ask", {"q": 2}), ("stock", {"q": 3}))
    last = await call.answer({"name": "stock", "arguments": {"q": len(first)}})
    return str([*first, last.get("output")])


def site_of(
    program: Callable[[ToolCall], Coroutine[Any, Any, str]] = plan, turns: Sequence[str] = (PROGRAM, ANSWER)
) -> Site:
    return Site(FakeEngine(list(turns)), tools=[Servers(), Programs(program)])


def calls_of(response: JsonObject) -> list[JsonObject]:
    return [item for item in response["output"] if item["type"] == "function_call"]  # type: ignore[attr-defined,index]


def outputs_of(response: JsonObject, *, with_caller: bool = True) -> list[JsonObject]:
    """Return what the client says of the calls of a response: each gives its own arguments."""
    outputs: list[JsonObject] = []
    for call in calls_of(response):
        caller = {"caller": call["caller"]} if with_caller else {}
        text = f"stock of {call['arguments']}"
        outputs.append({"type": "function_call_output", "call_id": call["call_id"], "output": text, **caller})
    return outputs


DONE = """['stock of {"q":1}', 'b', 'stock of {"q":3}', 'stock of {"q":3}']"""


@pytest.mark.parametrize("way", ["previous", "previous, without callers", "replayed"])
async def test_a_program_pauses_and_goes_on(way: str) -> None:
    site = site_of()
    servers = site.tools[0]
    assert isinstance(servers, Servers)
    question: JsonObject = {"role": "user", "content": "hi"}
    fields: dict[str, object] = {"tools": TOOLS}
    events = await site.events(input=[question], store=way != "replayed", **fields)
    for event in events:
        validate_event(event)
    first = events[-1]["response"]
    validate_response(first)
    assert (first["status"], kinds(first)) == (
        "completed",
        ["mcp_list_tools", "program", "mcp_call", "function_call", "function_call"],
    )
    (program,) = [item for item in first["output"] if item["type"] == "program"]
    caller = {"type": "program", "caller_id": program["call_id"]}
    assert [(call["arguments"], call["caller"]) for call in calls_of(first)] == [
        ('{"q":1}', caller),
        ('{"q":3}', caller),
    ]

    history: list[JsonObject] = [question]

    async def answered(response: JsonObject) -> JsonObject:
        outputs = outputs_of(response, with_caller=way != "previous, without callers")
        if way != "replayed":
            return await site.ask(input=outputs, previous_response_id=response["id"], **fields)
        history.extend([*response["output"], *outputs])  # type: ignore[misc]
        return await site.ask(input=history, store=False, **fields)

    second = await answered(first)
    assert [kind for kind in kinds(second) if kind != "mcp_list_tools"] == ["function_call"]
    third = await answered(second)
    assert [kind for kind in kinds(third) if kind != "mcp_list_tools"] == ["program_output", "message"]
    (output,) = [item for item in third["output"] if item["type"] == "program_output"]  # type: ignore[attr-defined]
    assert (output["result"], output["status"], output["call_id"]) == (DONE, "completed", program["call_id"])
    assert len(servers.calls) == 1, "what the server was asked is not asked again"
    assert len(site.engine.requests) == 2, "one turn wrote the program, one read what it printed"
    behind = prompt_of(site, 1)
    assert behind.count("stock of") == 3, "the model reads the program's output alone"
    assert "functions.stock" not in behind

    follow_up = await site.refusal(input=[*first["output"], question], **fields)  # type: ignore[misc]
    assert "No tool output found" in follow_up.message


async def test_functions_are_told_to_programs_alone_unless_both_may_call() -> None:
    described = {**function("stock", "direct", "programmatic"), "output_schema": {"type": "integer"}}
    site = site_of(turns=[ANSWER])
    await site.ask(input="hi", tools=[described, function("secret", "programmatic"), PROGRAMS])
    prompt = prompt_of(site, 0)
    assert "- stock: " in prompt
    assert 'Gives: {"type":"integer"}' in prompt
    assert "- secret: " in prompt
    assert "type stock = " in prompt
    assert "type secret = " not in prompt


async def test_another_call_than_before_ends_the_program() -> None:
    asked, answers = iter(range(9)), list[JsonObject]()

    async def program(call: ToolCall) -> str:
        answers.append(await call.answer({"name": "stock", "arguments": {"now": next(asked)}}))
        return str(answers)

    site = site_of(program)
    first = await site.ask(input="hi", tools=TOOLS)
    second = await site.ask(input=outputs_of(first), previous_response_id=first["id"], tools=TOOLS)
    (output,) = [item for item in second["output"] if item["type"] == "program_output"]  # type: ignore[attr-defined]
    assert answers == [], "it does not go on behind that call"
    assert output["status"] == "incomplete"
    assert "called something else than before" in output["result"]
    assert second["output"][-1]["type"] == "message"  # type: ignore[index]


async def test_a_program_that_calls_less_than_before_has_diverged() -> None:
    runs: list[None] = []

    async def program(call: ToolCall) -> str:
        runs.append(None)
        return "done" if len(runs) > 1 else str(await call.answer({"name": "stock", "arguments": {}}))

    site = site_of(program)
    first = await site.ask(input="hi", tools=TOOLS)
    second = await site.ask(input=outputs_of(first), previous_response_id=first["id"], tools=TOOLS)
    (output,) = [item for item in second["output"] if item["type"] == "program_output"]  # type: ignore[attr-defined]
    assert "called something else than before" in output["result"]


async def test_a_call_of_which_nobody_knows_what_came_ends_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    run = programs.run_program

    async def again(plan: RunPlan, command: RunProgram, *rest: Any, **named: Any) -> ProgramEnded | ProgramPaused:
        return await run(plan, replace(command, made=[MadeCall("wiki.ask", '{"q":0}')]), *rest, **named)

    monkeypatch.setattr(programs, "run_program", again)
    servers = Servers()
    site = Site(FakeEngine([PROGRAM, ANSWER]), tools=[servers, Programs(twice)])
    await site.ask(input="hi", tools=[wiki("programmatic"), PROGRAMS])
    assert "called something else than before" in prompt_of(site, 1)
    assert servers.calls == []


async def test_outputs_that_are_missing_and_outputs_of_nothing_are_refused() -> None:
    site = site_of()
    first = await site.ask(input="hi", tools=TOOLS)
    outputs = outputs_of(first)
    missing = await site.refusal(input=outputs[:1], previous_response_id=first["id"], tools=TOOLS)
    assert f"No tool output found for function call {outputs[1]['call_id']}" in missing.message
    stray: JsonObject = {**outputs[0], "call_id": "call_of_nobody"}
    unknown = await site.refusal(input=[*outputs, stray], previous_response_id=first["id"], tools=TOOLS)
    assert "No tool call found for function call output with call_id call_of_nobody" in unknown.message
    alone = await site.refusal(input=outputs, previous_response_id=first["id"], tools=TOOLS[:1])
    assert alone.param == "tools[0].allowed_callers"
    without = await site.refusal(input=outputs, previous_response_id=first["id"])
    assert (without.param, "waits for what came of its calls" in without.message) == ("tools", True)
    forbidden = await site.refusal(input=outputs, previous_response_id=first["id"], tools=TOOLS, tool_choice="none")
    assert forbidden.param == "tool_choice"


async def test_a_response_that_waits_goes_on_with_the_same_program() -> None:
    site = site_of()
    reading = await site.begin(input="hi", tools=TOOLS, awaits_tools=True, transport="sse")
    answered: set[object] = set()
    response_id = str(id_of(reading))
    while not reading.reader.ended:
        for event in reading.take():
            item = event.get("item")
            if event["type"] != "response.output_item.done" or not isinstance(item, dict):
                continue
            if item["type"] == "function_call" and item["call_id"] not in answered:
                answered.add(item["call_id"])
                text = f"stock of {item['arguments']}"
                await site.outputs.give("default", response_id, OutputGiven(item["call_id"], text, text))
        if not reading.reader.ended:
            await reading.wake.wait()
    reading.take()
    response = reading.events[-1]["response"]
    assert response["status"] == "completed", response["error"]
    (output,) = [item for item in response["output"] if item["type"] == "program_output"]
    assert output["result"] == DONE
    given = [item for item in response["output"] if item["type"] == "function_call_output"]
    assert [item["caller"]["type"] for item in given] == ["program"] * 3
    assert prompt_of(site, 1).count("stock of") == 3


async def test_calls_are_bounded() -> None:
    async def program(call: ToolCall) -> str:
        answers = await together(call, *(("stock", {"n": n}) for n in range(MAX_PROGRAM_CALLS + 5)))
        return str(sum("no more tools" in str(each) for each in answers))

    site = site_of(program)
    first = await site.ask(input="hi", tools=TOOLS)
    assert len(calls_of(first)) == MAX_PROGRAM_CALLS
    second = await site.ask(input=outputs_of(first), previous_response_id=first["id"], tools=TOOLS)
    (output,) = [item for item in second["output"] if item["type"] == "program_output"]  # type: ignore[attr-defined]
    assert output["result"] == "5"


def some_program(seed: int) -> list[list[Call]]:
    """Return calls by chance: some together, of functions and of a server's tools."""
    chance = random.Random(seed)
    names = ("stock", "wiki.ask")
    return [
        [(chance.choice(names), {"n": chance.randrange(3)}) for _ in range(chance.randrange(1, 4))]
        for _ in range(chance.randrange(1, 6))
    ]


def with_ids_of_its_own(response: JsonObject, leg: str, before: list[JsonObject]) -> JsonObject:
    """Return a response whose ids no other site's have: all sites of tests count from one on."""
    known = {item.get("call_id") for item in before}
    items: list[JsonObject] = []
    for item in response["output"]:  # type: ignore[attr-defined]
        new = {**item, "id": item["id"] + leg}
        if "call_id" in item and item["type"] != "program_output":
            new["call_id"] = item["call_id"] + leg
        if "caller" in item and (caller := item["caller"]["caller_id"]) not in known:
            new["caller"] = {**item["caller"], "caller_id": caller + leg}
        items.append(new)
    return {**response, "output": items}


@pytest.mark.parametrize("seed", range(20))
async def test_however_often_it_pauses_and_dies_it_gives_what_it_gives_at_once(seed: int) -> None:
    steps, chance = some_program(seed), random.Random(seed)

    async def program(call: ToolCall) -> str:
        return str([await together(call, *step) for step in steps])

    def at_once(name: str, arguments: JsonObject) -> str:
        return f"stock of {orjson.dumps(arguments).decode()}" if name == "stock" else "b"

    expected = str([[at_once(*call) for call in step] for step in steps])
    servers, turns, asked = Servers(), [PROGRAM, ANSWER], 0
    fields: dict[str, object] = {"input": "hi", "tools": TOOLS}
    history: list[JsonObject] = [{"role": "user", "content": "hi"}]
    while True:
        # Each leg is of another worker, which dies at some place where no call of the server's is under way.
        accepted, _ = await undisturbed(turns, {**fields, "input": history}, tools=[servers, Programs(program)])
        inputs = list(decode(accepted.log))
        names = [type(each).__name__ for each in inputs]
        first = names.index("ToolsListed") + 1
        places = [n for n in range(first, len(inputs)) if names[n - 1] != "ProgramCalled"]
        heir = Servers()
        place = chance.choice(places)
        _, reading = await gone_on(accepted, inputs[:place], TokenEngine(turns), tools=[heir, Programs(program)])
        response = await response_of(reading)
        assert response["status"] == "completed", response
        assert len(heir.calls) == names[place:].count("ProgramCalled"), "no call is made twice"
        response = with_ids_of_its_own(response, f"-{len(history)}", history)
        history += [*response["output"], *outputs_of(response)]  # type: ignore[misc]
        asked += len(calls_of(response))
        turns = [ANSWER]  # the program stands in the items
        if not calls_of(response):
            break
    (output,) = [item for item in response["output"] if item["type"] == "program_output"]
    assert (output["result"], output["status"]) == (expected, "completed")
    assert asked == sum(name == "stock" for step in steps for name, _ in step)
    assert len(servers.calls) == sum(name != "stock" for step in steps for name, _ in step)


async def test_what_waits_is_not_compacted_alone() -> None:
    site = site_of()
    first = await site.ask(input="hi", tools=TOOLS)
    error = await site.refusal(
        input=[*outputs_of(first), {"type": "compaction_trigger"}], previous_response_id=first["id"], tools=TOOLS
    )
    assert "continue it first" in error.message
