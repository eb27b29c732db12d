"""What models and clients do with tools: each kind that clients execute, called, answered, read again, and refused."""

import json
from pathlib import Path

import httpx
import pytest

from engine.formats.harmony.encoding import decode_tokens, encode_harmony
from tests.inprocess.conftest import Connect
from tests.kit.clients import Frame, Socket, read_error_answer, read_error_frame, text_of
from tests.kit.fake_vllm import FakeVllm
from tests.kit.inprocess import Server
from tests.kit.oracle import validate_event, validate_response_items
from tests.kit.scripts import CALLS, FIRST_CALL, TWICE, WEATHER, generations
from tests.kit.waiting import eventually
from tests.wire.transports.test_vllm_server_engine import in_front_of

TOOLS: list[Frame] = [
    {
        "type": "namespace",
        "name": "crm",
        "description": "Customers.",
        "tools": [{"type": "function", "name": "find", "parameters": {"type": "object"}}],
    },
    {"type": "custom", "name": "sql"},
    {"type": "local_shell"},
    {"type": "shell"},
    {"type": "apply_patch"},
    {"type": "tool_search", "execution": "client"},
]
ITEMS: dict[str, Frame] = {  # and what the client answers
    "crm.find": {"type": "function_call", "name": "find", "namespace": "crm"},
    "sql": {"type": "custom_tool_call", "name": "sql", "input": "SELECT 1"},
    "local_shell": {"type": "local_shell_call"},
    "shell": {"type": "shell_call"},
    "apply_patch": {"type": "apply_patch_call", "operation": {"type": "delete_file", "path": "a"}},
    "tool_search": {"type": "tool_search_call", "arguments": {"query": "weather"}, "execution": "client"},
}
SHELL_OUTPUT = [{"stdout": "README.md", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}]
OUTPUTS: dict[str, Frame] = {
    "crm.find": {"type": "function_call_output", "output": "README.md"},
    "sql": {"type": "custom_tool_call_output", "output": "README.md"},
    "local_shell": {"type": "local_shell_call_output", "output": "README.md"},
    "shell": {"type": "shell_call_output", "output": SHELL_OUTPUT},
    "apply_patch": {"type": "apply_patch_call_output", "status": "completed", "output": "README.md"},
    "tool_search": {
        "type": "tool_search_output",
        "status": "completed",
        "execution": "client",
        "tools": [{"type": "function", "name": "README.md", "parameters": {}}],
    },
}


def names_its_call(name: str) -> str:
    """Return the field of an output that names its call: in OpenAI's types a local shell's is its own id."""
    return "id" if name == "local_shell" else "call_id"


async def read_by_the_model(server: Server, response_id: str) -> str:
    """Return what the model read, as text."""
    await eventually(lambda: bool(generations(server, response_id)))
    (generation,) = generations(server, response_id)
    return decode_tokens(generation["prompt_tokens"])


@pytest.mark.parametrize("name", CALLS)
async def test_a_loop_over_a_socket(server: Server, socket: Socket, http: httpx.AsyncClient, name: str) -> None:
    first = await socket.ask(f"[call {name}]", tools=TOOLS)
    (call,) = first["output"]
    assert call.items() >= ITEMS[name].items()
    output = {**OUTPUTS[name], names_its_call(name): call["call_id"]}
    second = await socket.ask([output], previous_response_id=first["id"], tools=TOOLS)
    assert text_of(second) == "Hello there, friend."
    read = await read_by_the_model(server, second["id"])
    assert read.count(f"<|start|>functions.{name} to=assistant<|channel|>commentary<|message|>") == 1
    assert "README.md" in read
    listed = (await http.get(f"/responses/{second['id']}/input_items")).json()
    validate_response_items(listed)
    assert [item[names_its_call(name)] for item in listed["data"]] == [call["call_id"]]


