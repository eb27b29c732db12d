"""The response object at its start, an echo of its request; items as clients read them, and what an `include` gives."""

from copy import deepcopy

import pytest

from responses_app.protocol.errors import JsonObject
from responses_app.protocol.items.resources import with_included
from responses_app.protocol.requests.create_fields import KNOWN_INCLUDES
from responses_app.protocol.requests.requests import new_response, parse_create
from tests.kit.laws import new_stream
from tests.kit.oracle import nulls_in, validate_event, validate_response
from tests.kit.output_items import output_items

LOGPROB = {"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []}


def message(*parts: JsonObject) -> JsonObject:
    return {"type": "message", "id": "msg_1", "role": "user", "content": list(parts)}


def image(url: str | None) -> JsonObject:
    return {"type": "input_image", "detail": "auto", "image_url": url}


def text(*logprobs: object) -> JsonObject:
    return {"type": "output_text", "text": "a", "annotations": [], "logprobs": list(logprobs)}


CASES: list[tuple[str, JsonObject, JsonObject]] = [
    (
        "message.input_image.image_url",
        message({"type": "input_text", "text": "See"}, image("data:image/png;base64,AA==")),
        message({"type": "input_text", "text": "See"}, image(None)),
    ),
    ("message.output_text.logprobs", message(text(LOGPROB)), message(text())),
    (
        "reasoning.encrypted_content",
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"},
        {"type": "reasoning", "id": "rs_1", "summary": []},
    ),
    (
        "code_interpreter_call.outputs",
        {"type": "code_interpreter_call", "id": "ci_1", "code": "1", "outputs": [{"type": "logs", "logs": "1"}]},
        {"type": "code_interpreter_call", "id": "ci_1", "code": "1", "outputs": None},
    ),
    (
        "file_search_call.results",
        {"type": "file_search_call", "id": "fs_1", "queries": ["q"], "results": [{"text": "t"}]},
        {"type": "file_search_call", "id": "fs_1", "queries": ["q"]},
    ),
    (
        "computer_call_output.output.image_url",
        {"type": "computer_call_output", "output": {"type": "computer_screenshot", "image_url": "data:"}},
        {"type": "computer_call_output", "output": {"type": "computer_screenshot", "image_url": None}},
    ),
    (
        "web_search_call.action.sources",
        {
            "type": "web_search_call",
            "id": "ws_1",
            "action": {"type": "search", "query": "q", "sources": [{"url": "u"}]},
        },
        {"type": "web_search_call", "id": "ws_1", "action": {"type": "search", "query": "q"}},
    ),
]


@pytest.mark.parametrize(("name", "whole", "trimmed"), CASES)
def test_it_is_there_for_who_asks_for_it_and_only_then(name: str, whole: JsonObject, trimmed: JsonObject) -> None:
    kept = deepcopy(whole)
    assert with_included(whole, [name]) == whole
    assert with_included(whole, []) == trimmed
    assert with_included(whole, KNOWN_INCLUDES - {name}) == trimmed
    assert with_included(trimmed, []) == trimmed
    assert whole == kept


@pytest.mark.parametrize(
    "item",
    [
        {"type": "compaction", "encrypted_content": "gAAA"},
        {"type": "message", "content": "As text"},
        {"type": "message", "content": ["odd", {"type": "input_image", "file_id": "file_1"}]},
        {"type": "web_search_call", "action": None},
        {"type": "code_interpreter_call", "code": "1"},
        {"type": "function_call_output", "output": [image("x")]},
        {"no": "type"},
    ],
)
def test_everything_else_stays_as_it_is(item: JsonObject) -> None:
    assert with_included(item, []) == item


def test_what_is_not_set_is_absent_in_items_of_every_type_as_the_sdk_reads_them() -> None:
    items = list(output_items())
    assert {f"{item['type']}.{path}" for item in items for path in nulls_in(item)} == set()
    for item in items:
        kind = "added" if item.get("status") == "in_progress" else "done"
        event = {"type": f"response.output_item.{kind}", "output_index": 0, "sequence_number": 0, "item": item}
        validate_event(event)
    assert len({str(item["type"]) for item in items}) == 13


def test_the_new_response_is_what_the_sdk_calls_one() -> None:
    request = parse_create(
        {
            "input": "hi",
            "model": "m",
            "instructions": "x",
            "metadata": {"a": "b"},
            "tools": [{"type": "function", "name": "f"}],
            "reasoning": {"effort": "xhigh", "summary": "auto"},
            "truncation": "auto",
            "temperature": 1,
            "max_output_tokens": 5,
            "text": {"verbosity": "low"},
        }
    )
    validate_response(new_response(request, response_id="resp_1", created_at=1, model="m", store=True))
    validate_response(new_response(parse_create({}), response_id="resp_1", created_at=1, model="m", store=True))


def test_a_response_echoes_and_does_not_share_with_its_request() -> None:
    stream = new_stream()
    assert stream.snapshot()["metadata"] == {"a": "b"}
