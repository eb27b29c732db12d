"""What an `include` gives of the items of a list, and what a list without it leaves out."""

from copy import deepcopy

import pytest

from responses_app.protocol.errors import JsonObject
from responses_app.protocol.items.resources import with_included
from responses_app.protocol.requests.create_fields import KNOWN_INCLUDES

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
        {"type": "file_search_call", "id": "fs_1", "queries": ["q"], "results": None},
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
