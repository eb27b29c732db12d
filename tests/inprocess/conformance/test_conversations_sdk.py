"""`client.conversations` of OpenAI's Python SDK, as it is, and what a client can get wrong with conversations."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.conversations import Conversation, ConversationItemList

from tests.kit.clients import http_client, read_error_answer
from tests.kit.inprocess import Server
from tests.kit.oracle import validate_conversation, validate_conversation_items
from tests.kit.sdk import MODEL, PATIENCE, async_sdk_of, refusal

HELLO: Any = {"type": "message", "role": "user", "content": "Hello"}


def saying(*texts: str) -> Any:
    """Return messages."""
    return [{"role": "user", "content": text} for text in texts]


def texts(page: Any) -> list[str]:
    """Return what the items of a page, or of all pages, say."""
    return [item.content[0].text for item in page]


def new_conversation(client: OpenAI, *said: str) -> str:
    """Create a conversation and return its id."""
    return client.conversations.create(items=saying(*said)).id


# What works.


@pytest.mark.each_database
def test_create_retrieve_update_delete(client: OpenAI) -> None:
    raw = client.conversations.with_raw_response.create(metadata={"a": "1"}, items=[HELLO])
    validate_conversation(json.loads(raw.text))
    made = raw.parse()
    assert made.id.startswith("conv_")
    assert len(made.id) == len("conv_") + 32
    assert made.metadata == {"a": "1"}
    assert client.conversations.retrieve(made.id) == made
    changed = client.conversations.update(made.id, metadata={"b": "2"})
    assert (changed.id, changed.created_at, changed.metadata) == (made.id, made.created_at, {"b": "2"})
    assert client.conversations.update(made.id, metadata=None).metadata == {}
    deleted = client.conversations.delete(made.id)
    assert (deleted.id, deleted.object, deleted.deleted) == (made.id, "conversation.deleted", True)
    for again in (client.conversations.retrieve, client.conversations.delete, client.conversations.items.list):
        refusal(openai.NotFoundError, again, made.id)


def test_title_and_status_are_kept_beside(client: OpenAI) -> None:
    body: Any = {"title": "A title, 漢字", "status": "open"}
    made: Any = client.conversations.create(extra_body=body)
    assert (made.title, made.status) == (body["title"], "open")
    client.conversations.update(made.id, metadata={"a": "1"})
    changed: Any = client.post(f"/conversations/{made.id}", body={"status": "closed"}, cast_to=Conversation)
    assert (changed.metadata, changed.title, changed.status) == ({"a": "1"}, body["title"], "closed")
    cleared: Any = client.post(f"/conversations/{made.id}", body={"title": None}, cast_to=Conversation)
    assert (cleared.title, cleared.status) == (None, "closed")


@pytest.mark.each_database
def test_items(client: OpenAI) -> None:
    conversation = new_conversation(client, "One")
    raw = client.conversations.items.with_raw_response.create(
        conversation,
        items=[
            {"role": "user", "content": "Two"},
            {"type": "message", "id": "mine", "role": "assistant", "content": [{"type": "output_text", "text": "3"}]},
            {"type": "function_call", "call_id": "call_1", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "call_1", "output": "4"},
        ],
        include=["reasoning.encrypted_content"],
    )
    validate_conversation_items(json.loads(raw.text))
    added = raw.parse()
    assert isinstance(added, ConversationItemList)
    assert [item.type for item in added.data] == ["message", "message", "function_call", "function_call_output"]
    assert [item.id[:4] for item in added.data] == ["msg_", "mine", "fc_0", "fco_"]
    assert (added.first_id, added.last_id, added.has_more) == (added.data[0].id, added.data[-1].id, False)
    for item in added.data:
        assert client.conversations.items.retrieve(item.id, conversation_id=conversation) == item
    left = client.conversations.items.delete("mine", conversation_id=conversation)
    assert (left.id, left.object) == (conversation, "conversation")
    assert [item.type for item in client.conversations.items.list(conversation, order="asc")] == [
        *("message", "message", "function_call", "function_call_output")
    ]


def test_items_have_the_time_they_came(client: OpenAI) -> None:
    made = client.conversations.create(items=[HELLO])
    first = next(iter(client.conversations.items.list(made.id)))
    assert first.model_extra == {"created_at": made.created_at}


@pytest.mark.each_database
def test_pages_of_all_items(client: OpenAI) -> None:
    conversation = new_conversation(client)
    for start in (0, 20):
        said = saying(*(str(number) for number in range(start, start + 20)))
        client.conversations.items.create(conversation, items=said)
    upwards = [str(number) for number in range(40)]
    page = client.conversations.items.list(conversation)
    assert texts(page.data) == upwards[:19:-1]
    assert page.has_more
    assert texts(page) == upwards[::-1], "the SDK turns the pages itself"
    assert texts(client.conversations.items.list(conversation, order="asc", limit=7)) == upwards
    last = client.conversations.items.list(conversation, order="asc", limit=100)
    assert (texts(last.data), last.has_more) == (upwards, False)
    raw = client.conversations.items.with_raw_response.list(conversation, limit=3, after=last.data[10].id, order="asc")
    assert len(validate_conversation_items(json.loads(raw.text))) == 3
    assert texts(raw.parse().data) == upwards[11:14]


def test_an_item_is_deleted_by_its_name_in_the_query_too(client: OpenAI) -> None:
    conversation = new_conversation(client, "One", "Two")
    first = client.conversations.items.list(conversation, order="asc").data[0]
    path = f"/conversations/{conversation}/items"
    left = client.delete(path, cast_to=Conversation, options={"params": {"item_id": first.id}})
    assert left.id == conversation
    assert texts(client.conversations.items.list(conversation)) == ["Two"]


def test_replayed_items_get_other_ids(client: OpenAI) -> None:
    conversation = new_conversation(client, "One")
    first = client.conversations.items.list(conversation).data[0]
    again = client.conversations.items.create(conversation, items=[first.to_dict(), first.to_dict()])  # type: ignore[list-item]
    ids = [first.id, *(item.id for item in again.data)]
    assert len(set(ids)) == 3
    assert texts(client.conversations.items.list(conversation)) == ["One"] * 3


def test_an_item_of_another_conversation_can_be_referred_to(client: OpenAI) -> None:
    one, other = new_conversation(client, "One"), new_conversation(client, "Other")
    first = client.conversations.items.list(one).data[0]
    reference: Any = {"type": "item_reference", "id": first.id}
    added = client.conversations.items.create(other, items=[reference])
    assert [item.id for item in added.data] == [first.id]
    assert texts(client.conversations.items.list(other, order="asc")) == ["Other", "One"]
    copied = client.conversations.create(items=[reference])
    assert texts(client.conversations.items.list(copied.id)) == ["One"]
    assert client.conversations.items.create(one, items=[reference]).data[0].id != first.id


def test_an_output_item_of_a_response_can_be_referred_to(client: OpenAI) -> None:
    response = client.responses.create(model=MODEL, input="count to 3")
    message = response.output[-1]
    reference: Any = {"type": "item_reference", "id": message.id}
    made = client.conversations.create(items=[reference])
    raw = client.conversations.items.with_raw_response.list(made.id)
    validate_conversation_items(json.loads(raw.text))
    assert texts(raw.parse()) == ["1 2 3"]


def test_hello_goes_in_and_out_as_it_is(client: OpenAI) -> None:
    untamed = "NUL \x00, \\u0000, 漢字, 🙂, \x1b, \u2028"
    made = client.conversations.create(metadata={untamed: untamed}, items=saying(untamed))
    assert client.conversations.retrieve(made.id).metadata == {untamed: untamed}
    assert texts(client.conversations.items.list(made.id)) == [untamed]


# Many at once.


@pytest.mark.each_database
async def test_appends_of_two_clients_stay_whole_and_in_order(demo_server: Server) -> None:
    async with async_sdk_of(demo_server) as one, async_sdk_of(demo_server) as other:
        made = await one.conversations.create()

        async def append(client: AsyncOpenAI, number: int) -> list[str]:
            items = saying(*(f"{number}.{part}" for part in range(3)))
            return texts((await client.conversations.items.create(made.id, items=items)).data)

        numbers = range(50)
        answers = await asyncio.gather(*(append((one, other)[number % 2], number) for number in numbers))
        assert answers == [[f"{number}.{part}" for part in range(3)] for number in numbers]
        said = texts([item async for item in one.conversations.items.list(made.id, order="asc", limit=100)])
    together = [said[start : start + 3] for start in range(0, 150, 3)]
    assert sorted(together) == sorted(answers)


# Settings.


@pytest.mark.each_database
async def test_no_more_conversations_than_the_maximum(folder: Path) -> None:
    with Server(folder, conversations_max_entries=2) as server:
        async with http_client(server) as http:
            made = [(await http.post("/conversations", json={})).json()["id"] for _ in range(2)]
            refused = await http.post("/conversations", json={})
            message = read_error_answer(refused, status=429, code="rate_limit_exceeded")
            assert "CONVERSATIONS_MAX_ENTRIES" in message
            assert (await http.post(f"/conversations/{made[0]}/items", json={"items": [HELLO]})).status_code == 200
            await http.delete(f"/conversations/{made[0]}")
            assert (await http.post("/conversations", json={})).status_code == 200


@pytest.mark.each_database
async def test_conversations_stay_without_the_store_and_after_a_restart(folder: Path) -> None:
    server = Server(folder, responses_store="off")
    with server:
        async with http_client(server) as http:
            made = (await http.post("/conversations", json={"items": [HELLO]})).json()
    with server:
        async with http_client(server) as http:
            assert (await http.get(f"/conversations/{made['id']}")).json() == made
            items = (await http.get(f"/conversations/{made['id']}/items")).json()
            validate_conversation_items(items)
            assert items["data"][0]["content"] == [{"type": "input_text", "text": "Hello"}]


JSON = {"content-type": "application/json"}
ALL, ONE, ITEMS = "/conversations", "/conversations/{0}", "/conversations/{0}/items"
CONTENT = {"items": [HELLO, HELLO, HELLO, {"role": "user", "content": 5}]}
REFERENCE = {"items": [HELLO, {"type": "item_reference", "id": "msg_0"}]}
PAIR, STATUS = {"metadata": {"a": 1}}, {"status": "s" * 513}
ANY, ADDED = {"include[]": "all"}, {"items": [HELLO]}
WRONG: dict[str, tuple[str, str, dict[str, Any], str | None, str]] = {  # what is sent, and the error's code and param
    "content of a new one": ("POST", ALL, {"json": CONTENT}, "invalid_type", "items[3].content"),
    "content that is added": ("POST", ITEMS, {"json": CONTENT}, "invalid_type", "items[3].content"),
    "a reference in a new one": ("POST", ALL, {"json": REFERENCE}, None, "items[1].id"),
    "a reference that is added": ("POST", ITEMS, {"json": REFERENCE}, None, "items[1].id"),
    "a pair of a new one": ("POST", ALL, {"json": PAIR}, "invalid_type", "metadata.a"),
    "a pair that is changed": ("POST", ONE, {"json": PAIR}, "invalid_type", "metadata.a"),
    "a long status of a new one": ("POST", ALL, {"json": STATUS}, "invalid_value", "status"),
    "a long status": ("POST", ONE, {"json": STATUS}, "invalid_value", "status"),
    "nothing to change": ("POST", ONE, {"json": {}}, "missing_required_parameter", "metadata"),
    "nothing to add": ("POST", ITEMS, {"json": {}}, "missing_required_parameter", "items"),
    "nothing to delete": ("DELETE", ITEMS, {}, "missing_required_parameter", "item_id"),
    "a cursor": ("GET", ITEMS, {"params": {"after": "msg_0"}}, "invalid_value", "after"),
    "a cursor of NUL": ("GET", ITEMS, {"params": {"after": "\0"}}, "invalid_value", "after"),
    "include of a list": ("GET", ITEMS, {"params": ANY}, "invalid_value", "include[0]"),
    "include of an item": ("GET", f"{ITEMS}/{{1}}", {"params": ANY}, "invalid_value", "include[0]"),
    "include of an addition": ("POST", ITEMS, {"params": ANY, "json": ADDED}, "invalid_value", "include[0]"),
    **{
        f"{body or 'nothing'} at {path}": ("POST", path, {"content": body, "headers": JSON}, "invalid_json", "")
        for path in (ALL, ONE, ITEMS) for body in ("{", "[1]", "", "null")
    },
}  # fmt: skip


@pytest.fixture
def http(demo_server: Server) -> Iterator[httpx.Client]:
    """A bare client: what is wrong does not depend on the server's kind."""
    with httpx.Client(base_url=demo_server.base_url, timeout=PATIENCE, verify=False) as client:
        yield client


