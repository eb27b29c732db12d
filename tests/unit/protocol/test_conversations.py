"""Conversations: their bodies, and the objects that answer, which OpenAI's types accept."""

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from responses_app.kit.clock import utc
from responses_app.protocol.errors import ApiError, JsonObject
from responses_app.protocol.items.items import PASSED_THROUGH, identified
from responses_app.protocol.items.resources import item_resource
from responses_app.resources.conversations.fields import (
    parse_added_items,
    parse_changes,
    parse_conversation,
    references,
    resolved,
    shown,
    shown_item,
)
from responses_app.resources.conversations.model import Conversation, ConversationItem
from tests.kit.laws import counting_ids
from tests.kit.oracle import validate_conversation, validate_conversation_item

HELLO: JsonObject = {"role": "user", "content": "Hello"}
DEEP = orjson.loads("[" * 1010 + "]" * 1010)
SHELL = {"stdout": "a", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}


def item(type: str, **fields: object) -> JsonObject:
    return {"type": type, **fields}


def item_at(created_at: int, item: JsonObject) -> JsonObject:
    """Return an item that was added then, as clients see it."""
    return shown_item(ConversationItem(item=item, created_at=utc(created_at)))


CALLED = {"id": "x_1", "call_id": "call_1"}
AS_CLIENTS_SEND_THEM: dict[str, JsonObject] = {  # with what OpenAI requires of input, and nothing else
    "message": {"role": "developer", "content": "Be brief."},
    "message of parts": item(
        "message",
        role="user",
        content=[
            item("input_text", text="Look:"),
            item("input_image", image_url="data:image/png;base64,AA=="),
            item("input_file", file_id="file_1"),
        ],
    ),
    "answer": {"role": "assistant", "content": "Hi.", "phase": "final_answer"},
    "answer of parts": item(
        "message",
        role="assistant",
        status=None,
        content=[item("output_text", text="Hi."), item("refusal", refusal="No.")],
    ),
    "reasoning without a summary": item("reasoning", content=[item("reasoning_text", text="Hm.")]),
    "output of parts": item(
        "function_call_output",
        call_id="call_1",
        output=[item("input_text", text="1"), item("input_image", image_url="x")],
    ),
    **{
        str(each["type"]): each
        for each in (
            item("reasoning", id="rs_1", summary=[]),
            item("function_call", call_id="call_1", name="f", arguments="{}"),
            item("function_call_output", call_id="call_1", output="1"),
            item("file_search_call", id="fs_1", queries=[], status="completed"),
            item("web_search_call", id="ws_1", action={"type": "search", "query": "x"}),
            item("image_generation_call", id="ig_1"),
            item("computer_call", **CALLED, pending_safety_checks=[], status="completed"),
            item("computer_call_output", call_id="call_1", output=item("computer_screenshot", image_url="x")),
            item("tool_search_call", arguments={}),
            item("tool_search_output", tools=[]),
            item("additional_tools", role="developer", tools=[]),
            item("configuration_update"),
            item("program", **CALLED, code="1", fingerprint="x"),
            item("program_output", **CALLED, result="1"),
            item("compaction", encrypted_content="x"),
            item("code_interpreter_call", id="ci_1", container_id="c", code="1"),
            item("local_shell_call", **CALLED, action=item("exec", command=["ls"], env={})),
            item("local_shell_call_output", id="lsho_1", output="{}"),
            item("multi_agent_call", **CALLED, action="list_agents", arguments="{}"),
            item(
                "multi_agent_call_output",
                **CALLED,
                action="list_agents",
                output=[item("output_text", text="{}", annotations=[])],
            ),
            item(
                "agent_message", id="a_1", author="/root/a", recipient="/root", content=[item("input_text", text="42")]
            ),
            item("shell_call", call_id="call_1", action={"commands": ["ls"]}),
            item("shell_call_output", call_id="call_1", output=[SHELL]),
            item("apply_patch_call", call_id="call_1", operation=item("delete_file", path="a"), status="completed"),
            item("apply_patch_call_output", call_id="call_1", status="completed"),
            item("mcp_list_tools", id="mcpl_1", server_label="s", tools=[]),
            item("mcp_approval_request", id="mcpr_1", arguments="{}", name="t", server_label="s"),
            item("mcp_approval_response", approval_request_id="mcpr_1", approve=True),
            item("mcp_call", id="mcp_1", arguments="{}", name="t", server_label="s"),
            item("custom_tool_call", call_id="call_1", name="t", input="x"),
            item("custom_tool_call_output", call_id="call_1", output="x"),
        )
    },
}


