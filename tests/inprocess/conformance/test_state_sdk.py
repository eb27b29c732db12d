"""`client.responses` of OpenAI's Python SDK by id: read, deleted, listed, run in the background, streamed again."""

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import openai
import pytest
from openai import OpenAI
from openai.types.responses import Response

from tests.kit.fixtures import module_sdk, module_server
from tests.kit.inprocess import Server
from tests.kit.laws import assert_laws
from tests.kit.oracle import validate_event, validate_response, validate_response_items
from tests.kit.scripts import WEATHER, gate, main_script, release
from tests.kit.sdk import PATIENCE, Chat, refusal, sdk_of, server_sent
from tests.kit.waiting import looks

MODEL = "test-model"
RUNNING = ("queued", "in_progress")


# It runs one background response at a time.
server = module_server(
    "state", Server, script=main_script, model_name=MODEL, background_max_running=1, reconnect_grace_seconds=30
)


client = module_sdk()


def retrieved(client: OpenAI, response_id: str, **options: Any) -> Response:
    """Read a response and hold it to OpenAI's types."""
    raw = client.responses.with_raw_response.retrieve(response_id, **options)
    validate_response(json.loads(raw.text))
    return raw.parse()


def until(client: OpenAI, response_id: str, *statuses: str) -> Response:
    """Read a response until it has one of these states."""
    for _ in looks(PATIENCE):
        response = retrieved(client, response_id)
        if response.status in statuses:
            return response
        assert response.status in RUNNING, response
    raise AssertionError(response)


@contextmanager
def in_background(client: OpenAI, *inputs: str) -> Iterator[list[Response]]:
    """Create background responses; those that still run at the end are cancelled, so that others have their turn."""
    created = []
    for text in inputs:
        raw = client.responses.with_raw_response.create(model=MODEL, input=text, background=True)
        validate_response(json.loads(raw.text))
        created.append(raw.parse())
    yield created
    for response in created:
        with suppress(openai.BadRequestError):  # it has ended
            client.responses.cancel(response.id)


def asked(client: OpenAI, response_id: str, **options: Any) -> list[Any]:
    """List the first page of what a response was asked, and hold it to OpenAI's types."""
    raw = client.responses.input_items.with_raw_response.list(response_id, **options)
    validate_response_items(json.loads(raw.text))
    return list(raw.parse().data)


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
@pytest.mark.each_database
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


@pytest.mark.each_database
def test_items_of_every_kind_are_listed_as_openai_has_them(client: OpenAI) -> None:
    response = client.responses.create(model=MODEL, input=ITEMS, tools=[WEATHER])
    items = asked(client, response.id, order="asc", include=["reasoning.encrypted_content"])
    kinds = [item.get("type", "message") for item in ITEMS]
    assert [item.type for item in items] == kinds
    assert [item.id for item in items][1:3] == ["mine", "msg_nobody_has_seen"]
    assert len({item.id for item in items}) == len(items)
    assert [item.id for item in asked(client, response.id)] == [item.id for item in items][::-1]


@pytest.mark.each_database
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


@pytest.mark.each_database
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
    refusal(openai.NotFoundError, client.responses.retrieve, responses[0].id)


@pytest.mark.each_database
def test_an_item_is_referred_to_by_its_id(client: OpenAI) -> None:
    first = client.responses.create(model=MODEL, input="Hello")
    reference: Any = {"type": "item_reference", "id": first.output[-1].id}
    second = client.responses.create(model=MODEL, input=[reference, {"role": "user", "content": "And?"}])
    items = asked(client, second.id, order="asc")
    assert [item.type for item in items] == ["message", "message"]
    assert (items[0].role, items[0].content[0].text) == ("assistant", first.output_text)
    client.responses.delete(first.id)
    assert (
        refusal(openai.BadRequestError, client.responses.create, model=MODEL, input=[reference]).param == "input[0].id"
    )
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


@pytest.mark.each_database
def test_a_background_response_in_a_conversation(client: OpenAI) -> None:
    conversation = client.conversations.create(items=[{"role": "user", "content": "One"}])
    raw = client.responses.with_raw_response.create(
        model=MODEL, input="Two", conversation=conversation.id, background=True
    )
    done: Any = until(client, raw.parse().id, "completed")
    assert done.conversation.id == conversation.id
    items: list[Any] = list(client.conversations.items.list(conversation.id, order="asc"))
    assert [item.content[0].text for item in items] == ["One", "Two", done.output_text]