@pytest.mark.parametrize("name", CALLS)
async def test_a_loop_over_http_with_everything_sent_again(server: Server, http: httpx.AsyncClient, name: str) -> None:
    asked = {"role": "user", "content": f"[call {name}]"}
    events: list[Frame] = []
    async with http.stream("POST", "/responses", json={"input": [asked], "tools": TOOLS, "stream": True}) as answer:
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                events.append(json.loads(line.removeprefix("data: ")))
    for event in events:
        validate_event(event)
    (call,) = events[-1]["response"]["output"]
    kept = {key: value for key, value in call.items() if value is not None}  # as some SDKs send it
    output = {**OUTPUTS[name], names_its_call(name): call["call_id"]}
    body = {"input": [asked, kept, output], "tools": TOOLS, "store": False}
    second = (await http.post("/responses", json=body)).json()
    assert text_of(second) == "Hello there, friend."
    (sampled,) = generations(server, events[-1]["response"]["id"])
    said = decode_tokens(sampled["sampled_tokens"])
    assert said in await read_by_the_model(server, second["id"]), "with the tokens that were sampled"


async def test_a_stored_call_is_read_again(http: httpx.AsyncClient) -> None:
    first = (await http.post("/responses", json={"input": "[call sql]", "tools": TOOLS})).json()
    assert (await http.get(f"/responses/{first['id']}")).json()["output"] == first["output"]
    items = [{"role": "user", "content": "[call sql]"}, *first["output"]]
    made = (await http.post("/conversations", json={"items": items})).json()
    listed = (await http.get(f"/conversations/{made['id']}/items")).json()["data"]
    assert [item["type"] for item in listed] == ["custom_tool_call", "message"]
    refused = await http.post("/responses", json={"input": "And?", "conversation": made["id"], "tools": TOOLS})
    message = read_error_answer(refused, status=400, code=None, param="input")
    assert message.startswith(f"No tool output found for custom tool call {first['output'][0]['call_id']}.")


async def test_what_was_called_must_be_answered(socket: Socket, http: httpx.AsyncClient) -> None:
    first = await socket.ask("[call crm.find]", tools=TOOLS)
    call_id = first["output"][0]["call_id"]
    fields: Frame = {"previous_response_id": first["id"], "tools": TOOLS}
    await socket.create("And?", **fields)
    message = read_error_frame(await socket.next(), status=400, code=None, param="input")
    assert message.startswith(f"No tool output found for function call {call_id}.")
    body = {"input": [{"type": "function_call_output", "call_id": "call_x", "output": ""}], **fields}
    message = read_error_answer(await http.post("/responses", json=body), status=400, code=None, param="input")
    assert message.startswith("No tool call found for function call output with call_id call_x.")
    output = {"type": "function_call_output", "call_id": call_id, "output": "Ada"}
    assert text_of(await socket.ask([output], **fields)) == "Hello there, friend.", "the refusals have changed nothing"


def namespace(*tools: Frame, name: str = "n", **fields: object) -> Frame:
    return {"type": "namespace", "name": name, "tools": [*tools], **fields}


def custom(name: str = "f", **grammar: str) -> Frame:
    return {"type": "custom", "name": name, **({"format": {"type": "grammar", **grammar}} if grammar else {})}


