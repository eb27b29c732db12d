"""Programs that call functions of the client's: they pause, and go on from their beginning with what came of that."""

import random
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import orjson
import pytest

from responses_app.protocol.errors import JsonObject
from responses_app.protocol.items.programs import MAX_CALLS
from responses_app.protocol.response.input_codec import decode
from responses_app.protocol.response.steps import OutputGiven
from responses_app.tools.base import ToolCall
from tests.kit.fakes import ANSWER, FakeEngine, Site
from tests.kit.oracle import validate_event, validate_response
from tests.unit.runs.readers import id_of, response_of
from tests.unit.runs.test_listed_tools import Servers
from tests.unit.runs.test_programs import PROGRAM, PROGRAMS, Programs, function, kinds, wiki
from tests.unit.runs.test_server_tools import prompt_of
from tests.unit.runs.test_takeover import TokenEngine, gone_on, undisturbed

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
    asked = iter(range(9))

    async def program(call: ToolCall) -> str:
        return str(await call.answer({"name": "stock", "arguments": {"now": next(asked)}}))

    site = site_of(program)
    first = await site.ask(input="hi", tools=TOOLS)
    second = await site.ask(input=outputs_of(first), previous_response_id=first["id"], tools=TOOLS)
    (output,) = [item for item in second["output"] if item["type"] == "program_output"]  # type: ignore[attr-defined]
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
        answers = await together(call, *(("stock", {"n": n}) for n in range(MAX_CALLS + 5)))
        return str(sum("no more tools" in str(each) for each in answers))

    site = site_of(program)
    first = await site.ask(input="hi", tools=TOOLS)
    assert len(calls_of(first)) == MAX_CALLS
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
