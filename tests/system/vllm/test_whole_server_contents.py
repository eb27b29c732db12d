"""Schemas and tools through the whole server, of a model with meaningless weights: whatever it says fits.

A turn's beginning is forced, up to where its content or the name of its tool begins, because a model of noise that has
begun to think never ends. Everything behind that is sampled under the grammar of the request. Only this finds a
request's schema that is lost on its way to a real vLLM.
"""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle

import pytest
from jsonschema import Draft202012Validator
from openai import OpenAI
from openai.types.responses import Response, ResponseFunctionToolCall

from responses_app.runs.plan.failures import BROKEN
from tests.kit.schemas import drawn, leaves, objects
from tests.kit.sdk import MODEL
from tests.kit.server import Server
from tests.system.vllm.transcripts import BEGUN

PATIENCE = 10.0  # seconds in which a process has written what it logs

AT_ONCE = 16
TOKENS = 150
ANSWERS = tuple(when for when in BEGUN if "answer" in when.lower())
CALLS = tuple(when for when in BEGUN if "call" in when.lower())
Fields = Mapping[str, object]


@pytest.fixture(scope="module")
def parameters() -> Sequence[dict[str, object]]:
    return [json.loads(schema) for schema in drawn(12, lambda: objects(leaves()))]


def asked(client: OpenAI, several: Sequence[Fields]) -> list[Response]:
    """Return the responses to several requests, every second of them streamed."""

    def one(number: int) -> Response:
        fields: dict[str, object] = {"model": MODEL, "max_output_tokens": TOKENS, "store": False, **several[number]}
        if number % 2:
            return client.responses.create(**fields)  # type: ignore[call-overload, no-any-return]
        *_, last = client.responses.create(**fields, stream=True)  # type: ignore[call-overload]
        return last.response  # type: ignore[no-any-return]

    with ThreadPoolExecutor(AT_ONCE) as pool:
        responses = list(pool.map(one, range(len(several))))
    for response in responses:
        assert response.status == "completed" or (
            response.incomplete_details is not None and response.incomplete_details.reason == "max_output_tokens"
        ), response
    return responses


def calls_of(responses: Sequence[Response]) -> Iterator[ResponseFunctionToolCall]:
    """Yield every call that the model has said to its end, in whatever response."""
    for response in responses:
        for item in response.output:
            if item.type == "function_call" and item.status == "completed":
                yield item


def is_ended(response: Response) -> bool:
    """Whether the model has ended it itself."""
    return response.status == "completed"


def test_answers_fit_their_schemas_and_are_anything_without_one(client: OpenAI) -> None:
    schemas = [json.loads(schema) for schema in drawn(20)]
    formats = [{"type": "json_schema", "name": "it", "strict": True, "schema": schema} for schema in schemas]
    whens = cycle(ANSWERS)
    held = asked(client, [{"input": next(whens), "text": {"format": format}} for format in formats])
    free = asked(client, [{"input": next(whens), "max_output_tokens": 20} for _ in range(10)])

    ended = [(response, schema) for response, schema in zip(held, schemas, strict=True) if is_ended(response)]
    assert len(ended) >= 5
    for response, schema in ended:
        Draft202012Validator(schema).validate(json.loads(response.output_text))
    for response in free:
        with pytest.raises(ValueError, match=r"."):
            json.loads(response.output_text)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "f3"}], ids=["required", "named"])
def test_a_call_that_must_be_is_made_with_arguments_that_fit(
    client: OpenAI, parameters: Sequence[dict[str, object]], choice: object
) -> None:
    tools = {
        f"f{number}": {"type": "function", "name": f"f{number}", "strict": True, "parameters": schema}
        for number, schema in enumerate(parameters)
    }
    whens = cycle(CALLS)
    fields: Fields = {"tools": list(tools.values()), "tool_choice": choice}
    responses = asked(client, [{"input": next(whens), **fields} for _ in range(24)])

    assert all(item.type != "message" or item.phase != "final_answer" for each in responses for item in each.output)
    assert all(each.output[-1].type == "function_call" for each in responses if is_ended(each))
    called = list(calls_of(responses))
    assert len(called) >= 12
    assert {call.name for call in called} <= (set(tools) if choice == "required" else {"f3"})
    for call in called:
        schema = tools[call.name]["parameters"]
        Draft202012Validator(schema).validate(json.loads(call.arguments))


def test_a_token_that_the_grammar_rejects_fails_that_response_alone(client: OpenAI, front: Server) -> None:
    """As a logits processor, speculative decoding or a bug would sample it: past the mask."""
    tool = {"type": "function", "name": "f", "parameters": {"type": "object"}}
    request: Fields = {"model": MODEL, "input": "Answer instead of a call.", "tools": [tool], "tool_choice": "required"}
    logged = len(front.output)
    *_, last = client.responses.create(**request, stream=True)  # type: ignore[call-overload]
    assert last.type == "response.failed"
    whole = client.responses.create(**request)  # type: ignore[call-overload]
    for response in (last.response, whole):
        assert (response.status, [item.type for item in response.output]) == ("failed", ["reasoning"])
        assert (response.error.code, response.error.message) == ("server_error", BROKEN)
    deadline = time.monotonic() + PATIENCE
    while front.output.count("leave out logits", logged) < 2 and time.monotonic() < deadline:  # of another process
        time.sleep(0.05)
    assert front.output.count("GrammarBroken", logged) == 2
    assert front.output.count("leave out logits", logged) >= 2, "a turn that was tried again tells it twice"
    assert client.responses.create(model=MODEL, input="say short").output_text == "Hello you"
