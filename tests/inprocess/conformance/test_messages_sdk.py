"""Anthropic's Python SDK, as it is, against `/v1/messages`: streamed and not, tools, thoughts, images, errors."""

from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import pytest
from anthropic import Anthropic, beta_tool
from openai import OpenAI

from tests.kit.inprocess import Server
from tests.kit.messages import put_together, sent
from tests.kit.sdk import MODEL, TWO_CALLS

TOOL: Any = {
    "name": "forecast",
    "description": "Tells the weather.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
THINKING: Any = {"type": "enabled", "budget_tokens": 1024}
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


@pytest.fixture
def claude(demo_server: Server) -> Iterator[Anthropic]:
    """An unmodified SDK."""
    with Anthropic(base_url=demo_server.url, api_key="none", max_retries=0) as client:
        yield client


DESCRIBE: Any = {"type": "text", "text": "describe"}


def user(content: Any) -> Any:
    """Return a message of the user."""
    return {"role": "user", "content": content}


def test_a_message_is_valid(claude: Anthropic) -> None:
    raw = claude.messages.with_raw_response.create(
        model=MODEL,
        max_tokens=200,
        system=[{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        messages=[user("count to 5")],
        metadata={"user_id": "u"},
        service_tier="auto",
        extra_body={"temperature": 0.5, "top_k": 5},  # the SDK does not know them any more
    )
    assert raw.headers["request-id"] == raw.headers["x-request-id"]
    message = raw.parse()
    [block] = message.content
    assert block.type == "text"
    assert block.text == "1 2 3 4 5"
    assert (message.stop_reason, message.role, message.model) == ("end_turn", "assistant", MODEL)
    assert message.id.startswith("msg_")
    assert message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0) > 10
    assert message.usage.output_tokens > 5
    assert "respsite-ignored" not in raw.headers


@pytest.mark.parametrize("text", ["count to 5", TWO_CALLS])
@pytest.mark.parametrize("thinking", [THINKING, {"type": "disabled"}])
def test_a_stream_is_the_message_in_events(claude: Anthropic, text: str, thinking: Any) -> None:
    fields: Any = {"model": MODEL, "messages": [user(text)], "tools": [TOOL], "max_tokens": 2000, "thinking": thinking}
    whole = claude.messages.create(**fields)
    with claude.messages.with_streaming_response.create(**fields, stream=True) as streamed:
        assert streamed.headers["content-type"].startswith("text/event-stream")
        body = streamed.read()
    together = put_together(sent(body))
    shown = [block.model_dump(exclude_none=True) for block in whole.content]
    for block in (*shown, *together["content"]):
        block.pop("signature", None)
        block.pop("id", None)
    assert together["content"] == shown
    assert together["stop_reason"] == whole.stop_reason
    assert together["usage"]["output_tokens"] == whole.usage.output_tokens
    assert ("thinking" in {block["type"] for block in shown}) is (thinking is THINKING)
    with claude.messages.stream(**fields) as stream:
        final = stream.get_final_message()
    assert [block.type for block in final.content] == [block["type"] for block in shown]


def test_tools_are_called_and_go_on(claude: Anthropic) -> None:
    messages: list[Any] = [user("What is the weather in Paris? Call forecast.")]
    fields: Any = {"model": MODEL, "max_tokens": 2000, "tools": [TOOL], "thinking": THINKING}
    first = claude.messages.create(messages=messages, tool_choice={"type": "any"}, **fields)
    assert first.stop_reason == "tool_use"
    calls = [block for block in first.content if block.type == "tool_use"]
    assert [call.name for call in calls] == ["forecast"]
    results = [
        {
            "type": "tool_result",
            "tool_use_id": call.id,
            "content": [
                {"type": "text", "text": "rain"},
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}},
            ],
        }
        for call in calls
    ]
    messages += [{"role": "assistant", "content": first.content}, user(results)]
    second = claude.messages.create(messages=messages, **fields)
    assert second.stop_reason == "end_turn"
    assert "rain" in "".join(block.text for block in second.content if block.type == "text")
    used, before = second.usage, first.usage
    assert used.input_tokens + (used.cache_read_input_tokens or 0) > before.input_tokens