@pytest.fixture
def conversation(http: httpx.Client) -> str:
    """A conversation with one item."""
    return str(http.post("/conversations", json={"items": [HELLO]}).json()["id"])


@pytest.mark.parametrize(("method", "path", "sent", "code", "param"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_refused_and_named(
    http: httpx.Client, conversation: str, method: str, path: str, sent: dict[str, Any], code: str | None, param: str
) -> None:
    [item] = http.get(f"/conversations/{conversation}/items").json()["data"]
    answer = http.request(method, path.format(conversation, item["id"]), **sent)
    read_error_answer(answer, status=400, code=code, param=param or None)
    assert http.get(f"/conversations/{conversation}/items").json()["data"] == [item]
    assert http.get(f"/conversations/{conversation}").json()["metadata"] == {}


@pytest.mark.parametrize("path", [ALL, ONE, ITEMS])
def test_another_content_type(http: httpx.Client, conversation: str, path: str) -> None:
    answer = http.post(path.format(conversation), content="{}", headers={"content-type": "text/plain"})
    read_error_answer(answer, status=415, code="unsupported_media_type")


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


def test_head_is_a_get_without_a_body(http: httpx.Client, conversation: str) -> None:
    answer = http.head(f"/conversations/{conversation}")
    assert (answer.status_code, answer.content) == (200, b"")
