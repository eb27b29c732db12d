"""What models and clients do with tools, over real servers: calls, outputs, and kinds of tools that are not there."""

from pathlib import Path

import httpx

from engine.formats.harmony.encoding import CALL, decode_tokens, encode_harmony
from tests.inprocess.conftest import Connect
from tests.kit.clients import Frame, Socket, read_error_answer, read_error_frame, text_of
from tests.kit.fake_vllm import FakeVllm
from tests.kit.inprocess import Server
from tests.kit.scripts import FIRST_CALL, TWICE, WEATHER, as_history, generations
from tests.kit.waiting import eventually
from tests.wire.transports.test_vllm_server_engine import in_front_of

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


def kinds(response: Frame) -> list[str]:
    return [item["type"] for item in response["output"]]


async def prompt_of(server: Server, response_id: str) -> str:
    """Return what the model read, as text."""
    await eventually(lambda: bool(generations(server, response_id)))
    (generation,) = generations(server, response_id)
    return decode_tokens(generation["prompt_tokens"])


async def test_the_model_reads_the_tools_of_a_history(server: Server, http: httpx.AsyncClient) -> None:
    response = (await http.post("/responses", json={"input": HISTORY})).json()
    assert response["status"] == "completed"
    read = await prompt_of(server, response["id"])
    told = ["SELECT 41", "forty-one", "README.md", "from the server", "[image omitted", "to=functions.g", ">42<"]
    assert [read.count(each) for each in told] == [1] * len(told)
    assert sorted(told, key=read.index) == told
    assert "AAAA" not in read
    assert f"response {response['id']}: 1 parts the model cannot read were left out" in server.output


async def test_a_call_that_comes_back_with_its_output_continues_the_chain(server: Server, socket: Socket) -> None:
    first = await socket.ask("[weather]", tools=[WEATHER])
    call = {**first["output"][0], "status": "completed", "output": "rain"}
    second = await socket.ask([call], previous_response_id=first["id"], tools=[WEATHER])
    read = await prompt_of(server, second["id"])
    assert read.count("to=functions.get_weather") == 1
    assert "<|start|>functions.get_weather to=assistant<|channel|>commentary<|message|>rain<|end|>" in read


async def test_one_call_where_one_is_asked_for(server: Server, socket: Socket) -> None:
    """The model goes on after its first call, and hangs in the second: nobody waits for that."""
    first = await socket.ask("[twice]", **ONE_CALL)
    assert (first["status"], kinds(first)) == ("completed", ["function_call"])
    assert first["usage"]["output_tokens"] == len(encode_harmony(FIRST_CALL))
    await eventually(lambda: bool(generations(server, first["id"])))
    (generation,) = generations(server, first["id"])
    assert generation["finish"] == "abort"
    output = {"type": "function_call_output", "call_id": first["output"][0]["call_id"], "output": "rain"}
    second = await socket.ask([output], previous_response_id=first["id"], **ONE_CALL)
    await eventually(lambda: bool(generations(server, second["id"])))
    (continued,) = generations(server, second["id"])
    kept = as_history({**generation, "sampled_tokens": encode_harmony(FIRST_CALL)})
    assert continued["prompt_tokens"][: len(kept)] == kept
    assert decode_tokens(continued["prompt_tokens"][len(kept) :]).startswith("<|start|>functions.get_weather ")
    assert CALL not in continued["prompt_tokens"]


async def test_one_call_through_vllm(folder: Path, open_socket: Connect) -> None:
    script = {"say": TWICE, "hang_after": len(encode_harmony(FIRST_CALL)) + 3}
    async with FakeVllm(script) as fake, in_front_of(fake, folder) as server:
        socket = await open_socket(server)
        response = await socket.ask("Hi", **ONE_CALL)
        assert (response["status"], kinds(response)) == ("completed", ["function_call"])
        await eventually(lambda: fake.engine.aborted == 1)


async def test_an_end_of_text_ends_the_message(socket: Socket) -> None:
    response = await socket.ask("[end of text]")
    assert (response["status"], text_of(response)) == ("completed", "That is all.")
    assert response["output"][-1]["status"] == "completed"
    again = await socket.ask("Hello", previous_response_id=response["id"])
    assert again["status"] == "completed"


async def test_a_tool_of_an_unknown_type_is_refused(http: httpx.AsyncClient, socket: Socket) -> None:
    tools = [{"type": "web_search"}, {"type": "bogus"}]
    answer = await http.post("/responses", json={"input": "hi", "tools": tools})
    message = read_error_answer(answer, status=400, code="invalid_value", param="tools[1].type")
    await socket.create("hi", tools=tools)
    assert read_error_frame(await socket.next(), status=400, code="invalid_value", param="tools[1].type") == message
    assert "'function', 'custom'" in message