# OpenAI has no such items in conversations, and none of its own responses with agents can be in one.
OF_AGENTS = ("multi_agent_call", "multi_agent_call_output", "agent_message")


def kept(*items: JsonObject) -> list[JsonObject]:
    """Return items as a conversation keeps them."""
    return identified(resolved(parse_added_items({"items": list(items)}), {}), counting_ids())


def refusal(parse: Any, body: JsonObject) -> ApiError:
    with pytest.raises(ApiError) as refused:
        parse(body)
    assert (refused.value.status, refused.value.type) == (400, "invalid_request_error")
    assert len(refused.value.message) < 900
    return refused.value


# Items.


def test_every_type_is_among_the_examples() -> None:
    types = {item.get("type", "message") for item in AS_CLIENTS_SEND_THEM.values()}
    assert PASSED_THROUGH - {"compaction_trigger"} <= types


@pytest.mark.parametrize("name", AS_CLIENTS_SEND_THEM)
def test_what_a_client_sends_is_read_back_as_openai_has_it(name: str) -> None:
    given = AS_CLIENTS_SEND_THEM[name]
    whole = item_at(7, *kept(given))
    if name not in OF_AGENTS:
        validate_conversation_item(whole)
    assert whole["created_at"] == 7
    for field, value in given.items():
        if isinstance(value, str) and field != "content":
            assert whole[field] == value


def test_an_easy_message_becomes_a_whole_one() -> None:
    first, second = kept(HELLO, {"role": "assistant", "content": "Hi."})
    assert item_at(7, first) == {
        "type": "message",
        "id": "msg_00000000000000000000000000000001",
        "role": "user",
        "status": "completed",
        "content": [{"type": "input_text", "text": "Hello"}],
        "created_at": 7,
    }
    part = {"type": "output_text", "text": "Hi.", "annotations": [], "logprobs": []}
    assert item_resource(second)["content"] == [part]


def test_what_a_client_says_stays() -> None:
    annotation = {"type": "file_path", "file_id": "f", "index": 1}
    part = {"type": "output_text", "text": "Hi.", "annotations": [annotation], "logprobs": [], "z": 1}
    item = {"id": "mine", "type": "message", "role": "assistant", "status": "incomplete", "content": [part], "own": {}}
    (whole,) = kept(item)
    assert item_resource(whole) == item


def test_an_output_inside_a_call_is_not_given_back() -> None:
    call = {"type": "function_call", "id": "fc_1", "call_id": "c", "name": "f", "arguments": "{}", "output": "18"}
    assert "output" not in item_resource(call)
    assert item_resource({"type": "function_call_output", "call_id": "c", "output": "18"})["output"] == "18"


def test_a_given_time_is_not_the_servers() -> None:
    (item,) = kept({**HELLO, "created_at": "yesterday"})
    assert item_at(7, item)["created_at"] == 7


def test_at_most_twenty_items() -> None:
    assert len(parse_added_items({"items": [HELLO] * 20})) == 20
    assert parse_added_items({"items": []}) == []
    for parse in (parse_added_items, parse_conversation):
        assert refusal(parse, {"items": [HELLO] * 21}).param == "items"


WRONG_ITEMS: dict[str, tuple[object, str]] = {
    "text": ("Hello", "items"),
    "object": ({"role": "user", "content": "Hello"}, "items"),
    "number": ([HELLO, 5], "items[1]"),
    "no type": ([{"content": "Hello"}], "items[0].type"),
    "unknown type": ([HELLO, {"type": "nonsense"}], "items[1].type"),
    "a trigger": ([{"type": "compaction_trigger"}], "items[0].type"),
    "status": ([{**HELLO, "status": "done"}], "items[0].status"),
    "id": ([{**HELLO, "id": 5}], "items[0].id"),
    "reference": ([{"type": "item_reference"}], "items[0].id"),
    "deep": ([{**HELLO, "own": DEEP}], "items[0].own"),
}


@pytest.mark.parametrize("case", WRONG_ITEMS)
def test_wrong_items_are_named(case: str) -> None:
    items, param = WRONG_ITEMS[case]
    for parse in (parse_added_items, parse_conversation):
        assert refusal(parse, {"items": items}).param == param


@pytest.mark.parametrize("body", [{}, {"items": None}])
def test_items_to_add_are_required(body: JsonObject) -> None:
    error = refusal(parse_added_items, body)
    assert (error.param, error.code) == ("items", "missing_required_parameter")


