"""OpenAI's Python SDK, as it is, against `/v1/chat/completions`: streamed, tools, stored, and what gpt-oss asks for."""

import json
from collections.abc import Iterable
from functools import partial
from typing import Any
from uuid import uuid4

import openai
import pydantic
import pytest
from jsonschema import Draft202012Validator
from openai import AsyncOpenAI, OpenAI
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from tests.kit.chats import put_together, sent
from tests.kit.pictures import data_url, picture
from tests.kit.sdk import MODEL, TWO_CALLS, WEATHER, refusal

TOOL: Any = {"type": "function", "function": {name: value for name, value in WEATHER.items() if name != "type"}}
HELLO: Any = [{"role": "user", "content": "Hello"}]


def asked(text: str) -> Any:
    """Return the messages of a chat that begins."""
    return [{"role": "user", "content": text}]


def outputs(calls: Iterable[Any]) -> list[Any]:
    """Return what came of calls."""
    said = ((call.id, json.loads(call.function.arguments)["city"]) for call in calls)
    return [{"role": "tool", "tool_call_id": call_id, "content": f"18 °C in {city}"} for call_id, city in said]


def test_a_completion_is_valid(client: OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model=MODEL,
        messages=[{"role": "system", "content": "Be brief."}, *HELLO],
        user="u",
        seed=1,
        metadata={"a": "b"},
    )
    ChatCompletion.model_validate(json.loads(raw.text), strict=True)
    completion: Any = raw.parse()
    [choice] = completion.choices
    assert "You said" in str(choice.message.content)
    assert choice.finish_reason == "stop"
    assert choice.message.reasoning == choice.message.reasoning_content != ""
    assert completion.id.startswith("chatcmpl-")
    assert str(completion.system_fingerprint).startswith("fp_")
    assert completion.usage.completion_tokens_details.reasoning_tokens
    assert completion.usage.prompt_tokens_details.cached_tokens is not None
    assert raw.headers["x-request-id"] == completion._request_id


@pytest.mark.parametrize("text", ["count to 5", TWO_CALLS])
def test_a_stream_is_the_completion_in_chunks(client: OpenAI, text: str) -> None:
    fields: Any = {"model": MODEL, "messages": asked(text), "tools": [TOOL]}
    whole: Any = client.chat.completions.create(**fields)
    stream: Any = {"stream": True, "stream_options": {"include_usage": True}}
    with client.chat.completions.with_streaming_response.create(**fields, **stream) as streamed:
        assert streamed.headers["content-type"].startswith("text/event-stream")
        body = streamed.read()
    assert body.endswith(b"data: [DONE]\n\n")
    chunks = sent(body)
    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk, strict=True)
    assert len({chunk["id"] for chunk in chunks}) == 1
    *parts, last = chunks
    assert all(chunk["usage"] is None for chunk in parts)
    assert last["choices"] == []
    assert last["usage"]["total_tokens"] == whole.usage.total_tokens
    together: Any = put_together(parts)
    assert (together["message"]["content"] or None) == whole.choices[0].message.content
    assert together["finish_reason"] == whole.choices[0].finish_reason
    called = [call["function"] for call in together["message"].get("tool_calls", ())]
    assert called == [call.function.model_dump() for call in whole.choices[0].message.tool_calls or ()]


def test_a_stream_without_usage_has_none(client: OpenAI) -> None:
    chunks = list(client.chat.completions.create(model=MODEL, messages=HELLO, stream=True))
    assert all("usage" not in chunk.model_fields_set for chunk in chunks)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].choices[0].finish_reason == "stop"


async def test_the_stream_helper_sums_the_chunks(async_client: AsyncOpenAI) -> None:
    async with async_client.chat.completions.stream(model=MODEL, messages=asked("count to 7")) as stream:
        texts = [event.delta async for event in stream if event.type == "content.delta"]
        final = await stream.get_final_completion()
    assert "".join(texts) == final.choices[0].message.content == "1 2 3 4 5 6 7"


def test_a_tool_loop(client: OpenAI) -> None:
    """As clients do it: the assistant's message comes back without its thoughts."""
    messages = asked(TWO_CALLS)
    for _ in range(4):
        message = client.chat.completions.create(model=MODEL, messages=messages, tools=[TOOL]).choices[0].message
        messages.append(message.model_dump(include={"role", "content", "tool_calls"}, exclude_none=True))
        if not message.tool_calls:
            break
        messages += outputs(message.tool_calls)
    assert "18 °C in Paris" in str(message.content)
    assert "18 °C in Rome" in str(message.content)