def test_the_tool_runner_goes_on_without_a_thread(claude: Anthropic) -> None:
    @beta_tool
    def forecast(city: str) -> str:
        """Tells the weather.

        Args:
            city: The name of the city.
        """
        return f"rain in {city}"

    asked = [user("call forecast for Paris")]
    last = claude.beta.messages.tool_runner(model=MODEL, max_tokens=2000, tools=[forecast], messages=asked).until_done()
    assert "rain in Paris" in str(last.content[-1])
    with pytest.raises(anthropic.BadRequestError) as refused:
        claude.beta.messages.create(model=MODEL, max_tokens=10, messages=asked, thread={"type": "create"})
    assert refused.value.body["error"]["details"]["error_code"] == "thread_unsupported_request"  # type: ignore[index]


def test_a_named_tool_is_called_and_none_is_not(claude: Anthropic) -> None:
    fields: Any = {"model": MODEL, "max_tokens": 2000, "tools": [TOOL], "messages": [user("Hello")]}
    named = claude.messages.create(tool_choice={"type": "tool", "name": "forecast"}, **fields)
    assert [block.type for block in named.content] == ["tool_use"]
    none = claude.messages.create(tool_choice={"type": "none"}, **fields)
    assert [block.type for block in none.content] == ["text"]


def test_a_stop_sequence_ends_a_message_and_is_named(claude: Anthropic) -> None:
    fields: Any = {"model": MODEL, "max_tokens": 200, "messages": [user("count to 9")], "stop_sequences": ["x", " 4"]}
    whole = claude.messages.create(**fields)
    assert (whole.stop_reason, whole.stop_sequence) == ("stop_sequence", " 4")
    assert [block.text for block in whole.content if block.type == "text"] == ["1 2 3"]
    with claude.messages.stream(**fields) as stream:
        assert stream.get_final_text() == "1 2 3"
        assert stream.get_final_message().stop_sequence == " 4"


def test_a_message_ends_at_its_length(claude: Anthropic) -> None:
    message = claude.messages.create(model=MODEL, max_tokens=1, messages=[user("count to 9")])
    assert message.stop_reason == "max_tokens"


def test_an_answer_is_held_to_a_schema(claude: Anthropic) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    }
    message = claude.messages.create(
        model=MODEL,
        max_tokens=500,
        messages=[user("Where in Paris?")],
        output_config={"format": {"type": "json_schema", "schema": schema}},
    )
    assert '"city"' in "".join(block.text for block in message.content if block.type == "text")


def test_tokens_are_counted(claude: Anthropic) -> None:
    fields: Any = {"model": MODEL, "system": "Be brief.", "messages": [user("count to 5")], "tools": [TOOL]}
    counted = claude.messages.count_tokens(**fields).input_tokens
    used = claude.messages.create(max_tokens=50, **fields).usage
    assert counted == used.input_tokens + (used.cache_read_input_tokens or 0)


def test_images_and_documents_are_taken(claude: Anthropic) -> None:
    content: Any = [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}},
        {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "The sky."}, "title": "T"},
        {"type": "text", "text": "count to 2"},
    ]
    message = claude.messages.create(model=MODEL, max_tokens=500, messages=[user(content)])
    assert message.stop_reason == "end_turn"
    seen = claude.messages.create(model=MODEL, max_tokens=500, messages=[user([content[0], DESCRIBE])])
    assert [block.text for block in seen.content if block.type == "text"] == ["Image 1: PNG, 1 × 1, mostly #00ff00."]
    counted = claude.messages.count_tokens(model=MODEL, messages=[user([content[0], DESCRIBE])])
    assert 0 < counted.input_tokens <= seen.usage.input_tokens + (seen.usage.cache_read_input_tokens or 0)


def test_models_are_anthropics(claude: Anthropic, client: OpenAI) -> None:
    models = [model.id for model in claude.models.list(limit=1)]
    assert models == [MODEL]
    one = claude.models.retrieve(MODEL)
    assert (one.type, one.display_name, one.lifecycle) == ("model", MODEL, "active")
    assert one.created_at.tzinfo is not None
    assert client.models.retrieve(MODEL).object == "model"
    with pytest.raises(anthropic.NotFoundError) as refused:
        claude.models.retrieve("nobody")
    assert refused.value.body["error"]["type"] == "not_found_error"  # type: ignore[index]


