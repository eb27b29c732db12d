"""Programs that call functions of the client's, through OpenAI's SDK and its Agents SDK, with real containers."""

from typing import TYPE_CHECKING, Any

import pytest

from tests.kit.agents_sdk import model_of, no_tracing, run_of  # noqa: F401 - a fixture
from tests.kit.fixtures import module_sdk, module_server
from tests.kit.sandboxes import needs_bubblewrap
from tests.kit.scripts import Entry
from tests.kit.server import Server

if TYPE_CHECKING:  # importing it takes seconds, which all who collect tests would wait for
    from openai import OpenAI

pytestmark = [needs_bubblewrap]

MODEL = "test-model"
LOOP = """
first = call_tool("stock", {"name": "a"})
print(first, call_tools([("stock", {"name": "b"}), ("stock", {"name": "c"})]))
"""


def program(code: str) -> str:
    return f"<|channel|>commentary to=program code<|message|>{code}<|call|>"


def script() -> list[Entry]:
    from tests.wire.conformance.programs_example import PROGRAM

    return [
        {"when": "[orders]", "say": program(PROGRAM)},
        {"when": "[loop]", "say": program(LOOP)},
        {"when": '{"lamp": 7, "keyboard": 12}', "say": "<|channel|>final<|message|>Order 19 units.<|return|>"},
        {"when": "a of 1 ['b of 1', 'c of 1']", "say": "<|channel|>final<|message|>There are three.<|return|>"},
    ]


server = module_server("programs_sdk", script=script(), model_name=MODEL, sandbox="bubblewrap")


@pytest.mark.parametrize("by_id", [False, True], ids=["replayed", "by id"])
@pytest.mark.parametrize("transport", ["json", "sse", "websocket"])
async def test_an_agents_program_makes_nine_calls_at_once(server: Server, transport: str, *, by_id: bool) -> None:
    import agents
    from openai.types.responses.response_output_item import Program

    from tests.wire.conformance.programs_example import PROGRAM, QUESTION, agent, calls

    calls.clear()
    async with model_of(server, MODEL, transport) as model:
        config: Any = {"run_config": agents.RunConfig(model=model), "auto_previous_response_id": by_id}
        result, _ = await run_of(agent, QUESTION, streamed=transport != "json", **config)
    assert result.final_output == "Order 19 units."
    assert len(calls) == len(set(calls)) == 9
    assert len(result.raw_responses) == 2, "the program pauses once"
    raw = [item.raw_item for item in result.new_items if item.type == "tool_call_item"]
    assert [item.code for item in raw if isinstance(item, Program)] == [PROGRAM]
    assert sum(getattr(item, "caller", None) is not None and item.caller.type == "program" for item in raw) == 9


client = module_sdk()


def outputs_of(response: Any) -> list[Any]:
    calls = [item for item in response.output if item.type == "function_call"]
    names = [call.arguments.partition('":"')[2].removesuffix('"}') for call in calls]
    return [
        {"type": "function_call_output", "call_id": call.call_id, "output": f"{name} of 1", "caller": call.caller}
        for call, name in zip(calls, names, strict=True)
    ]


@pytest.mark.parametrize("way", ["previous response", "conversation", "replayed"])
def test_a_program_goes_on_however_its_outputs_come(client: "OpenAI", way: str) -> None:
    function = {"type": "function", "name": "stock", "parameters": None, "strict": False}
    tools: Any = [{"type": "programmatic_tool_calling"}, {**function, "allowed_callers": ["programmatic"]}]
    fields: Any = {"model": MODEL, "tools": tools, "store": way != "replayed"}
    if way == "conversation":
        fields["conversation"] = client.conversations.create().id
    history: list[Any] = [{"role": "user", "content": "[loop]"}]
    response = client.responses.create(input=history, tool_choice={"type": "programmatic_tool_calling"}, **fields)
    legs = [[item.type for item in response.output if item.type != "reasoning"]]
    while outputs := outputs_of(response):
        history += [*response.output, *outputs]
        if way == "previous response":
            fields["previous_response_id"] = response.id
        response = client.responses.create(input=history if way == "replayed" else outputs, **fields)
        legs.append([item.type for item in response.output if item.type != "reasoning"])
    assert legs == [["program", "function_call"], ["function_call"] * 2, ["program_output", "message"]]
    assert response.output_text == "There are three."
