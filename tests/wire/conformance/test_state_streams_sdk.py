"""Streams that OpenAI's Python SDK picks up, on each database and kind of server; and what there is without a store."""

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from tests.kit.laws import assert_laws
from tests.kit.oracle import validate_event
from tests.kit.scripts import gate, main_script, release
from tests.kit.sdk import Chat, sdk_of, server_sent
from tests.kit.server import Server
from tests.wire.conformance.state import (  # noqa: F401 - fixtures
    MODEL,
    async_state_client,
    on_all_kinds,
    started_servers,
    state_client,
    state_server,
)


def test_a_streamed_response_is_read_as_its_last_event_told_it(client: OpenAI) -> None:
    *_, last = client.responses.create(model=MODEL, input="Hello", stream=True)
    assert last.type == "response.completed"
    assert client.responses.retrieve(last.response.id).to_dict() == last.response.to_dict()
    with client.responses.connect() as connection:
        response = Chat(connection).ask("Hello", model=MODEL)
    assert client.responses.retrieve(response.id).to_dict() == response.to_dict()


def lines_of(client: OpenAI, response_id: str, **options: Any) -> list[Any]:
    """Pick up a stream and return its events, each held to OpenAI's types."""
    with client.responses.with_streaming_response.retrieve(response_id, stream=True, **options) as streamed:
        assert streamed.headers["content-type"].startswith("text/event-stream")
        events = server_sent(list(streamed.iter_lines()))
    for event in events:
        validate_event(event)
    return events


@on_all_kinds
def test_a_background_response_is_streamed(client: OpenAI) -> None:
    with client.responses.with_streaming_response.create(
        model=MODEL, input="Hello", background=True, stream=True
    ) as streamed:
        events: list[Any] = server_sent(list(streamed.iter_lines()))
    for event in events:
        validate_event(event)
    assert_laws(events)
    assert [event["type"] for event in events[:3]] == ["response.created", "response.queued", "response.in_progress"]
    assert [event["response"]["status"] for event in events[:3]] == ["queued", "queued", "in_progress"]
    assert client.responses.retrieve(events[0]["response"]["id"]).to_dict() == events[-1]["response"]


@on_all_kinds
@pytest.mark.parametrize("made", ["background", "sse", "websocket"])
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


@on_all_kinds
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


async def test_a_live_stream_is_picked_up_with_async(async_client: AsyncOpenAI, server: Server) -> None:
    seen: list[Any] = []
    stream = await async_client.responses.create(model=MODEL, input=gate("b1"), stream=True)
    async for event in stream:
        seen.append(event)
        if event.type == "response.output_text.delta":
            break
    await stream.close()
    response_id = seen[0].response.id
    resumed = await async_client.responses.retrieve(response_id, stream=True, starting_after=seen[-1].sequence_number)
    release(server, "b1")
    seen += [event async for event in resumed]
    assert_laws([event.to_dict() for event in seen])
    assert (await async_client.responses.retrieve(response_id)).output_text == "Hello there, friend."


def test_the_stream_helper_picks_up_a_response(client: OpenAI) -> None:
    with client.responses.stream(model=MODEL, input="Hello", background=True) as stream:
        first = next(iter(stream))
    with client.responses.stream(response_id=first.response.id) as again:  # type: ignore[union-attr]
        said = "".join(event.delta for event in again if event.type == "response.output_text.delta")
        final = again.get_final_response()
    assert said == final.output_text == "Hello there, friend."


def test_what_was_not_streamed_can_be_all_the_same(client: OpenAI) -> None:
    response = client.responses.create(model=MODEL, input="Hello")
    events = list(client.responses.retrieve(response.id, stream=True))
    assert_laws([event.to_dict() for event in events])
    assert events[-1].response == response  # type: ignore[union-attr]


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
            with pytest.raises(openai.NotFoundError):
                find(response_id)
        with pytest.raises(openai.BadRequestError) as refused:
            forgetful.responses.create(model=MODEL, input="And?", previous_response_id=response_id)
        assert refused.value.code == "previous_response_not_found"


def test_without_a_store_there_is_no_background(forgetful: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="RESPONSES_STORE") as refused:
        forgetful.responses.create(model=MODEL, input="Hello", background=True)
    assert refused.value.param == "background"


def test_without_a_store_a_connection_remembers(forgetful: OpenAI) -> None:
    with forgetful.responses.connect() as connection:
        chat = Chat(connection)
        first = chat.ask("Hello", model=MODEL)
        assert chat.ask("And?", model=MODEL).previous_response_id == first.id
    with pytest.raises(openai.BadRequestError):
        forgetful.responses.create(model=MODEL, input="And?", previous_response_id=first.id)