def test_a_call_can_be_demanded_and_forbidden(client: OpenAI) -> None:
    fields: Any = {"model": MODEL, "messages": HELLO, "tools": [TOOL]}
    for choice in ("required", {"type": "function", "function": {"name": "get_weather"}}):
        called = client.chat.completions.create(**fields, tool_choice=choice).choices[0]  # type: ignore[arg-type]
        assert called.finish_reason == "tool_calls"
        assert called.message.content is None
    assert client.chat.completions.create(**fields, tool_choice="none").choices[0].message.tool_calls is None


class City(pydantic.BaseModel):
    """A city."""

    name: str
    inhabitants: int


def test_an_answer_fits_its_schema(client: OpenAI) -> None:
    parsed = client.chat.completions.parse(model=MODEL, messages=HELLO, response_format=City)
    assert isinstance(parsed.choices[0].message.parsed, City)
    some = client.chat.completions.create(model=MODEL, messages=HELLO, response_format={"type": "json_object"})
    assert isinstance(json.loads(str(some.choices[0].message.content)), dict)


def test_choices_beside_each_other(client: OpenAI) -> None:
    whole: Any = client.chat.completions.create(model=MODEL, messages=asked("count to 5"), n=3)
    assert [(choice.index, choice.message.content) for choice in whole.choices] == [(n, "1 2 3 4 5") for n in range(3)]
    alone: Any = client.chat.completions.create(model=MODEL, messages=asked("count to 5"))
    assert whole.usage.prompt_tokens == alone.usage.prompt_tokens
    assert whole.usage.completion_tokens == 3 * alone.usage.completion_tokens
    stream = client.chat.completions.create(model=MODEL, messages=asked("count to 5"), n=3, stream=True)
    chunks = [chunk.model_dump(exclude_unset=True) for chunk in stream]
    for index in range(3):
        assert put_together(chunks, index)["message"]["content"] == "1 2 3 4 5"  # type: ignore[index]


def test_a_stop_string_ends_the_answer_before_it(client: OpenAI) -> None:
    fields: Any = {"model": MODEL, "messages": asked("count to 300"), "stop": ["7 8", "never"]}
    whole: Any = client.chat.completions.create(**fields)
    assert whole.choices[0].message.content == "1 2 3 4 5 6 "
    assert whole.choices[0].finish_reason == "stop"
    assert whole.choices[0].stop_reason == "7 8"
    assert whole.usage.completion_tokens < 200, "it was not generated to its end"
    together: Any = put_together(
        [c.model_dump(exclude_unset=True) for c in client.chat.completions.create(**fields, stream=True)]
    )
    assert (together["message"]["content"], together["stop_reason"]) == ("1 2 3 4 5 6 ", "7 8")


def test_a_completion_of_full_length(client: OpenAI) -> None:
    for field in ("max_tokens", "max_completion_tokens"):
        fields: Any = {field: 30}
        choice: Any = client.chat.completions.create(model=MODEL, messages=asked("count to 500"), **fields)
        assert choice.choices[0].finish_reason == "length"
        assert choice.usage.completion_tokens == 30


@pytest.mark.parametrize("stream", [True, False])
def test_errors_have_their_status(client: OpenAI, stream: bool) -> None:
    create = partial(client.chat.completions.create, model=MODEL, stream=stream)
    assert refusal(openai.NotFoundError, create, model="nothing", messages=HELLO).code == "model_not_found"
    output = {"role": "tool", "tool_call_id": "c", "content": "1"}
    unanswered = refusal(openai.BadRequestError, create, messages=[*HELLO, output])
    assert unanswered.param == "messages"
    assert "previous_response_id" not in unanswered.message
    called = {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{}"}}]}
    says = "Send it as a message of the role 'tool'"
    refusal(openai.BadRequestError, create, messages=[*HELLO, called, *HELLO], match=says)


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


def asked_to_call(name: str, *, strict: bool) -> dict[str, Any]:
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
    body = asked_to_call(name, strict=True)
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


STORED: Any = {"model": MODEL, "store": True}


def as_said(completion: ChatCompletion) -> dict[str, Any]:
    """Return a completion as it was sent, without its metadata, which only stored ones have."""
    return completion.model_dump(exclude={"metadata"}, exclude_unset=True)


def ids(found: Iterable[Any]) -> list[str]:
    """Return the ids of what was found."""
    return [each.id for each in found]


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": asked(TWO_CALLS), "tools": [TOOL], "n": 2},
        {"messages": asked("count to 9"), "stop": ["5"], "extra_body": {"include_reasoning": False}},
        {
            "messages": asked("call get_weather for Paris"),
            "functions": [TOOL["function"]],
            "function_call": {"name": "get_weather"},
        },
    ],
    ids=["two choices with calls", "a stop string", "the older form"],
)
def test_a_completion_comes_back_as_it_was_said(client: OpenAI, fields: Any) -> None:
    said = client.chat.completions.create(**STORED, **fields)
    kept = client.chat.completions.retrieve(said.id)
    assert as_said(kept) == as_said(said)
    assert kept.metadata == {}