# Streamed again.


def lines_of(client: OpenAI, response_id: str, **options: Any) -> list[Any]:
    """Pick up a stream and return its events, each held to OpenAI's types."""
    with client.responses.with_streaming_response.retrieve(response_id, stream=True, **options) as streamed:
        assert streamed.headers["content-type"].startswith("text/event-stream")
        events = server_sent(list(streamed.iter_lines()))
    for event in events:
        validate_event(event)
    return events


@pytest.mark.parametrize("made", ["background", "sse", "websocket"])
@pytest.mark.each_database
def test_a_stream_is_picked_up_behind_any_event(client: OpenAI, made: str) -> None:
    if made == "websocket":
        with client.responses.connect() as connection:
            response_id = Chat(connection).ask("Hello", model=MODEL).id
    else:
        background = made == "background"
        with client.responses.create(model=MODEL, input="Hello", background=background, stream=True) as events:
            response_id = next(events).response.id  # type: ignore[union-attr]
            for _ in events:
                pass
    whole = lines_of(client, response_id)
    assert_laws(whole)
    assert whole[-1]["response"] == client.responses.retrieve(response_id).to_dict()
    for number in range(len(whole)):
        assert lines_of(client, response_id, starting_after=number) == whole[number + 1 :]


def test_a_live_stream_is_picked_up_and_goes_on(client: OpenAI, server: Server) -> None:
    text = gate("b0")
    with client.responses.create(model=MODEL, input=text, background=True, stream=True) as events:
        seen = []
        for event in events:
            seen.append(event)
            if event.type == "response.output_text.delta":
                break
    response_id = seen[0].response.id  # type: ignore[union-attr]
    resumed = client.responses.retrieve(response_id, stream=True, starting_after=seen[-1].sequence_number)
    release(server, "b0")
    with resumed:
        seen += resumed
    assert_laws([event.to_dict() for event in seen])  # type: ignore[misc]
    assert seen[-1].response.status == "completed"  # type: ignore[union-attr]


def test_the_stream_helper_picks_up_a_response(client: OpenAI) -> None:
    with client.responses.stream(model=MODEL, input="Hello", background=True) as stream:
        first = next(iter(stream))
    with client.responses.stream(response_id=first.response.id) as again:  # type: ignore[union-attr]
        said = "".join(event.delta for event in again if event.type == "response.output_text.delta")
        final = again.get_final_response()
    assert said == final.output_text == "Hello there, friend."


# Without a store.


@pytest.fixture(scope="module")
def forgetful(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenAI]:
    """A client of a server that stores no responses."""
    folder = tmp_path_factory.mktemp("forgetful")
    with (
        Server(folder, script=main_script(folder), model_name=MODEL, responses_store="off") as server,
        sdk_of(server) as client,
    ):
        yield client


def test_without_a_store_nothing_is_found(forgetful: OpenAI) -> None:
    response: Any = forgetful.responses.create(model=MODEL, input="Hello", store=True)
    assert response.store is False
    with forgetful.responses.stream(model=MODEL, input="Hello") as stream:
        streamed = stream.get_final_response()
    for response_id in (response.id, streamed.id):
        for find in (forgetful.responses.retrieve, forgetful.responses.input_items.list, forgetful.responses.delete):
            refusal(openai.NotFoundError, find, response_id)
        more = {"model": MODEL, "input": "And?", "previous_response_id": response_id}
        told = refusal(openai.BadRequestError, forgetful.responses.create, **more)
        assert told.code == "previous_response_not_found"


def test_without_a_store_a_connection_remembers(forgetful: OpenAI) -> None:
    with forgetful.responses.connect() as connection:
        chat = Chat(connection)
        first = chat.ask("Hello", model=MODEL)
        assert chat.ask("And?", model=MODEL).previous_response_id == first.id
    more = {"model": MODEL, "input": "And?", "previous_response_id": first.id}
    refusal(openai.BadRequestError, forgetful.responses.create, **more)
