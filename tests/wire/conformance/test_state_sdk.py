"""`client.responses` of OpenAI's Python SDK by id: read, delete, cancel, list the input, run in the background.

On SQLite and on PostgreSQL.
"""

import json
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from tests.kit.oracle import validate_response
from tests.kit.scripts import WEATHER, gate, release
from tests.kit.server import Server
from tests.wire.conformance.state import (  # noqa: F401 - fixtures
    MODEL,
    RUNNING,
    asked,
    async_state_client,
    in_background,
    retrieved,
    started_servers,
    state_client,
    state_server,
    until,
)

# Reading.


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"input": "Hello", "metadata": {"a": "b"}, "user": "u"}, "completed"),
        ({"input": "[long]", "max_output_tokens": 10}, "incomplete"),
        ({"input": "[break]"}, "failed"),
        ({"input": "[weather]", "tools": [WEATHER]}, "completed"),
    ],
    ids=["completed", "incomplete", "failed", "call"],
)
def test_a_response_is_read_as_it_was_answered(client: OpenAI, fields: dict[str, Any], status: str) -> None:
    raw = client.responses.with_raw_response.create(model=MODEL, **fields)
    body = json.loads(raw.text)
    assert body["status"] == status
    assert body["store"] is True
    again = client.responses.with_raw_response.retrieve(raw.parse().id, include=["message.output_text.logprobs"])
    assert json.loads(again.text) == body
    validate_response(body)


def test_a_response_is_read_while_it_waits_and_while_it_runs(client: OpenAI) -> None:
    with in_background(client, "[hang]", "Hello") as (first, second):
        assert (first.status, second.status, second.output) == ("queued", "queued", [])
        assert until(client, first.id, "in_progress").output == []
        assert retrieved(client, second.id).status == "queued"
        assert [item.content[0].text for item in asked(client, second.id)] == ["Hello"]


async def test_reading_with_async(async_client: AsyncOpenAI) -> None:
    response = await async_client.responses.create(model=MODEL, input="Hello")
    assert (await async_client.responses.retrieve(response.id)).to_dict() == response.to_dict()
    items = [item async for item in async_client.responses.input_items.list(response.id)]
    assert [item.type for item in items] == ["message"]
    await async_client.responses.delete(response.id)
    with pytest.raises(openai.NotFoundError):
        await async_client.responses.retrieve(response.id)


# Deleting.


def test_what_is_deleted_is_gone(client: OpenAI) -> None:
    response = client.responses.create(model=MODEL, input="Hello")
    raw = client.responses.with_raw_response.delete(response.id)
    assert json.loads(raw.text) == {"id": response.id, "object": "response", "deleted": True}
    for gone in (
        client.responses.retrieve,
        client.responses.delete,
        client.responses.cancel,
        client.responses.input_items.list,
        lambda response_id: client.responses.retrieve(response_id, stream=True),
    ):
        with pytest.raises(openai.NotFoundError) as raised:
            gone(response.id)
        assert (raised.value.type, raised.value.param) == ("invalid_request_error", "response_id")
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(model=MODEL, input="And?", previous_response_id=response.id)
    assert refused.value.code == "previous_response_not_found"


def test_what_continues_a_deleted_response_goes_on(client: OpenAI) -> None:
    first = client.responses.create(model=MODEL, input="Hello")
    second = client.responses.create(model=MODEL, input="And?", previous_response_id=first.id)
    client.responses.delete(first.id)
    assert retrieved(client, second.id).previous_response_id == first.id
    third = client.responses.create(model=MODEL, input="And then?", previous_response_id=second.id)
    assert third.usage is not None
    assert second.usage is not None
    assert third.usage.input_tokens > second.usage.total_tokens
    client.responses.delete(second.id)
    client.responses.delete(third.id)