def test_a_stream_is_stored_too(client: OpenAI) -> None:
    stream = client.chat.completions.create(**STORED, messages=asked("count to 3"), stream=True)
    chunks = list(stream)
    kept = client.chat.completions.retrieve(chunks[0].id)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert kept.choices[0].message.content == text
    assert kept.system_fingerprint == chunks[0].system_fingerprint


@pytest.mark.each_database
async def test_lists_metadata_and_deleting(async_client: AsyncOpenAI) -> None:
    completions, mark = async_client.chat.completions, uuid4().hex
    said = [
        await completions.create(**STORED, messages=asked("count to 1"), metadata={"mark": mark, "n": str(number)})
        for number in range(3)
    ]
    made = ids(said)
    assert ids([each async for each in completions.list(metadata={"mark": mark}, limit=1)]) == made
    assert ids([each async for each in completions.list(metadata={"mark": mark}, limit=2, order="desc")]) == made[::-1]
    assert ids((await completions.list(metadata={"mark": mark}, after=made[0], model=MODEL)).data) == made[1:]
    assert (await completions.list(metadata={"mark": mark}, model="another")).data == []
    assert (await completions.list(metadata={"mark": mark, "n": "1"})).data[0].metadata == {"mark": mark, "n": "1"}
    changed = await completions.update(made[1], metadata={"mark": mark, "n": "new"})
    assert changed.metadata == {"mark": mark, "n": "new"}
    assert as_said(changed) == as_said(said[1])
    assert ids((await completions.list(metadata={"n": "new", "mark": mark})).data) == [made[1]]
    deleted = await completions.delete(made[0])
    assert (deleted.id, deleted.deleted, deleted.object) == (made[0], True, "chat.completion.deleted")
    assert ids((await completions.list(metadata={"mark": mark})).data) == made[1:]
    with pytest.raises(openai.NotFoundError):
        await completions.retrieve(made[0])
    with pytest.raises(openai.NotFoundError):
        await async_client.responses.retrieve(made[0].replace("chatcmpl-", "resp_"))
    with pytest.raises(openai.NotFoundError):
        await completions.delete(made[0])
    assert ids((await completions.list(metadata={"mark": mark}, after=made[0])).data) == made[1:], "it is still a place"


@pytest.mark.each_database
def test_the_messages_come_back_as_they_were_sent(client: OpenAI) -> None:
    parts = [{"type": "text", "text": "Look"}, {"type": "image_url", "image_url": {"url": data_url(picture())}}]
    call = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}
    messages: Any = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": parts, "name": "ann"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "18"},
    ]
    said = client.chat.completions.create(**STORED, messages=messages, tools=[TOOL])
    kept = list(client.chat.completions.messages.list(said.id, limit=1))
    assert ids(kept) == [f"{said.id}-{place}" for place in range(4)]
    assert [each.content for each in kept] == ["Be brief.", "Look", None, "18"]
    assert kept[1].content_parts is not None
    assert [part.model_dump(exclude_unset=True) for part in kept[1].content_parts] == parts
    assert kept[0].content_parts is None
    assert kept[2].tool_calls is not None
    assert kept[2].tool_calls[0].model_dump(exclude_unset=True) == call
    last = client.chat.completions.messages.list(said.id, order="desc", after=kept[2].id)
    assert ids(last.data) == [kept[1].id, kept[0].id]


def test_what_is_not_to_be_stored_is_not(client: OpenAI) -> None:
    for fields in ({}, {"store": False}):
        said = client.chat.completions.create(model=MODEL, messages=asked("count to 1"), **fields)  # type: ignore[arg-type]
        refusal(openai.NotFoundError, client.chat.completions.retrieve, said.id, match="'store': true")
        refusal(openai.NotFoundError, client.chat.completions.messages.list, said.id)
    response = client.responses.create(model=MODEL, input="count to 1")
    for name in (response.id, response.id.replace("resp_", "chatcmpl-")):
        refusal(openai.NotFoundError, client.chat.completions.retrieve, name)
