"""JSON that is nested deeply is read and rendered, or refused by the name of its field; it never breaks a request."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from responses_app.protocol.json_text import MAX_NESTING
from tests.kit.clients import Frame, Socket, read_error_answer
from tests.kit.inprocess import Server


def nested(levels: int) -> Any:
    value: Any = "x"
    for _ in range(levels):
        value = {"a": value}
    return value


def schema(levels: int) -> Frame:
    """Return a schema of that many levels of JSON."""
    value: Frame = {"type": "string"}
    for _ in range((levels - 1) // 2):
        value = {"type": "object", "properties": {"a": value}}
    return value


def tool(parameters: Frame) -> Frame:
    return {"input": "call f", "tools": [{"type": "function", "name": "f", "parameters": parameters}]}


def passed_through(levels: int) -> list[Frame]:
    return [{"type": "mcp_call", "id": "mcp_1", "x": nested(levels)}]


def said(**fields: Any) -> list[Frame]:
    return [{"role": "user", "content": "a", **fields}]


COUNT, COMPACT = "/responses/input_tokens", "/responses/compact"
PLACES = {
    "tools[0].parameters": ("/responses", lambda levels: tool(schema(levels))),
    "input[1].x": ("/responses", lambda levels: {"input": [*said(), *passed_through(levels)]}),
    "input[1].x, compacted": (COMPACT, lambda levels: {"model": "demo", "input": [*said(), *passed_through(levels)]}),
    "items[0].x": ("/conversations", lambda levels: {"items": passed_through(levels)}),
}
WRONG = {
    "input[0].role": (COMPACT, lambda levels: {"model": "demo", "input": said(role=nested(levels))}),
    "input[0].content": (COUNT, lambda levels: {"input": said(content=nested(levels))}),
    "metadata.k": ("/responses", lambda levels: {"input": "a", "metadata": {"k": nested(levels)}}),
    "truncation": ("/responses", lambda levels: {"input": "a", "truncation": nested(levels)}),
    "tool_choice": ("/responses", lambda levels: {"input": "a", "tool_choice": nested(levels)}),
}


@pytest.fixture
def http(demo_server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=demo_server.base_url, timeout=30, verify=False) as client:
        yield client


@pytest.mark.parametrize("field", PLACES)
@pytest.mark.parametrize("levels", [120, MAX_NESTING - 10])
def test_deep_json_is_taken(http: httpx.Client, field: str, levels: int) -> None:
    path, body = PLACES[field]
    answer = http.post(path, json=body(levels))
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("field", PLACES)
@pytest.mark.parametrize("levels", [MAX_NESTING + 10, 900])
def test_deeper_json_is_refused_by_its_name(http: httpx.Client, field: str, levels: int) -> None:
    path, body = PLACES[field]
    message = read_error_answer(
        http.post(path, json=body(levels)), status=400, code="invalid_value", param=field.split(",")[0]
    )
    assert f"{MAX_NESTING} levels" in message


@pytest.mark.parametrize("field", WRONG)
@pytest.mark.parametrize("levels", [120, MAX_NESTING + 10, 900])
def test_deep_json_where_there_is_to_be_none(http: httpx.Client, field: str, levels: int) -> None:
    path, body = WRONG[field]
    answer = http.post(path, json=body(levels))
    assert answer.status_code == 400
    assert answer.json()["error"]["param"].startswith(field.split(".")[0].split("[")[0])


async def test_deep_json_in_a_frame(demo_server: Server) -> None:
    async with await Socket.open(demo_server.ws_url) as socket:
        await socket.send(json.dumps({"type": "response.create", **tool(schema(900))}))
        refused = await socket.error()
        assert (refused["status"], refused["error"]["param"]) == (400, "tools[0].parameters")
        assert (await socket.ask(**{"text": "call f", "tools": tool(schema(120))["tools"]}))["output"]