INVALID, MISSING, UNKNOWN = "invalid_value", "missing_required_parameter", "unknown_parameter"
BAD_TOOLS: dict[str, tuple[list[Frame], str, str]] = {
    "twice": ([{"type": "function", "name": "f"}, custom()], "tools[1].name", INVALID),
    "twice-inside": ([{"type": "function", "name": "n.f"}, namespace(custom())], "tools[1].tools[0].name", INVALID),
    "twice-a-kind": ([{"type": "shell"}, {"type": "function", "name": "shell"}], "tools[1].name", INVALID),
    "async-shell": ([{"type": "shell", "async": True}], "tools[0].async", UNKNOWN),
    "async-namespace": ([namespace(**{"async": False})], "tools[0].async", UNKNOWN),
    "member-kind": ([namespace({"type": "shell"})], "tools[0].tools[0].type", INVALID),
    "member-name": ([namespace(custom("f" * 200), name="n" * 200)], "tools[0].tools[0].name", INVALID),
    "no-members": ([{"type": "namespace", "name": "n"}], "tools[0].tools", MISSING),
    "no-definition": ([custom(syntax="lark")], "tools[0].format.definition", MISSING),
    "no-syntax": ([custom(syntax="bnf", definition="x")], "tools[0].format.syntax", INVALID),
    "bad-regex": ([custom(syntax="regex", definition="(?=a)")], "tools[0].format.definition", INVALID),
}


@pytest.mark.parametrize("case", BAD_TOOLS)
async def test_bad_tools_are_named(http: httpx.AsyncClient, socket: Socket, case: str) -> None:
    tools, param, code = BAD_TOOLS[case]
    answer = await http.post("/responses", json={"input": "hi", "tools": tools})
    message = read_error_answer(answer, status=400, code=code, param=param)
    await socket.create("hi", tools=tools)
    assert read_error_frame(await socket.next(), status=400, code=code, param=param) == message


ONE_CALL = {"tools": [WEATHER], "parallel_tool_calls": False}
HISTORY: list[Frame] = [
    {"type": "message", "role": "user", "content": "look"},
    {"type": "custom_tool_call", "call_id": "c1", "name": "sql", "input": "SELECT 41"},
    {"type": "custom_tool_call_output", "call_id": "c1", "output": "forty-one"},
    {"type": "shell_call", "call_id": "c2", "action": {"commands": ["ls"]}},
    {"type": "shell_call_output", "call_id": "c2", "output": [{"stdout": "README.md", "stderr": "", "outcome": {}}]},
    {"type": "mcp_call", "server_label": "s", "name": "f", "arguments": "{}", "output": "from the server"},
    {"type": "image_generation_call", "result": "AAAA"},
    {"type": "function_call", "call_id": "c3", "name": "g", "arguments": "{}", "status": "completed", "output": "42"},
    {"type": "message", "role": "user", "content": "and now?"},
]


async def test_the_model_reads_the_tools_of_a_history(server: Server, http: httpx.AsyncClient) -> None:
    response = (await http.post("/responses", json={"input": HISTORY})).json()
    assert response["status"] == "completed"
    read = await read_by_the_model(server, response["id"])
    told = ["SELECT 41", "forty-one", "README.md", "from the server", "[image omitted", "to=functions.g", ">42<"]
    assert [read.count(each) for each in told] == [1] * len(told)
    assert sorted(told, key=read.index) == told
    assert "AAAA" not in read
    assert f"response {response['id']}: 1 parts the model cannot read were left out" in server.output


async def test_one_call_through_vllm(folder: Path, open_socket: Connect) -> None:
    script = {"say": TWICE, "hang_after": len(encode_harmony(FIRST_CALL)) + 3}
    async with FakeVllm(script) as fake, in_front_of(fake, folder) as server:
        socket = await open_socket(server)
        response = await socket.ask("Hi", **ONE_CALL)
        assert (response["status"], [item["type"] for item in response["output"]]) == ("completed", ["function_call"])
        await eventually(lambda: fake.engine.aborted == 1)


async def test_a_tool_of_an_unknown_type_is_refused(http: httpx.AsyncClient, socket: Socket) -> None:
    tools = [{"type": "web_search"}, {"type": "bogus"}]
    answer = await http.post("/responses", json={"input": "hi", "tools": tools})
    message = read_error_answer(answer, status=400, code="invalid_value", param="tools[1].type")
    await socket.create("hi", tools=tools)
    assert read_error_frame(await socket.next(), status=400, code="invalid_value", param="tools[1].type") == message
    assert "'function', 'custom'" in message