def test_references_are_replaced_by_what_they_name() -> None:
    items = parse_added_items(
        {"items": [HELLO, {"type": "item_reference", "id": "a"}, {"type": "item_reference", "id": "b"}]}
    )
    assert references(items) == {"a", "b"}
    known: dict[str, JsonObject] = {"a": {"type": "reasoning", "id": "a"}}
    with pytest.raises(ApiError, match="'b' not found") as refused:
        resolved(items, known)
    assert (refused.value.status, refused.value.param) == (400, "items[2].id")
    known["b"] = {"type": "message", "id": "b"}
    assert [item.get("id") for item in resolved(items, known)] == [None, "a", "b"]


# Conversations.


def test_an_empty_conversation() -> None:
    for body in ({}, {"metadata": None, "items": None, "title": None, "status": None}):
        columns, items = parse_conversation(body)
        row = Conversation(**columns)
        assert (row.metadata, row.title, row.status, list(items)) == ({}, "", "", [])


def test_a_conversation_is_one_of_openais() -> None:
    whole = shown(Conversation(id="conv_1", created_at=utc(7), metadata={"a": "b"}, status="open"))
    validate_conversation(whole)
    assert whole == {
        "id": "conv_1",
        "object": "conversation",
        "created_at": 7,
        "metadata": {"a": "b"},
        "title": None,
        "status": "open",
    }


def test_metadata_within_its_bounds() -> None:
    pairs = {f"{number:064}": "v" * 512 for number in range(16)}
    assert parse_conversation({"metadata": pairs}) == ({"metadata": pairs}, [])


WRONG_FIELDS: dict[str, tuple[JsonObject, str]] = {
    "17 pairs": ({"metadata": {str(number): "" for number in range(17)}}, "metadata"),
    "long key": ({"metadata": {"k" * 65: ""}}, "metadata"),
    "long value": ({"metadata": {"k": "v" * 513}}, "metadata.k"),
    "metadata list": ({"metadata": []}, "metadata"),
    "metadata text": ({"metadata": "a"}, "metadata"),
    "metadata number": ({"metadata": {"a": 1}}, "metadata.a"),
    "metadata deep": ({"metadata": {"a": DEEP}}, "metadata.a"),
    "title number": ({"title": 1}, "title"),
    "long title": ({"title": "t" * 513}, "title"),
    "title with NUL": ({"title": "a\0b"}, "title"),
    "status list": ({"status": []}, "status"),
    "long status": ({"status": "s" * 513}, "status"),
    "status with NUL": ({"status": "\0"}, "status"),
}


@pytest.mark.parametrize("case", WRONG_FIELDS)
def test_wrong_fields_are_named(case: str) -> None:
    body, param = WRONG_FIELDS[case]
    for parse in (parse_conversation, parse_changes):
        error = refusal(parse, body)
        assert error.param == param
        assert error.message.endswith(".")


@pytest.mark.parametrize(
    ("body", "changes"),
    [
        ({"metadata": {"a": "b"}}, {"metadata": {"a": "b"}}),
        ({"metadata": None, "title": None, "status": None}, {"metadata": {}, "title": "", "status": ""}),
        ({"title": "t" * 512, "items": [HELLO]}, {"title": "t" * 512}),
        ({"status": "s" * 512, "metadata": {}}, {"status": "s" * 512, "metadata": {}}),
    ],
)
def test_changes(body: JsonObject, changes: JsonObject) -> None:
    assert parse_changes(body) == changes


@pytest.mark.parametrize("body", [{}, {"items": [HELLO]}, {"name": "x"}])
def test_a_change_of_nothing_is_told(body: JsonObject) -> None:
    error = refusal(parse_changes, body)
    assert (error.param, error.code) == ("metadata", "missing_required_parameter")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
some_items = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "type": st.sampled_from(["message", "reasoning", "function_call", "compaction", "x"]),
            **dict.fromkeys(("role", "content", "id", "status", "call_id", "name", "output"), json_values),
        },
    ),
    max_size=3,
)


@given(
    st.fixed_dictionaries(
        {},
        optional={"metadata": json_values, "title": json_values, "status": json_values, "items": some_items},
    )
)
def test_any_json_is_a_conversation_or_a_400(body: JsonObject) -> None:
    try:
        _, given = parse_conversation(body)
        items = identified(resolved(given, {}), counting_ids())
    except ApiError as refused:
        assert refused.status == 400  # noqa: PT017 - both are fine
        assert refused.param  # noqa: PT017
    else:
        orjson.dumps([item_at(1, item) for item in items])
