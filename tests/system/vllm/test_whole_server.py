"""The whole server on a real vLLM, in daphne's process and in one of its own, through OpenAI's SDK.

Only this finds what of a real vLLM's answers does not fit the whole server.
"""

import json
import time
from itertools import pairwise

import openai
import pytest
from openai import OpenAI
from openai.types.responses import Response

from engine.formats.harmony.encoding import encode_harmony
from tests.kit.clients import Socket, http_client, read_error_answer, ready
from tests.kit.oracle import validate_response
from tests.kit.sdk import MODEL, WEATHER, Chat, run_tools
from tests.kit.server import Server
from tests.kit.waiting import eventually
from tests.system.engine_process import streamed
from tests.system.vllm.engines import full_blocks
from tests.system.vllm.fronts import LoadingServer
from tests.system.vllm.server import MAX_MODEL_LEN, VllmServer
from tests.system.vllm.transcripts import NUMBERS

TWO_CITIES = "the weather of Paris and Rome"


@pytest.mark.parametrize("front", ["front_with_vllm"], indirect=True)
def test_while_the_model_loads_a_create_is_told_to_come_back(front: LoadingServer) -> None:
    early = front.early_ready
    assert early is not None
    assert (early.status_code, early.json()["engine"]) == (503, "the engine is starting")
    assert int(early.headers["retry-after"]) >= 1
    assert front.early_create is not None
    read_error_answer(front.early_create, status=503, code="server_is_overloaded")


def test_the_log_says_what_was_started(front: Server) -> None:
    assert "the engine is ready: vllm" in front.output
    assert f"{MAX_MODEL_LEN} tokens of context" in front.output


def test_json(client: OpenAI) -> None:
    raw = client.responses.with_raw_response.create(model=MODEL, input="say short")
    validate_response(json.loads(raw.text))
    assert (raw.parse().status, raw.parse().output_text) == ("completed", "Hello you")


def test_a_stream(client: OpenAI) -> None:
    assert "".join(deltas := streamed(client, "say long")) == NUMBERS
    assert len(deltas) > 1  # a busy machine is told several tokens at once


def test_a_tool_loop_on_a_socket_computes_no_token_twice(client: OpenAI) -> None:
    with client.responses.connect() as connection:
        chat = Chat(connection)
        turns = [chat.ask(TWO_CITIES, tools=[WEATHER])]
        while outputs := run_tools(turns[-1]):
            turns.append(chat.ask(outputs, tools=[WEATHER], store=False))
    assert_all_was_cached(turns)


def test_a_tool_loop_over_http_computes_no_token_twice(client: OpenAI) -> None:
    turns = [client.responses.create(model=MODEL, input=TWO_CITIES, tools=[WEATHER])]
    while outputs := run_tools(turns[-1]):
        turns.append(
            client.responses.create(
                model=MODEL, input=outputs, tools=[WEATHER], previous_response_id=turns[-1].id, stream=False
            )
        )
    assert_all_was_cached(turns)


def assert_all_was_cached(turns: list[Response]) -> None:
    """Assert that each turn found every full block of those before it, prompts and sampled tokens, in the cache."""
    assert [[item.type for item in turn.output] for turn in turns] == [
        ["reasoning", "function_call"],
        ["reasoning", "function_call"],
        ["message"],
    ]
    usages = [turn.usage for turn in turns]
    for before, after in pairwise(usages):
        assert before is not None
        assert after is not None
        earlier = before.input_tokens + before.output_tokens
        assert earlier < after.input_tokens
        assert full_blocks(earlier) <= after.input_tokens_details.cached_tokens < after.input_tokens


def test_max_output_tokens_makes_it_incomplete(client: OpenAI) -> None:
    response = client.responses.create(model=MODEL, input="say endless", max_output_tokens=40)
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.usage is not None
    assert response.usage.output_tokens == 40


def test_the_fields_of_vllms_own_path_are_carried_out(client: OpenAI) -> None:
    def said(input: str, *, temperature: float = 0, tokens: int = 300, **fields: object) -> str:
        return client.responses.create(
            model=MODEL, input=input, temperature=temperature, max_output_tokens=tokens, extra_body=fields
        ).output_text

    (yes,) = encode_harmony(" yes")
    assert said("Answer.", tokens=8, logit_bias={str(yes): 100}).startswith(" yes yes")
    assert said("say long", stop=[" 5"]) == "0 1 2 3 4"
    seven, again, eight = [said("Answer.", temperature=1, tokens=20, seed=seed) for seed in (7, 7, 8)]
    assert seven == again != eight
    assert said("Answer.", temperature=2, tokens=20, top_k=1) == said("Answer.", tokens=20)
    assert said("Answer.", temperature=1, structured_outputs={"choice": ["good", "bad"]}) in ("good", "bad")


def test_an_input_beyond_the_context(client: OpenAI) -> None:
    input = [{"role": "user", "content": f"{number} and so on " * 100} for number in range(MAX_MODEL_LEN // 200)]
    input.append({"role": "user", "content": "say short"})
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(model=MODEL, input=input)  # type: ignore[arg-type]
    assert refused.value.code == "context_length_exceeded"
    response = client.responses.create(model=MODEL, input=input, truncation="auto")  # type: ignore[arg-type]
    assert response.output_text == "Hello you"
    assert response.usage is not None
    assert MAX_MODEL_LEN // 2 < response.usage.input_tokens < MAX_MODEL_LEN


async def test_a_lost_reader_aborts_the_generation(front: Server, request: pytest.FixtureRequest) -> None:
    async with http_client(front) as http:
        async with http.stream("POST", "/responses", json={"input": "say endless", "stream": True}) as answer:
            chunks = answer.aiter_bytes()  # held: one that nobody holds closes the connection
            await anext(chunks)
            await eventually(lambda: is_running(front, 1))
        await assert_idle(front, request)
    socket = await Socket.open(front.ws_url)
    await socket.create("say endless")
    await socket.until("response.output_text.delta")
    await eventually(lambda: is_running(front, 1))
    socket.raw.transport.abort()
    await assert_idle(front, request)


async def assert_idle(front: Server, request: pytest.FixtureRequest) -> None:
    lost = time.monotonic()
    await eventually(lambda: is_running(front, 0))
    if front.environ["ENGINE"] == "vllm-server":
        vllm: VllmServer = request.getfixturevalue("vllm_server")
        await eventually(lambda: vllm.running() == 0)
    print(f"ENGINE={front.environ['ENGINE']}: idle {1000 * (time.monotonic() - lost):.0f} ms after its reader was lost")


async def is_running(front: Server, number: int) -> bool:
    return bool((await ready(front))["responses_in_flight"] == number)
