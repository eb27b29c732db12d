"""OpenAI's Python SDK, as it is, against the application in process: HTTP, streams, the WebSocket."""

import json
from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.kit.laws import assert_laws
from tests.kit.oracle import validate_event, validate_response
from tests.kit.pictures import data_url, picture
from tests.kit.sdk import MODEL, TWO_CALLS, WEATHER, AsyncChat, Chat, run_tools, server_sent
from tests.wire.conformance.frames import validate_frame


def number_of_user_messages(text: str) -> int:
    """Read how many user messages the demo engine saw."""
    return int(text.rpartition("This is user message ")[2].split()[0])


# HTTP.


def test_create_returns_a_response(client: OpenAI) -> None:
    raw = client.responses.with_raw_response.create(model=MODEL, input="Hello", metadata={"a": "b"}, user="u")
    validate_response(json.loads(raw.text))
    response = raw.parse()
    assert response.status == "completed"
    assert number_of_user_messages(response.output_text) == 1
    assert [item.type for item in response.output] == ["reasoning", "message"]
    assert (response.metadata, response.user) == ({"a": "b"}, "u")
    assert raw.headers["x-request-id"] == response._request_id


@pytest.mark.parametrize("input", ["count to 5", TWO_CALLS], ids=["text", "call"])
def test_a_stream_is_valid_event_by_event(client: OpenAI, input: str) -> None:
    with client.responses.with_streaming_response.create(
        model=MODEL, input=input, tools=[WEATHER], stream=True
    ) as streamed:
        assert streamed.headers["content-type"].startswith("text/event-stream")
        events = server_sent(list(streamed.iter_lines()))
    for event in events:
        validate_event(event)
    assert_laws(events)


def test_the_stream_helper_sums_the_events(client: OpenAI) -> None:
    with client.responses.stream(model=MODEL, input="count to 7", tools=[WEATHER]) as stream:
        said = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert said == final.output_text == "1 2 3 4 5 6 7"


def test_a_tool_loop_of_two_calls(client: OpenAI) -> None:
    response = client.responses.create(model=MODEL, input=TWO_CALLS, tools=[WEATHER])
    cities = []
    while outputs := run_tools(response):
        cities += [output["output"].split()[-1] for output in outputs]
        response = client.responses.create(
            model=MODEL, input=outputs, tools=[WEATHER], previous_response_id=response.id
        )
    assert cities == ["Paris", "Rome"]
    assert "18 °C in Paris" in response.output_text
    assert "18 °C in Rome" in response.output_text


# WebSocket.


def test_an_image_is_seen_in_responses_and_in_chats(client: OpenAI) -> None:
    url, says = data_url(picture("#00ff00", (12, 8))), "Image 1: PNG, 12 × 8, mostly #00ff00."
    content: Any = [{"type": "input_text", "text": "describe"}, {"type": "input_image", "image_url": url}]
    response = client.responses.create(model=MODEL, input=[{"role": "user", "content": content}])
    assert response.output_text == says
    assert client.responses.create(model=MODEL, input="describe", previous_response_id=response.id).output_text == says
    parts: Any = [{"type": "text", "text": "describe"}, {"type": "image_url", "image_url": {"url": url}}]
    said = client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": parts}])
    assert said.choices[0].message.content == says


def test_the_sdk_iterates_over_a_socket(client: OpenAI) -> None:
    with client.responses.connect() as connection:
        connection.response.create(model=MODEL, input="count to 4")
        text = ""
        for event in connection:
            if event.type == "response.output_text.delta":
                text += event.delta
            if event.type == "response.completed":
                break
    assert text == event.response.output_text == "1 2 3 4"


def test_the_sdk_dispatches_events_and_raises_errors(client: OpenAI) -> None:
    seen: list[str] = []
    with client.responses.connect() as connection:
        connection.on("response.created", lambda event: seen.append(event.type))
        connection.on("response.completed", lambda _: connection.response.create(model="nonsense", input="x"))
        connection.response.create(model=MODEL, input="Hello")
        with pytest.raises(openai.OpenAIError, match="model_not_found"):
            connection.dispatch_events()
    assert seen == ["response.created"]


def test_twenty_turns_on_one_socket(chat: Chat) -> None:
    for turn in range(1, 21):
        response = chat.ask(f"Turn {turn}", store=turn % 2 == 0)
        assert number_of_user_messages(response.output_text) == turn


# Errors.

REFUSALS = {
    "unknown model": ({"model": "gpt-9"}, openai.NotFoundError, "model_not_found", "model"),
    "a wrong part": (
        {"input": [{"role": "user", "content": [{"type": "input_text"}]}]},
        openai.BadRequestError,
        "missing_required_parameter",
        "input[0].content[0].text",
    ),
}
Refusal = tuple[dict[str, object], type[openai.APIStatusError], str | None, str]
each_refusal = pytest.mark.parametrize("refusal", REFUSALS.values(), ids=REFUSALS)


@each_refusal
@pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
def test_http_errors_are_the_sdks_exceptions(client: OpenAI, refusal: Refusal, *, stream: bool) -> None:
    fields, exception, code, param = refusal
    with pytest.raises(exception) as raised:
        client.responses.create(**{"model": MODEL, "input": "Hello", "stream": stream, **fields})  # type: ignore[call-overload]
    error = raised.value
    assert (error.param, error.type) == (param, "invalid_request_error")
    assert error.code == code or code is None
    assert set(error.body) == {"message", "type", "param", "code"}  # type: ignore[call-overload]
    assert error.request_id


async def test_steering_is_refused_in_the_sdks_form(async_chat: AsyncChat) -> None:
    response = await async_chat.ask("Hello")
    await async_chat.connection.response.steer(previous_response_id=response.id, input="Stop")
    frame = json.loads(await async_chat.connection.recv_bytes())
    validate_frame(frame)
    assert frame["error"]["code"] == "response_already_completed"
    assert frame["steer"] == {"previous_response_id": response.id, "input": "Stop"}