def test_a_background_response_is_deleted_while_it_runs(client: OpenAI) -> None:
    with in_background(client, "Hello") as (other,):
        until(client, other.id, "completed")
    created = client.responses.create(model=MODEL, input="[hang]", background=True)
    until(client, created.id, "in_progress")
    client.responses.delete(created.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(created.id)
    with in_background(client, "Hello") as (next_one,):  # it has made room
        until(client, next_one.id, "completed")
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(created.id)


# Cancelling.


def test_a_background_response_is_cancelled_once_and_again(client: OpenAI) -> None:
    response_id = ""
    with client.responses.create(model=MODEL, input="[hang]", background=True, stream=True) as events:
        for event in events:
            if event.type == "response.created":
                response_id = event.response.id
            elif event.type == "response.output_text.delta":
                break
    raw = client.responses.with_raw_response.cancel(response_id)
    validate_response(json.loads(raw.text))
    response = raw.parse()
    assert (response.status, response.background) == ("cancelled", True)
    assert response.output_text.startswith(event.delta)
    assert response.output[0].status == "incomplete"  # type: ignore[union-attr]
    for again in (client.responses.cancel, client.responses.retrieve):
        assert again(response_id).to_dict() == response.to_dict()


def test_one_that_waits_is_cancelled(client: OpenAI) -> None:
    with in_background(client, "[hang]", "Hello") as (_, waiting):
        response = client.responses.cancel(waiting.id)
        assert (response.status, response.output) == ("cancelled", [])
        assert retrieved(client, waiting.id).to_dict() == response.to_dict()


def test_what_has_ended_or_is_synchronous_cannot_be_cancelled(client: OpenAI) -> None:
    with in_background(client, "Hello") as (ended,):
        until(client, ended.id, "completed")
    for response_id in (ended.id, client.responses.create(model=MODEL, input="Hello").id):
        with pytest.raises(openai.BadRequestError) as refused:
            client.responses.cancel(response_id)
        assert refused.value.param == "response_id"
        assert retrieved(client, response_id).status == "completed"


# What a response was asked.

ITEMS: list[Any] = [
    {"role": "user", "content": "One"},
    {"type": "message", "role": "user", "id": "mine", "content": [{"type": "input_text", "text": "Two"}]},
    {"role": "assistant", "content": "Three", "id": "msg_nobody_has_seen"},
    {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Four"}]},
    {"type": "function_call", "call_id": "call_1", "name": "get_weather", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "call_1", "output": "Five"},
    {"role": "developer", "content": [{"type": "input_text", "text": "Six"}]},
    {"type": "local_shell_call", "id": "lsh_1", "call_id": "c", "status": "completed",
     "action": {"type": "exec", "command": ["ls"], "env": {}}},
    {"type": "custom_tool_call", "call_id": "c2", "name": "patch", "input": "x"},
    {"type": "function_call_output", "call_id": "c", "output": "README"},
    {"type": "custom_tool_call_output", "call_id": "c2", "output": "done"},
    {"role": "user", "content": "Last"},
]  # fmt: skip


def test_items_of_every_kind_are_listed_as_openai_has_them(client: OpenAI) -> None:
    response = client.responses.create(model=MODEL, input=ITEMS, tools=[WEATHER])
    items = asked(client, response.id, order="asc", include=["reasoning.encrypted_content"])
    kinds = [item.get("type", "message") for item in ITEMS]
    assert [item.type for item in items] == kinds
    assert [item.id for item in items][1:3] == ["mine", "msg_nobody_has_seen"]
    assert len({item.id for item in items}) == len(items)
    assert [item.id for item in asked(client, response.id)] == [item.id for item in items][::-1]


def test_a_string_is_a_message(client: OpenAI) -> None:
    response = client.responses.create(model=MODEL, input="Hello")
    (item,) = asked(client, response.id)
    assert (item.role, item.content[0].text) == ("user", "Hello")
    assert item.id.startswith("msg_")


def test_pages(client: OpenAI) -> None:
    said = [str(number) for number in range(45)]
    response = client.responses.create(model=MODEL, input=[{"role": "user", "content": text} for text in said])

    def texts(items: Any) -> list[str]:
        return [item.content[0].text for item in items]

    page = client.responses.input_items.list(response.id)
    assert (texts(page.data), page.has_more) == (said[:-21:-1], True)
    assert texts(page) == said[::-1], "the SDK turns the pages itself"
    assert texts(client.responses.input_items.list(response.id, order="asc", limit=7)) == said
    whole = client.responses.input_items.list(response.id, order="asc", limit=100)
    assert (texts(whole.data), whole.has_more) == (said, False)
    assert texts(asked(client, response.id, order="asc", limit=2, after=whole.data[10].id)) == said[11:13]
    assert texts(asked(client, response.id, order="desc", limit=2, after=whole.data[10].id)) == [said[9], said[8]]
    assert asked(client, response.id, order="asc", after=whole.data[-1].id) == []


def test_only_what_is_new_is_listed_of_a_response_that_continues(client: OpenAI) -> None:
    first = client.responses.create(model=MODEL, input="One")
    second = client.responses.create(model=MODEL, input="Two", previous_response_id=first.id)
    assert [item.content[0].text for item in asked(client, second.id)] == ["Two"]
    only = client.responses.create(model=MODEL, previous_response_id=second.id)
    assert asked(client, only.id) == []


def test_replayed_items_collide_with_nothing(client: OpenAI) -> None:
    """Agents keep the items themselves: those with our ids, with their own, and without any, again and again."""
    history: list[Any] = [{"role": "user", "content": "One"}, {"role": "user", "content": "Two", "id": "mine"}]
    responses = []
    for _ in range(3):
        responses.append(client.responses.create(model=MODEL, input=history))
        history += [item.to_dict() for item in responses[-1].output]
        history += [item.to_dict() for item in responses[-1].output]  # twice: the same id again
        history += [item.to_dict() for item in asked(client, responses[-1].id, order="asc")]
    for response in responses:
        assert retrieved(client, response.id).status == "completed"
        ids = [item.id for item in client.responses.input_items.list(response.id, limit=100)]
        assert len(set(ids)) == len(ids)
        client.responses.delete(response.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(responses[0].id)


def test_an_item_is_referred_to_by_its_id(client: OpenAI) -> None:
    first = client.responses.create(model=MODEL, input="Hello")
    reference: Any = {"type": "item_reference", "id": first.output[-1].id}
    second = client.responses.create(model=MODEL, input=[reference, {"role": "user", "content": "And?"}])
    items = asked(client, second.id, order="asc")
    assert [item.type for item in items] == ["message", "message"]
    assert (items[0].role, items[0].content[0].text) == ("assistant", first.output_text)
    client.responses.delete(first.id)
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(model=MODEL, input=[reference])
    assert refused.value.param == "input[0].id"
    assert asked(client, second.id, order="asc") == items


# In the background.


def test_a_background_response_is_polled_to_its_end(client: OpenAI, server: Server) -> None:
    with in_background(client, gate("a0")) as (created,):
        assert (created.status, created.background, created.output) == ("queued", True, [])
        running = until(client, created.id, "in_progress")
        assert (running.id, running.created_at) == (created.id, created.created_at)
        release(server, "a0")
        done = until(client, created.id, "completed")
    assert done.output_text == "Hello there, friend."
    assert done.usage is not None
    assert done.completed_at is not None
    assert [item.content[0].text for item in asked(client, done.id)] == [gate("a0")]


async def test_a_background_response_is_polled_with_async(async_client: AsyncOpenAI) -> None:
    response = await async_client.responses.create(model=MODEL, input="Hello", background=True)
    while response.status in RUNNING:
        response = await async_client.responses.retrieve(response.id)
    assert response.output_text == "Hello there, friend."


def test_a_background_response_is_continued(client: OpenAI) -> None:
    with in_background(client, "[hang]") as (running,):
        until(client, running.id, "in_progress")
        with pytest.raises(openai.BadRequestError) as refused:
            client.responses.create(model=MODEL, input="And?", previous_response_id=running.id)
        assert refused.value.code == "previous_response_in_progress"
    with in_background(client, "Hello") as (first,):
        until(client, first.id, "completed")
    second = client.responses.create(model=MODEL, input="And?", previous_response_id=first.id, background=True)
    done = until(client, second.id, "completed")
    assert (done.previous_response_id, done.output_text) == (first.id, "Hello there, friend.")


def test_one_that_was_cancelled_cannot_be_continued(client: OpenAI) -> None:
    with in_background(client, "[hang]") as (running,):
        until(client, running.id, "in_progress")
        client.responses.cancel(running.id)
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(model=MODEL, input="And?", previous_response_id=running.id)
    assert refused.value.code == "previous_response_not_found"


def test_a_background_response_in_a_conversation(client: OpenAI) -> None:
    conversation = client.conversations.create(items=[{"role": "user", "content": "One"}])
    raw = client.responses.with_raw_response.create(
        model=MODEL, input="Two", conversation=conversation.id, background=True
    )
    done = until(client, raw.parse().id, "completed")
    assert done.conversation is not None
    assert done.conversation.id == conversation.id
    items: list[Any] = list(client.conversations.items.list(conversation.id, order="asc"))
    assert [item.content[0].text for item in items] == ["One", "Two", done.output_text]
