"""Two families of models with chat templates on a real vLLM: a Qwen3-like behind a server, a Llama-like in process.

Only this finds a template, a vocabulary or a grammar that vLLM takes in another way than we do.
"""

import json
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from openai import OpenAI
from openai.types.responses import Response

from tests.kit.oracle import validate_response
from tests.kit.sdk import MODEL, WEATHER, Chat, run_tools, sdk_of
from tests.kit.server import Server
from tests.system.engine_process import streamed
from tests.system.vllm.chat_servers import BLOCK_SIZE, NUMBERS
from tests.system.vllm.engines import full_blocks

PET: dict[str, Any] = {
    "type": "object",
    "properties": {"kind": {"enum": ["cat", "dog"]}, "legs": {"type": "integer", "enum": [3, 4]}},
    "required": ["kind", "legs"],
    "additionalProperties": False,
}
PATTERN = r'[ab]{1,3}"\n'
CHOOSE = {"type": "function", "name": "choose", "parameters": PET, "strict": True}


@pytest.fixture
def client(family_front: Server) -> Iterator[OpenAI]:
    with sdk_of(family_front) as client:
        yield client


@pytest.fixture
def thinks(family_front: Server) -> bool:
    """Whether the family thinks first: the Qwen3-like does."""
    return family_front.environ["ENGINE"] == "vllm-server"


def kinds(response: Response, *, thinks: bool) -> list[str]:
    """Return the types of a response's items; one that thinks has thought first."""
    found = [item.type for item in response.output]
    assert (found[0] == "reasoning") == thinks
    return found[1:] if thinks else found


def test_an_answer(client: OpenAI, thinks: bool) -> None:
    raw = client.responses.with_raw_response.create(model=MODEL, input="Say hello.")
    validate_response(json.loads(raw.text))
    response = raw.parse()
    assert (response.status, response.output_text) == ("completed", "Hello world")
    assert kinds(response, thinks=thinks) == ["message"]
    assert response.usage is not None
    assert (response.usage.output_tokens_details.reasoning_tokens > 0) == thinks


def test_a_stream(client: OpenAI) -> None:
    assert "".join(deltas := streamed(client, "Count.")) == NUMBERS
    assert len(deltas) > 1  # a busy machine is told several tokens at once


def test_a_tool_loop_on_a_socket_computes_no_token_twice(client: OpenAI, thinks: bool) -> None:
    with client.responses.connect() as connection:
        chat = Chat(connection)
        first = chat.ask("The weather of Paris?", tools=[WEATHER])
        second = chat.ask(run_tools(first), tools=[WEATHER], store=False)
    assert_a_loop([first, second], thinks=thinks)


def test_a_tool_loop_over_http_and_its_replay(client: OpenAI, thinks: bool) -> None:
    first = client.responses.create(model=MODEL, input="The weather of Paris?", tools=[WEATHER])
    outputs = run_tools(first)
    second = client.responses.create(model=MODEL, input=outputs, tools=[WEATHER], previous_response_id=first.id)
    assert_a_loop([first, second], thinks=thinks)
    replayed = [{"role": "user", "content": "The weather of Paris?"}, *first.output, *outputs]
    again = client.responses.create(model=MODEL, input=replayed, tools=[WEATHER])  # type: ignore[arg-type]
    assert again.output_text == second.output_text
    assert again.usage is not None
    assert second.usage is not None
    assert again.usage.input_tokens == second.usage.input_tokens


def assert_a_loop(turns: list[Response], *, thinks: bool) -> None:
    """Assert that a call was answered, and that a turn found every full block of the one before it in the cache."""
    assert kinds(turns[0], thinks=thinks) == ["function_call"]
    assert turns[-1].output_text == "It is mild."
    for before, after in pairwise([turn.usage for turn in turns]):
        assert before is not None
        assert after is not None
        earlier = before.input_tokens + before.output_tokens
        assert full_blocks(earlier) // BLOCK_SIZE <= after.input_tokens_details.cached_tokens // BLOCK_SIZE


def test_parallel_calls(client: OpenAI, thinks: bool) -> None:
    response = client.responses.create(model=MODEL, input="Two cities!", tools=[WEATHER])
    assert kinds(response, thinks=thinks) == ["function_call"] * 2
    cities = [json.loads(item.arguments)["city"] for item in response.output if item.type == "function_call"]
    assert cities == ["Paris", "Rome"]


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "choose"}], ids=["required", "named"])
def test_a_call_that_is_demanded(client: OpenAI, choice: Any) -> None:
    response = client.responses.create(
        model=MODEL, input="Whatever.", tools=[CHOOSE], tool_choice=choice, parallel_tool_calls=False
    )
    [call] = [item for item in response.output if item.type == "function_call"]
    assert call.name == "choose"
    assert_pet(call.arguments)


def test_a_custom_tool_whose_text_has_a_grammar(client: OpenAI) -> None:
    tool = {"type": "custom", "name": "sh", "format": {"type": "grammar", "syntax": "regex", "definition": PATTERN}}
    response = client.responses.create(
        model=MODEL,
        input="Whatever.",
        tools=[tool],
        tool_choice="required",
        parallel_tool_calls=False,  # type: ignore[list-item]
    )
    [call] = [item for item in response.output if item.type == "custom_tool_call"]
    assert re.fullmatch(PATTERN, call.input)


def test_an_answer_that_fits_a_schema(client: OpenAI) -> None:
    text = {"format": {"type": "json_schema", "name": "pet", "schema": PET, "strict": True}}
    response = client.responses.create(model=MODEL, input="Whatever.", text=text)  # type: ignore[arg-type]
    assert_pet(response.output_text)


def assert_pet(text: str) -> None:
    pet = json.loads(text)
    assert (pet["kind"] in ("cat", "dog"), pet["legs"] in (3, 4)) == (True, True)
