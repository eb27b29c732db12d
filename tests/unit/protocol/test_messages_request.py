"""A request of Anthropic's Messages API becomes one of the Responses API, or is refused by what is wrong with it."""

from typing import Any

import pytest

from responses_app.protocol.errors import ApiError
from responses_app.protocol.messages.errors import error_answer, messages_status, speaks_messages
from responses_app.protocol.messages.request import parse_count
from responses_app.protocol.requests.requests import parse_create
from tests.kit.messages import THINKING, USER, message
from tests.unit.protocol.refusals import refusal

SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
TOOL = {"name": "f", "description": "Does it.", "input_schema": SCHEMA}
THOUGHT = {"type": "thinking", "thinking": "hm", "signature": "a seal"}
CALL = {"type": "tool_use", "id": "call_1", "name": "f", "input": {"a": "é", "b": [1.5]}}


def said(*blocks: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def result(content: Any = "18", **fields: Any) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call_1", "content": content, **fields}]}


def items(*messages: Any) -> list[Any]:
    return message(messages=list(messages), tools=[TOOL]).create.input_json


def test_blocks_are_items() -> None:
    text = {"type": "text", "text": "I look."}
    hidden = {"type": "redacted_thinking", "data": "another seal"}
    thought, preamble, call, other, output = items(USER, said(THOUGHT, text, CALL, hidden), result())[1:]
    assert thought["encrypted_content"] == "a seal"
    assert thought["content"] == [{"type": "reasoning_text", "text": "hm"}]
    assert (preamble["phase"], preamble["content"][0]["text"]) == ("commentary", "I look.")
    assert (call["call_id"], call["name"], call["arguments"]) == ("call_1", "f", '{"a":"é","b":[1.5]}')
    assert (other["encrypted_content"], "content" in other) == ("another seal", False)
    assert (output["call_id"], output["output"]) == ("call_1", "18")


def test_a_thought_without_its_text_is_its_seal() -> None:
    thought = items(USER, said({**THOUGHT, "thinking": ""}, CALL), result())[1]
    assert (thought["encrypted_content"], "content" in thought) == ("a seal", False)


@pytest.mark.parametrize(
    ("content", "fields", "output"),
    [
        (None, {}, ""),
        ([], {}, ""),
        ("gone", {"is_error": True}, [{"type": "input_text", "text": "The tool failed.\n"}, {"text": "gone"}]),
        ([{"type": "image", "source": {"type": "url", "url": "https://a.example/b.png"}}], {}, [{"image_url": "https://a.example/b.png"}]),
    ],
)  # fmt: skip
def test_what_came_of_a_call_is_its_output(content: Any, fields: Any, output: Any) -> None:
    given = items(USER, said(CALL), result(content, **fields))[-1]["output"]
    if isinstance(output, str):
        assert given == output
    else:
        assert all(expected.items() <= part.items() for part, expected in zip(given, output, strict=True))


def test_what_stands_beside_results_is_a_message_of_its_own() -> None:
    both = {"role": "user", "content": [*result()["content"], {"type": "text", "text": "and?"}]}
    output, text = items(USER, said(CALL), both)[-2:]
    assert (output["type"], text["type"]) == ("function_call_output", "message")


def test_documents_are_text_or_files() -> None:
    blocks = [
        {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "T"}, "title": "a title"},
        {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "aGk="}},
        {"type": "document", "source": {"type": "file", "file_id": "file-1"}},
        {"type": "document", "source": {"type": "url", "url": "https://a.example/b.pdf"}},
        {"type": "document", "source": {"type": "content", "content": "C"}},
        {"type": "search_result", "source": "s", "title": "t", "content": [{"type": "text", "text": "found"}]},
    ]
    [item] = items({"role": "user", "content": blocks})
    fields = ("text", "file_data", "file_id", "file_url")
    assert [next(part[name] for name in fields if name in part) for part in item["content"]] == [
        *("a title\n\n", "T", "data:application/pdf;base64,aGk=", "file-1", "https://a.example/b.pdf"),
        *("C", "t\ns\n\nfound"),
    ]


def test_nothing_is_stored_and_a_count_needs_no_max_tokens() -> None:
    assert message().create.store is False
    assert parse_count({"model": "m", "messages": [USER]}, parse_create).create.max_output_tokens is None


def test_the_system_is_the_instructions() -> None:
    assert message(system="Be brief.").create.instructions == "Be brief."
    blocks = [
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1; cch=1234;"},
        {"type": "text", "text": "Be", "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": "brief."},
    ]
    assert message(system=blocks).create.instructions == "Be\n\nbrief."
    later = {"role": "system", "content": "From now on, be long."}
    assert items(USER, later)[1]["role"] == "developer"


@pytest.mark.parametrize(
    ("fields", "effort", "shown"),
    [
        ({}, "none", False),
        ({"thinking": {"type": "disabled"}}, "none", False),
        ({"output_config": {"effort": "high"}}, "high", False),
        ({"thinking": {"type": "enabled", "budget_tokens": 2000}}, "low", True),
        ({"thinking": {"type": "enabled", "budget_tokens": 10_000}}, "medium", True),
        ({"thinking": {"type": "enabled", "budget_tokens": 31_999}}, "high", True),
        ({"thinking": THINKING}, "medium", True),
        ({"thinking": {**THINKING, "display": "updates"}}, "medium", True),
        ({"thinking": THINKING, "output_config": {"effort": "max"}}, "high", True),
    ],
)
def test_thinking_is_an_effort(fields: Any, effort: str, shown: bool) -> None:
    asked = message(**fields)
    assert (asked.create.effort, asked.shows_thinking) == (effort, shown)
    assert ("reasoning.encrypted_content" in (asked.create.include or ())) is shown


