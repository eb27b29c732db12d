"""Kinds of tools: who runs them, what those of the server take, and what becomes of those that nobody runs."""

import time

import pytest

from responses_app.protocol.errors import ApiError, JsonObject
from responses_app.protocol.items.client_tools import read_tools
from responses_app.protocol.requests.requests import parse_create
from responses_app.protocol.requests.server_tools import (
    WEB_SEARCH,
    SentImage,
    newest_images,
    parse_server_tool,
    sent_images,
)
from responses_app.protocol.requests.tools import CLIENT_TOOLS, parse_tools
from tests.unit.protocol.refusals import refusal


@pytest.mark.parametrize("kind", sorted(CLIENT_TOOLS.keys() - {"function"}))
def test_tools_that_clients_execute_are_taken(kind: str) -> None:
    further: JsonObject = {"tools": []} if kind == "namespace" else {}
    tools: list[JsonObject] = [{"type": kind, "name": "n", "own": {"a": 1}, **further}]
    (echoed,) = parse_create({"input": "hi", "tools": tools}).tools_json
    assert echoed.items() >= {"type": kind, "name": "n"}.items()


@pytest.mark.parametrize("tool", [{"type": ["function"], "name": "f"}, {"type": {}, "name": "f"}, {"name": "f"}, {}])
def test_a_late_tool_whose_type_is_not_a_text_is_left_out(tool: JsonObject) -> None:
    assert read_tools([tool]) == []


def test_all_schemas_of_a_request_together_are_checked_in_bounded_time() -> None:
    def slow(number: int) -> JsonObject:
        alternatives = [*({"const": each} for each in range(2, 240)), {"const": number}]
        return {"enum": [[number] * 300], "items": {"anyOf": alternatives}}

    tools: list[object] = [
        {"type": "function", "name": f"f{each}", "parameters": slow(1000 + each)} for each in range(300)
    ]
    began = time.thread_time()
    with pytest.raises(ApiError) as caught:
        parse_tools(tools)
    assert time.thread_time() - began < 15
    assert caught.value.param == "tools"
    assert "all together" in caught.value.message
    parse_tools(tools[:2])


@pytest.mark.parametrize(
    "url",
    ["http://[", "http://[::1", "http://a:999999/", "http://a:x/", "http://[x]/", "http://a:0/", "http://user@:80/"],
)
def test_a_url_of_an_mcp_server_without_a_host_or_a_port_is_refused(url: str) -> None:
    error = refusal(
        parse_create, {"input": "hi", "tools": [{"type": "mcp", "server_label": "wiki", "server_url": url}]}
    )
    assert (error.status, error.param) == (400, "tools[0].server_url")


@pytest.mark.parametrize("kind", WEB_SEARCH)
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"filters": None, "search_context_size": None, "user_location": None, "external_web_access": None},
        {"filters": {"allowed_domains": ["a.example", "münchen.example"]}, "search_context_size": "low", "newer": [1]},
        {"user_location": {"type": "approximate", "country": "CH", "city": "Bern"}, "external_web_access": False},
    ],
)
def test_it_is_echoed_as_it_was_sent(kind: str, fields: JsonObject) -> None:
    tool: JsonObject = {"type": kind, **fields}
    assert parse_tools([tool]) == [tool]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"search_context_size": "huge"}, "search_context_size"),
        ({"filters": []}, "filters"),
        ({"filters": {"allowed_domains": "a.example"}}, "filters.allowed_domains"),
        ({"filters": {"allowed_domains": ["a.example", "https://b.example"]}}, "filters.allowed_domains[1]"),
        ({"filters": {"allowed_domains": [""]}}, "filters.allowed_domains[0]"),
        ({"filters": {"allowed_domains": ["a.example"] * 101}}, "filters.allowed_domains"),
        ({"user_location": {"city": "x" * 201}}, "user_location.city"),
        ({"user_location": "Bern"}, "user_location"),
        ({"external_web_access": "no"}, "external_web_access"),
        ({"async": True}, "async"),
    ],
)
def test_what_is_wrong_with_a_web_search_is_named(fields: JsonObject, param: str) -> None:
    assert refusal(parse_tools, [{"type": "web_search", **fields}]).param == f"tools[0].{param}"


DRAW: JsonObject = {"type": "image_generation"}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("size", "big"),
        ("size", "0x10"),
        ("quality", "best"),
        ("output_format", "bmp"),
        ("output_format", "svg"),
        ("background", 1),
        ("partial_images", 4),
        ("partial_images", True),
        ("output_compression", 101),
        ("action", "draw"),
        ("frame_count", 3),
        ("svg", {"model": "m"}),
        ("complexity", "low"),
        ("input_image_mask", {"file_id": 1}),
        ("input_image_mask", {}),
        ("input_image_mask", {"image_url": "https://example.com/a.png"}),
    ],
)
def test_what_it_does_not_take_is_named(field: str, value: object) -> None:
    error = refusal(parse_server_tool, {**DRAW, field: value}, "tools[0]")
    assert (error.param or "").startswith(f"tools[0].{field}")
    assert error.status == 400


def test_the_newest_images_come_first_and_what_has_none_is_passed_over() -> None:
    made: JsonObject = {"type": "image_generation_call", "id": "ig_1"}
    failed: JsonObject = {"type": "image_generation_call", "id": "ig_2", "status": "failed"}
    part = {"type": "input_image", "image_url": "DATA:image/PNG;base64,AAAA"}
    elsewhere = {"type": "input_image", "image_url": "https://a.example/a.png"}
    sent: JsonObject = {
        "role": "user",
        "content": [part, elsewhere, {"type": "input_image", "file_id": "file_1"}, None],
    }
    others: list[JsonObject] = [{"role": "user", "content": "text"}, {"role": "user", "content": [elsewhere]}, {}]
    assert list(newest_images([made, failed, sent, *others])) == [sent, made]
    assert sent_images(sent) == [SentImage(data="AAAA"), SentImage(file_id="file_1")]
