"""What OpenAI asks of whoever serves gpt-oss over Chat Completions: the shapes of calls, thoughts and streams.

After the compatibility test of openai/gpt-oss: a model is given a function of some schema, calls it once with arguments
that fit, thinks aloud where clients can read it, and answers once it has been told what came of the call. Here the demo
engine is the model, so what is tried is the wire.
"""

import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from openai import OpenAI
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from tests.kit.chats import put_together
from tests.kit.sdk import MODEL


def schema(**properties: Any) -> dict[str, Any]:
    """Return the schema of a function's parameters, all of which are required."""
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


CASES: dict[str, dict[str, Any]] = {
    "get_system_health": schema(),
    "convert_celsius": schema(celsius={"type": "number"}),
    "get_weather": schema(city={"type": "string"}, unit={"type": "string", "enum": ["celsius", "fahrenheit"]}),
    "markdown_to_html": schema(markdown={"type": "string"}),
    "make_chart": schema(values={"type": "array", "items": {"type": "integer"}, "minItems": 1}),
    "book_table": schema(guest=schema(name={"type": "string"}, seats={"type": "integer"})),
    "set_alarm": schema(at={"type": "string"}, loud={"type": "boolean"}, label={"type": ["string", "null"]}),
}


def asked(name: str, *, strict: bool) -> dict[str, Any]:
    """Return a chat that asks for a call of this function."""
    function = {"name": name, "description": "Does it.", "parameters": CASES[name], "strict": strict}
    tool = {"type": "function", "function": function}
    return {"model": MODEL, "messages": [{"role": "user", "content": f"call {name}"}], "tools": [tool]}


def check_call(message: dict[str, Any], name: str) -> Any:
    """Check the message that calls, and return its call."""
    assert message["reasoning"] == message["reasoning_content"], "the thought, under both of its names"
    assert message["reasoning"].strip()
    assert not message["content"]
    [call] = message["tool_calls"]
    assert (call["type"], call["function"]["name"]) == ("function", name)
    assert call["id"].startswith("call_")
    Draft202012Validator(CASES[name]).validate(json.loads(call["function"]["arguments"]))
    return call


@pytest.mark.parametrize("name", CASES)
def test_a_function_is_called_and_answered(client: OpenAI, name: str) -> None:
    body = asked(name, strict=True)
    raw = client.chat.completions.with_raw_response.create(**body)
    completion = json.loads(raw.text)
    ChatCompletion.model_validate(completion, strict=True)
    [choice] = completion["choices"]
    assert choice["finish_reason"] == "tool_calls"
    call = check_call(choice["message"], name)
    output = {"role": "tool", "tool_call_id": call["id"], "content": "It is done."}
    body["messages"] += [choice["message"], output]
    answered = client.chat.completions.create(**body).choices[0]
    assert answered.finish_reason == "stop"
    assert "It is done." in str(answered.message.content)
    assert answered.message.tool_calls is None


@pytest.mark.parametrize("name", ["get_system_health", "book_table"])
def test_the_same_as_a_stream(client: OpenAI, name: str) -> None:
    body = asked(name, strict=False)
    chunks: list[dict[str, Any]] = []
    for chunk in client.chat.completions.create(**body, stream=True):
        said = chunk.model_dump(exclude_unset=True)
        ChatCompletionChunk.model_validate(said, strict=True)
        chunks.append(said)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    kinds = [next((kind for kind in ("role", "reasoning", "tool_calls") if kind in delta), "end") for delta in deltas]
    assert kinds[0] == "role"
    assert kinds[-1] == "end"
    order = list(dict.fromkeys(kinds))
    assert order == ["role", "reasoning", "tool_calls", "end"], "what is thought comes before what is called"
    first, *more = [delta["tool_calls"][0] for delta in deltas if "tool_calls" in delta]
    assert set(first) == {"index", "id", "type", "function"}
    assert all(set(part) == {"index", "function"} and set(part["function"]) == {"arguments"} for part in more)
    together: Any = put_together(chunks)
    assert together["finish_reason"] == "tool_calls"
    check_call(together["message"], name)