def test_choices_among_tools_are_those_of_responses() -> None:
    for choice, mode in (("auto", "auto"), ("any", "required"), ("none", "none")):
        assert message(tools=[TOOL], tool_choice={"type": choice}).create.tool_choice.mode == mode
    one = message(tools=[TOOL], tool_choice={"type": "tool", "name": "f", "disable_parallel_tool_use": True}).create
    assert (one.tool_choice.allowed, one.parallel_tool_calls) == (frozenset(("f",)), False)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("bash_20250124", "bash"),
        ("text_editor_20250124", "str_replace_editor"),
        ("text_editor_20250728", "str_replace_based_edit_tool"),
        ("memory_20250818", "memory"),
    ],
)
def test_tools_that_anthropic_defines_are_functions_of_the_client(kind: str, name: str) -> None:
    create = message(tools=[{"type": kind, "name": name}, TOOL]).create
    first, other = create.offered_functions
    assert (first.name, other.name) == (name, "f")
    assert '"command"' in first.schema


def test_uses_of_the_servers_tools_are_bounded_together() -> None:
    search = {"type": "web_search_20250305", "name": "web_search", "max_uses": 3}
    fetch = {"type": "web_fetch_20250910", "name": "web_fetch"}
    assert message(tools=[search, {**fetch, "max_uses": 2}]).tools.max_calls == 5
    assert message(tools=[search]).tools.max_calls == 3
    assert message(tools=[search, fetch]).tools.max_calls is None
    named = message(tools=[search, fetch], tool_choice={"type": "tool", "name": "web_fetch"})
    assert named.create.tool_choice.hosted[0].item == "web_search_call"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": -1}, "max_tokens"),
        ({"model": None}, "model"),
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": ["x"]}, "messages[0]"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [USER, said({"type": "image"}), USER]}, "messages[1].content[0].type"),
        ({"messages": [USER, said({"type": "text", "text": "a"})]}, "messages[1]"),
        ({"messages": [result()]}, "messages[0].content[0].tool_use_id"),
        ({"tools": {}}, "tools"),
        ({"tools": [1]}, "tools[0]"),
        ({"tools": [{"type": "bash_20250124", "name": "sh"}]}, "tools[0].name"),
        ({"tools": [{"type": "computer_20250123", "name": "computer"}]}, "tools[0].type"),
        ({"tools": [{"type": ["custom"]}]}, "tools[0].type"),
        ({"mcp_servers": {}}, "mcp_servers"),
        ({"mcp_servers": [1]}, "mcp_servers[0]"),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"stop_sequences": [""]}, "stop_sequences[0]"),
        ({"output_format": {"type": "json_schema"}}, "output_format.schema"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
        ({"metadata": {"user_id": "x" * 2000}}, "metadata.user_id"),
    ],
)
def test_what_is_wrong_is_named(fields: Any, param: str) -> None:
    error = refusal(message, **fields)
    assert (error.status, error.param) == (400, param)


def test_a_run_s_error_names_the_block() -> None:
    asked = message(messages=[USER, said(THOUGHT, CALL), result([{"type": "text", "text": "a"}] * 2)], tools=[TOOL])
    names = {
        "input[1].encrypted_content": "messages[1].content[0].signature",
        "input[2].arguments": "messages[1].content[1].input",
        "input[3].output[1].text": "messages[2].content[0].content[1].text",
        "input[3].call_id": "messages[2].content[0].tool_use_id",
        "input[0].content[0].image_url": "messages[0].content[0].source",
        "max_output_tokens": "max_tokens",
        "instructions": "system",
        "temperature": "temperature",
    }
    for old, new in names.items():
        error = asked.renamed(ApiError(f"Wrong: '{old}'.", param=old))
        assert (error.param, error.message) == (new, f"Wrong: '{new}'.")


@pytest.mark.parametrize(
    ("status", "kind", "told"),
    [
        (400, "invalid_request_error", 400),
        (401, "authentication_error", 401),
        (403, "permission_error", 403),
        (404, "not_found_error", 404),
        (405, "invalid_request_error", 405),
        (413, "request_too_large", 413),
        (429, "rate_limit_error", 429),
        (500, "api_error", 500),
        (503, "overloaded_error", 529),
    ],
)
def test_errors_have_anthropics_types(status: int, kind: str, told: int) -> None:
    error = ApiError("It broke.", status=status)
    assert messages_status(status) == told
    broke = {"type": kind, "message": "It broke."}
    assert error_answer(error, "req_1") == {"type": "error", "error": broke, "request_id": "req_1"}


def test_a_client_is_known_by_its_path_or_its_header() -> None:
    for path in ("/v1/messages", "/messages", "/v1/messages/count_tokens", "/v1/messages/"):
        assert speaks_messages(path, {})
    assert speaks_messages("/v1/models", {"anthropic-version": "2023-06-01"})
    for path in ("/v1/models", "/v1/messagesque", "/v1/responses", "/v1/chat/completions/x/messages"):
        assert not speaks_messages(path, {})