CALL = {"type": "tool_use", "id": "call_1", "name": "forecast", "input": {}}
_BAD: list[tuple[Any, str]] = [
    ({"messages": [user("a"), {"role": "assistant", "content": "b"}]}, "must end with a message of the user"),
    ({"messages": [user("a"), {"role": "assistant", "content": [CALL]}, user("b")]}, "Send a 'tool_result' for it"),
    (
        {
            "messages": [
                user("a"),
                {"role": "assistant", "content": [{"type": "thinking", "thinking": "t", "signature": "forged"}]},
                user("b"),
            ]
        },
        "'messages[1].content[0].signature'",
    ),
    (
        {
            "messages": [
                user("a"),
                {"role": "assistant", "content": [{"type": "redacted_thinking", "data": "forged"}]},
                user("b"),
            ]
        },
        "'messages[1].content[0].data'",
    ),
    ({"tools": [{"type": "web_search_20250305", "name": "search"}]}, "'tools[0].name'"),
    ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "nobody"}}, "nobody"),
    ({"mcp_servers": [{"type": "url", "url": "https://a.example", "name": "python"}]}, "'mcp_servers[0].name'"),
    ({"max_token": 3}, "Did you mean 'max_tokens'?"),
    (
        {"messages": [user([{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "#"}}])]},
        "'messages[0].content[0].source'",
    ),
]


@pytest.mark.parametrize(("fields", "named"), _BAD)
def test_what_is_wrong_is_named(demo_server: Server, fields: Any, named: str) -> None:
    body = {"model": MODEL, "max_tokens": 10, "messages": [user("hi")], **fields}
    headers = {"anthropic-version": "2023-06-01"}
    answer = httpx.post(f"{demo_server.url}/v1/messages", json=body, headers=headers)
    told = answer.json()
    assert (answer.status_code, told["type"], told["error"]["type"]) == (400, "error", "invalid_request_error")
    assert named in told["error"]["message"]
    assert told["request_id"] == answer.headers["request-id"]


@pytest.mark.parametrize(
    ("headers", "named"), [({}, "header is required"), ({"anthropic-version": "new"}, "'new' is not a valid version")]
)
def test_the_version_has_to_be_told(demo_server: Server, headers: dict[str, str], named: str) -> None:
    body = {"model": MODEL, "max_tokens": 10, "messages": [user("hi")]}
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        answer = httpx.post(demo_server.url + path, json=body, headers=headers)
        assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")
        assert f"anthropic-version: {named}" in answer.json()["error"]["message"]


def test_errors_are_anthropics_wherever_they_arise(claude: Anthropic, demo_server: Server) -> None:
    with pytest.raises(anthropic.NotFoundError) as unknown:
        claude.messages.create(model="nobody", max_tokens=10, messages=[user("hi")])
    assert unknown.value.type == "not_found_error"
    with pytest.raises(anthropic.BadRequestError) as long:
        claude.messages.create(model=MODEL, max_tokens=10, messages=[user("word " * 200_000)])
    assert "exceeds the context window" in str(long.value)
    assert "Send fewer or shorter messages." in str(long.value)
    lost = httpx.post(f"{demo_server.url}/v1/messages/nothing", json={})
    assert (lost.status_code, lost.json()["error"]["type"]) == (404, "not_found_error")
    lost = httpx.get(f"{demo_server.url}/v1/messages")
    assert (lost.status_code, lost.json()["error"]["type"]) == (405, "invalid_request_error")
    lost = httpx.post(f"{demo_server.url}/v1/messages", content=b"x" * 300_000)
    assert (lost.status_code, lost.json()["type"]) == (415, "error")


def test_fields_that_have_no_effect_are_named(demo_server: Server) -> None:
    headers = {"anthropic-version": "2023-06-01", "anthropic-beta": "context-management-2025-06-27,unknown-1"}
    body = {
        "model": MODEL,
        "max_tokens": 10,
        "messages": [user("hi")],
        "context_management": {"edits": []},
        "something_new": 1,
    }
    answer = httpx.post(f"{demo_server.url}/v1/messages?beta=true", json=body, headers=headers)
    assert answer.status_code == 200
    assert answer.headers["respsite-ignored"] == "context_management, something_new"
