"""Kinds of tools: who runs them, and what becomes of those that nobody runs here."""

import time

import pytest

from responses_app.protocol.errors import ApiError, JsonObject
from responses_app.protocol.items.client_tools import read_tools
from responses_app.protocol.requests.requests import parse_create
from responses_app.protocol.requests.tools import CLIENT_TOOLS, parse_tools


def refusal(**fields: object) -> ApiError:
    with pytest.raises(ApiError) as refused:
        parse_create(fields)
    return refused.value


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
    error = refusal(input="hi", tools=[{"type": "mcp", "server_label": "wiki", "server_url": url}])
    assert (error.status, error.param) == (400, "tools[0].server_url")
