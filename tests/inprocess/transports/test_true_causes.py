"""A refusal names the field as its client wrote it, all that it takes, and the unit in which something is too long."""

from typing import Any

import pytest

from tests.inprocess.transports.test_every_api import headers_of
from tests.kit.clients import http_client
from tests.kit.inprocess import Server

CHAT, RESPONSES, MESSAGES = "/chat/completions", "/responses", "/messages"
PARTS, BLOCKS = "a string or an array of content parts", "a string or an array of content blocks"


def user(content: object) -> list[Any]:
    """Return a message of the user."""
    return [{"role": "user", "content": content}]


def called(**function: object) -> list[Any]:
    """Return a message that calls a function."""
    return [
        {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", **function}}]}
    ]


@pytest.mark.parametrize(
    ("path", "fields", "words"),
    [
        (CHAT, {"messages": user(5)}, ("messages[0].content", PARTS, "an integer")),
        (CHAT, {"messages": user({"a": 1})}, ("messages[0].content", PARTS, "an object")),
        (CHAT, {"messages": [{"role": "tool", "tool_call_id": "c", "content": 5}]}, ("messages[0].content", PARTS)),
        (CHAT, {"messages": [{"role": "system", "content": True}]}, ("messages[0].content", PARTS, "a boolean")),
        (RESPONSES, {"input": user(5)}, ("input[0].content", PARTS, "an integer")),
        (RESPONSES, {"conversation": 5}, ("conversation", "a string or an object", "an integer")),
        (RESPONSES, {"stop": 5}, ("stop", "a string or an array of strings", "an integer")),
        (MESSAGES, {"messages": user(5)}, ("messages[0].content", BLOCKS, "an integer")),
        (MESSAGES, {"system": 5}, ("system", BLOCKS, "an integer")),
        (MESSAGES, {"container": 5}, ("container", "a string or an object", "an integer")),
        (
            MESSAGES,
            {"messages": user([{"type": "tool_result", "tool_use_id": "c", "content": 5}])},
            ("messages[0].content[0].content", BLOCKS),
        ),
        (CHAT, {"messages": called(arguments={})}, ("messages[0].tool_calls[0].function.arguments", "a string")),
        (CHAT, {"messages": called(name="x" * 300)}, ("messages[0].tool_calls[0].function.name", "256 characters")),
        (CHAT, {"functions": [{"name": 5}]}, ("functions[0].name", "a string", "an integer")),
        (CHAT, {"functions": [{"name": "f"}], "function_call": {"name": 5}}, ("function_call.name", "a string")),
        (CHAT, {"tools": [{"type": "function"}]}, ("tools[0].function", "Missing")),
        (RESPONSES, {"input": [{"type": "mcp_approval_response"}]}, ("input[0].approval_request_id", "Missing")),
        (RESPONSES, {"metadata": {"a": "x" * 600}}, ("metadata.a", "512 characters", "600")),
        (RESPONSES, {"metadata": {"x" * 65: "a"}}, ("metadata", "key", "65 characters", "64")),
        (RESPONSES, {"metadata": {str(n): "a" for n in range(17)}}, ("metadata", "16 pairs", "17")),
        ("/vector_stores", {"name": "x" * 257}, ("name", "256 characters", "257")),
        ("/webhook_endpoints", {"name": "x" * 257, "url": "https://a"}, ("name", "256 characters", "257")),
    ],
)
async def test_a_refusal_names_its_cause(
    demo_server: Server, path: str, fields: dict[str, Any], words: tuple[str, ...]
) -> None:
    param, *said = words
    usual: dict[str, Any] = {"input": "Hi"} if path == RESPONSES else {}
    if path in (CHAT, MESSAGES):
        usual = {"model": "demo", "messages": user("Hi"), **({"max_tokens": 10} if path == MESSAGES else {})}
    async with http_client(demo_server) as http:
        answer = await http.post(path, json={**usual, **fields}, headers=headers_of(path))
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert f"'{param}'" in error["message"], error
    assert [each for each in said if each not in error["message"]] == [], error
    if path != MESSAGES:  # whose errors have no such field
        assert error["param"] == param
