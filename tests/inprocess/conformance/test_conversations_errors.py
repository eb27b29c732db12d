"""What a client can get wrong with conversations: each time it is told what, in OpenAI's shape."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.kit.clients import read_error_answer
from tests.kit.inprocess import Server
from tests.kit.sdk import PATIENCE

HELLO: Any = {"type": "message", "role": "user", "content": "Hello"}
JSON = {"content-type": "application/json"}
BODIES: dict[str, tuple[dict[str, Any], str]] = {
    "content": ({"items": [HELLO, HELLO, HELLO, {"role": "user", "content": 5}]}, "items[3].content"),
    "an unknown reference": ({"items": [HELLO, {"type": "item_reference", "id": "msg_0"}]}, "items[1].id"),
}
FIELDS: dict[str, tuple[dict[str, Any], str]] = {
    "a pair of a wrong type": ({"metadata": {"a": 1}}, "metadata.a"),
    "a long status": ({"status": "s" * 513}, "status"),
}


@pytest.fixture
def http(demo_server: Server) -> Iterator[httpx.Client]:
    """A bare client: what is wrong does not depend on the server's kind."""
    with httpx.Client(base_url=demo_server.base_url, timeout=PATIENCE, verify=False) as client:
        yield client


@pytest.fixture
def conversation(http: httpx.Client) -> str:
    """A conversation with one item."""
    return str(http.post("/conversations", json={"items": [HELLO]}).json()["id"])


@pytest.mark.parametrize("case", BODIES)
def test_wrong_items_are_refused_and_named(http: httpx.Client, conversation: str, case: str) -> None:
    body, param = BODIES[case]
    for path in ("/conversations", f"/conversations/{conversation}/items"):
        answer = http.post(path, json=body)
        read_error_answer(answer, status=400, code=answer.json()["error"]["code"], param=param)
    assert len(http.get(f"/conversations/{conversation}/items").json()["data"]) == 1


@pytest.mark.parametrize("case", FIELDS)
def test_wrong_fields_are_refused_and_named(http: httpx.Client, conversation: str, case: str) -> None:
    body, param = FIELDS[case]
    for path in ("/conversations", f"/conversations/{conversation}"):
        answer = http.post(path, json=body)
        read_error_answer(answer, status=400, code=answer.json()["error"]["code"], param=param)
    assert http.get(f"/conversations/{conversation}").json()["metadata"] == {}


def test_what_is_required_is_named(http: httpx.Client, conversation: str) -> None:
    for path, param in (
        (f"/conversations/{conversation}", "metadata"),
        (f"/conversations/{conversation}/items", "items"),
    ):
        answer = http.post(path, json={})
        read_error_answer(answer, status=400, code="missing_required_parameter", param=param)
    answer = http.delete(f"/conversations/{conversation}/items")
    read_error_answer(answer, status=400, code="missing_required_parameter", param="item_id")


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ({"after": "msg_0"}, "after"),
        ({"after": "\0"}, "after"),
        ({"include[]": "all"}, "include[0]"),
    ],
)
def test_a_wrong_query_is_named(http: httpx.Client, conversation: str, query: dict[str, str], param: str) -> None:
    answer = http.get(f"/conversations/{conversation}/items", params=query)
    read_error_answer(answer, status=400, code="invalid_value", param=param)


def test_include_is_looked_at_wherever_it_is_taken(http: httpx.Client, conversation: str) -> None:
    items = f"/conversations/{conversation}/items"
    item_id = http.get(items).json()["data"][0]["id"]
    for answer in (
        http.post(items, params={"include[]": "all"}, json={"items": [HELLO]}),
        http.get(f"{items}/{item_id}", params={"include[]": "all"}),
    ):
        read_error_answer(answer, status=400, code="invalid_value", param="include[0]")
    assert len(http.get(items).json()["data"]) == 1


@pytest.mark.parametrize("unknown", ["conv_0", "resp_0", "x" * 500, "%00", "%ff", "%ed%a0%80", "a%0Ab", "%F0%9F%99%82"])
def test_an_unknown_conversation_is_a_404_and_what_is_no_id_a_400(http: httpx.Client, unknown: str) -> None:
    path = f"/conversations/{unknown}"
    answers = [
        http.get(path),
        http.post(path, json={"metadata": {}}),
        http.delete(path),
        http.get(f"{path}/items"),
        http.get(f"{path}/items", params={"after": "msg_0"}),
        http.post(f"{path}/items", json={"items": [HELLO]}),
        http.delete(f"{path}/items", params={"item_id": "msg_0"}),
        http.get(f"{path}/items/msg_0"),
        http.delete(f"{path}/items/msg_0"),
    ]
    for answer in answers:
        if unknown.startswith("conv"):
            message = read_error_answer(answer, status=404, code=None, param="conversation_id")
            assert message.startswith("Conversation with id '")
            assert message.endswith("' not found.")
        else:
            message = read_error_answer(answer, status=400, code="invalid_value", param="conversation_id")
            assert message.startswith("Invalid 'conversation_id': ")


@pytest.mark.parametrize("unknown", ["msg_0", "x" * 500, "%00", "a/b", "%ff"])
def test_an_unknown_item_is_a_404(http: httpx.Client, conversation: str, unknown: str) -> None:
    items = f"/conversations/{conversation}/items"
    for answer in (http.get(f"{items}/{unknown}"), http.delete(f"{items}/{unknown}")):
        message = read_error_answer(answer, status=404, code=None, param="item_id")
        assert conversation in message
    answer = http.delete(items, params={"item_id": "msg_0"})
    read_error_answer(answer, status=404, code=None, param="item_id")


def test_a_body_that_is_not_json(http: httpx.Client, conversation: str) -> None:
    for path in ("/conversations", f"/conversations/{conversation}", f"/conversations/{conversation}/items"):
        for body in ("{", "[1]", "", "null"):
            answer = http.post(path, content=body, headers=JSON)
            read_error_answer(answer, status=400, code="invalid_json")
        answer = http.post(path, content="{}", headers={"content-type": "text/plain"})
        read_error_answer(answer, status=415, code="unsupported_media_type")


def test_head_is_a_get_without_a_body(http: httpx.Client, conversation: str) -> None:
    answer = http.head(f"/conversations/{conversation}")
    assert (answer.status_code, answer.content) == (200, b"")
