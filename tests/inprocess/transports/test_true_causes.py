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


F: dict[str, Any] = {"name": "f", "parameters": {"type": "object"}}
WRONG_SCHEMA = {"type": "json_schema", "name": "a", "schema": {"type": 5}, "strict": True}
WRONG_TEXT = {"format": WRONG_SCHEMA}
WRONG_FORM = {"type": "json_schema", "json_schema": {**WRONG_SCHEMA, "type": None}}
CUSTOM, ALLOWED = "tools[0].custom", "tool_choice.allowed_tools.tools"


def grammar(of: object) -> dict[str, Any]:
    """Return a custom tool of a chat, with this grammar."""
    form = {"type": "grammar", "grammar": of}
    return {"tools": [{"type": "custom", "custom": {"name": "g", "format": form}}]}


def chosen(choice: object) -> dict[str, Any]:
    """Return a choice among the tools of a chat."""
    return {"tools": [{"type": "function", "function": F}], "tool_choice": choice}


def strict(*functions: dict[str, Any]) -> dict[str, Any]:
    """Return functions of a chat whose arguments are held to their schemas."""
    return {"tools": [{"type": "function", "function": {**F, "strict": True, **each}} for each in functions]}


def flat(choice: object) -> dict[str, Any]:
    """Return a choice among the tools of a response."""
    return {"tools": [{"type": "function", **F}], "tool_choice": choice}


def allowed(tool: object) -> dict[str, Any]:
    """Return a choice of a chat that allows this tool."""
    return {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [tool]}}


def among(tool: object) -> dict[str, Any]:
    """Return a choice of a response that allows this tool."""
    return {"type": "allowed_tools", "mode": "auto", "tools": [tool]}


def thought(signature: object) -> list[Any]:
    """Return a conversation whose thought has this signature."""
    block = {"type": "thinking", "thinking": "Hm", "signature": signature}
    return [*user("Hi"), {"role": "assistant", "content": [block]}, *user("Go on.")]


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
        (CHAT, {"max_tokens": 0}, ("max_tokens", "1")),
        (CHAT, {"tools": [{"type": "function", "function": "f"}]}, ("tools[0].function", "an object", "a string")),
        (CHAT, grammar({"syntax": "perl"}), (f"{CUSTOM}.format.grammar.syntax", "'lark' or 'regex'")),
        (CHAT, grammar({"syntax": "regex", "definition": "("}), (f"{CUSTOM}.format.grammar.definition", "'('")),
        (CHAT, grammar(5), (f"{CUSTOM}.format.grammar", "an object", "an integer")),
        (CHAT, chosen({"type": "function"}), ("tool_choice.function", "Missing")),
        (CHAT, chosen({"type": "function", "function": 5}), ("tool_choice.function", "an object", "an integer")),
        (CHAT, chosen({"type": "function", "function": {}}), ("tool_choice.function.name", "Missing")),
        (CHAT, chosen(allowed({"type": "function"})), (f"{ALLOWED}[0].function", "Missing")),
        (CHAT, chosen(allowed({"type": "function", "function": {}})), (f"{ALLOWED}[0].function.name", "Missing")),
        (CHAT, chosen(allowed({"type": {}})), (f"{ALLOWED}[0].type", "a string", "an object")),
        (CHAT, {"functions": [F], "function_call": {}}, ("function_call.name", "Missing")),
        (CHAT, strict(F, {"name": "g", "parameters": {"type": 5}}), ("tools[1].function.parameters", "'type'")),
        (CHAT, strict(F, F), ("tools[1].function.name", "'tools[0]'")),
        (CHAT, grammar({"syntax": "lark", "definition": "((("}), (f"{CUSTOM}.format.grammar.definition", "Lark")),
        (CHAT, {"functions": [F], "function_call": {"name": "g"}}, ("function_call", "'g' is not in 'functions'")),
        (CHAT, chosen({"type": "function", "function": {"name": "input"}}), ("tool_choice", "The tool 'input'")),
        (MESSAGES, {"tool_choice": {"type": "any"}}, ("tool_choice", "'any'")),
        (CHAT, {**chosen("required"), "response_format": WRONG_FORM}, ("response_format.json_schema.schema", "'type'")),
        (RESPONSES, {**flat("required"), "text": WRONG_TEXT}, ("text.format.schema", "'type'")),
        (RESPONSES, flat({"type": "function"}), ("tool_choice.name", "Missing")),
        (RESPONSES, flat({"type": "odd"}), ("tool_choice.type", "'odd'")),
        (RESPONSES, flat(among({"type": "function"})), ("tool_choice.tools[0].name", "Missing")),
        (RESPONSES, flat(among({"type": []})), ("tool_choice.tools[0].type", "a string", "an array")),
        (RESPONSES, flat(among(5)), ("tool_choice.tools[0]", "an object", "an integer")),
        (MESSAGES, {"messages": thought(5)}, ("messages[1].content[0].signature", "a string", "an integer")),
        (MESSAGES, {"messages": thought(None)}, ("messages[1].content[0].signature", "a string", "null")),
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


AT_LAB = {"type": "mcp", "server_label": "lab", "server_url": "https://lab.example"}


@pytest.mark.parametrize(
    ("tool", "at"),
    [
        ({"type": "mcp", "server_label": "lab"}, "server_label"),
        ({**AT_LAB, "authorization": "a\nb"}, "authorization"),
        ({**AT_LAB, "headers": {"host": "b"}}, "headers"),
        ({"type": "file_search", "vector_store_ids": ["vs_1"]}, "vector_store_ids"),
        ({"type": "code_interpreter", "container": {"type": "auto", "file_ids": ["file-1"]}}, "container.file_ids"),
        ({"type": "code_interpreter", "container": "cntr_1"}, "container"),
        (
            {"type": "shell", "environment": {"type": "container_reference", "container_id": "cntr_1"}},
            "environment.container_id",
        ),
    ],
)
async def test_a_tool_that_cannot_be_had_is_named_by_its_place(
    demo_server: Server, tool: dict[str, Any], at: str
) -> None:
    async with http_client(demo_server) as http:
        answer = await http.post(RESPONSES, json={"input": "Hi", "tools": [{"type": "function", **F}, tool]})
    assert answer.json()["error"]["param"] == f"tools[1].{at}", answer.text
