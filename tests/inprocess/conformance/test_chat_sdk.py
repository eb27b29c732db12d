"""OpenAI's Python SDK, as it is, against `/v1/chat/completions`: streamed and not, tools, choices, stops, errors."""

import json
from collections.abc import Iterable
from typing import Any

import openai
import pydantic
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from tests.kit.chats import put_together, sent
from tests.kit.sdk import MODEL, TWO_CALLS, WEATHER

TOOL: Any = {"type": "function", "function": {name: value for name, value in WEATHER.items() if name != "type"}}
HELLO: Any = [{"role": "user", "content": "Hello"}]


def asked(text: str) -> Any:
    """Return the messages of a chat that begins."""
    return [{"role": "user", "content": text}]


def outputs(calls: Iterable[Any]) -> list[Any]:
    """Return what came of calls."""
    return [
        {
            "role": "tool",
            "tool_call_id": call.id,
            "content": f"18 °C in {json.loads(call.function.arguments)['city']}",
        }
        for call in calls
    ]


def test_a_completion_is_valid(client: OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model=MODEL,
        messages=[{"role": "system", "content": "Be brief."}, *HELLO],
        user="u",
        seed=1,
        metadata={"a": "b"},
    )
    ChatCompletion.model_validate(json.loads(raw.text), strict=True)
    completion = raw.parse()
    [choice] = completion.choices
    assert "You said" in str(choice.message.content)
    assert choice.finish_reason == "stop"
    assert choice.message.reasoning == choice.message.reasoning_content != ""  # type: ignore[attr-defined]
    assert completion.id.startswith("chatcmpl-")
    assert str(completion.system_fingerprint).startswith("fp_")
    assert completion.usage is not None
    assert completion.usage.completion_tokens_details is not None
    assert completion.usage.completion_tokens_details.reasoning_tokens
    assert completion.usage.prompt_tokens_details is not None
    assert completion.usage.prompt_tokens_details.cached_tokens is not None
    assert raw.headers["x-request-id"] == completion._request_id


@pytest.mark.parametrize("text", ["count to 5", TWO_CALLS])
def test_a_stream_is_the_completion_in_chunks(client: OpenAI, text: str) -> None:
    fields: Any = {"model": MODEL, "messages": asked(text), "tools": [TOOL]}
    whole = client.chat.completions.create(**fields)
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
    assert whole.usage is not None
    assert last["usage"]["total_tokens"] == whole.usage.total_tokens
    together: Any = put_together(parts)
    assert (together["message"]["content"] or None) == whole.choices[0].message.content
    assert together["finish_reason"] == whole.choices[0].finish_reason
    called = [call["function"] for call in together["message"].get("tool_calls", ())]
    assert called == [call.function.model_dump() for call in whole.choices[0].message.tool_calls or ()]  # type: ignore[union-attr]


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


def test_what_the_model_thought_in_a_tool_loop_is_not_lost(client: OpenAI) -> None:
    """The prompt behind a call has all tokens of the prompt before it, and all that was sampled."""
    messages = asked("call get_weather for Paris")
    first = client.chat.completions.create(model=MODEL, messages=messages, tools=[TOOL])
    said = first.choices[0].message.model_dump(include={"role", "tool_calls"}, exclude_none=True)
    assert "reasoning" not in said
    done = [*messages, said, *outputs(first.choices[0].message.tool_calls or ())]
    second = client.chat.completions.create(model=MODEL, messages=done, tools=[TOOL])
    assert first.usage is not None
    assert second.usage is not None
    assert second.usage.prompt_tokens > first.usage.total_tokens
    unknown = json.loads(json.dumps(done).replace(said["tool_calls"][0]["id"], "call_of_another_server"))
    rendered = client.chat.completions.create(model=MODEL, messages=unknown, tools=[TOOL])
    assert rendered.usage is not None
    assert second.usage.prompt_tokens - rendered.usage.prompt_tokens > 10, "the thoughts"


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
    whole = client.chat.completions.create(model=MODEL, messages=asked("count to 5"), n=3)
    assert [(choice.index, choice.message.content) for choice in whole.choices] == [(n, "1 2 3 4 5") for n in range(3)]
    alone = client.chat.completions.create(model=MODEL, messages=asked("count to 5"))
    assert whole.usage is not None
    assert alone.usage is not None
    assert whole.usage.prompt_tokens == alone.usage.prompt_tokens
    assert whole.usage.completion_tokens == 3 * alone.usage.completion_tokens
    chunks = [
        chunk.model_dump(exclude_unset=True)
        for chunk in client.chat.completions.create(model=MODEL, messages=asked("count to 5"), n=3, stream=True)
    ]
    for index in range(3):
        assert put_together(chunks, index)["message"]["content"] == "1 2 3 4 5"  # type: ignore[index]


def test_a_stop_string_ends_the_answer_before_it(client: OpenAI) -> None:
    fields: Any = {"model": MODEL, "messages": asked("count to 300"), "stop": ["7 8", "never"]}
    whole = client.chat.completions.create(**fields)
    assert whole.choices[0].message.content == "1 2 3 4 5 6 "
    assert whole.choices[0].finish_reason == "stop"
    assert whole.choices[0].stop_reason == "7 8"  # type: ignore[attr-defined]
    assert whole.usage is not None
    assert whole.usage.completion_tokens < 200, "it was not generated to its end"
    together: Any = put_together(
        [c.model_dump(exclude_unset=True) for c in client.chat.completions.create(**fields, stream=True)]
    )
    assert (together["message"]["content"], together["stop_reason"]) == ("1 2 3 4 5 6 ", "7 8")


def test_a_completion_of_full_length(client: OpenAI) -> None:
    for field in ("max_tokens", "max_completion_tokens"):
        fields: Any = {field: 30}
        choice = client.chat.completions.create(model=MODEL, messages=asked("count to 500"), **fields)
        assert choice.choices[0].finish_reason == "length"
        assert choice.usage is not None
        assert choice.usage.completion_tokens == 30


@pytest.mark.parametrize("stream", [True, False])
def test_errors_have_their_status(client: OpenAI, stream: bool) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="nothing", messages=HELLO, stream=stream)
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as unanswered:
        client.chat.completions.create(
            model=MODEL, messages=[*HELLO, {"role": "tool", "tool_call_id": "c", "content": "1"}], stream=stream
        )
    assert unanswered.value.param == "messages"
    assert "previous_response_id" not in unanswered.value.message
    called = {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{}"}}]}
    with pytest.raises(openai.BadRequestError, match="Send it as a message of the role 'tool'"):
        client.chat.completions.create(model=MODEL, messages=[*HELLO, called, *HELLO], stream=stream)
