"""OpenAI's Python SDK, as it is, with stored chat completions: read, listed, changed, deleted."""

from collections.abc import Iterable
from typing import Any
from uuid import uuid4

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.chat import ChatCompletion

from tests.inprocess.conformance.test_chat_sdk import TOOL, asked
from tests.kit.pictures import data_url, picture
from tests.kit.sdk import MODEL, TWO_CALLS

STORED: Any = {"model": MODEL, "store": True}


def as_said(completion: ChatCompletion) -> dict[str, Any]:
    """Return a completion as it was sent, without its metadata, which only stored ones have."""
    return completion.model_dump(exclude={"metadata"}, exclude_unset=True)


def ids(found: Iterable[Any]) -> list[str]:
    """Return the ids of what was found."""
    return [each.id for each in found]


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": asked(TWO_CALLS), "tools": [TOOL], "n": 2},
        {"messages": asked("count to 9"), "stop": ["5"], "extra_body": {"include_reasoning": False}},
        {
            "messages": asked("call get_weather for Paris"),
            "functions": [TOOL["function"]],
            "function_call": {"name": "get_weather"},
        },
    ],
    ids=["two choices with calls", "a stop string", "the older form"],
)
def test_a_completion_comes_back_as_it_was_said(client: OpenAI, fields: Any) -> None:
    said = client.chat.completions.create(**STORED, **fields)
    kept = client.chat.completions.retrieve(said.id)
    assert as_said(kept) == as_said(said)
    assert kept.metadata == {}


def test_a_stream_is_stored_too(client: OpenAI) -> None:
    stream = client.chat.completions.create(**STORED, messages=asked("count to 3"), stream=True)
    chunks = list(stream)
    kept = client.chat.completions.retrieve(chunks[0].id)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert kept.choices[0].message.content == text
    assert kept.system_fingerprint == chunks[0].system_fingerprint


@pytest.mark.each_database
async def test_lists_metadata_and_deleting(async_client: AsyncOpenAI) -> None:
    completions, mark = async_client.chat.completions, uuid4().hex
    said = [
        await completions.create(**STORED, messages=asked("count to 1"), metadata={"mark": mark, "n": str(number)})
        for number in range(3)
    ]
    made = ids(said)
    assert ids([each async for each in completions.list(metadata={"mark": mark}, limit=1)]) == made
    assert ids([each async for each in completions.list(metadata={"mark": mark}, limit=2, order="desc")]) == made[::-1]
    assert ids((await completions.list(metadata={"mark": mark}, after=made[0], model=MODEL)).data) == made[1:]
    assert (await completions.list(metadata={"mark": mark}, model="another")).data == []
    assert (await completions.list(metadata={"mark": mark, "n": "1"})).data[0].metadata == {"mark": mark, "n": "1"}
    changed = await completions.update(made[1], metadata={"mark": mark, "n": "new"})
    assert changed.metadata == {"mark": mark, "n": "new"}
    assert as_said(changed) == as_said(said[1])
    assert ids((await completions.list(metadata={"n": "new", "mark": mark})).data) == [made[1]]
    deleted = await completions.delete(made[0])
    assert (deleted.id, deleted.deleted, deleted.object) == (made[0], True, "chat.completion.deleted")
    assert ids((await completions.list(metadata={"mark": mark})).data) == made[1:]
    with pytest.raises(openai.NotFoundError):
        await completions.retrieve(made[0])
    with pytest.raises(openai.NotFoundError):
        await async_client.responses.retrieve(made[0].replace("chatcmpl-", "resp_"))
    with pytest.raises(openai.NotFoundError):
        await completions.delete(made[0])
    assert ids((await completions.list(metadata={"mark": mark}, after=made[0])).data) == made[1:], "it is still a place"


@pytest.mark.each_database
def test_the_messages_come_back_as_they_were_sent(client: OpenAI) -> None:
    parts = [
        {"type": "text", "text": "Look"},
        {"type": "image_url", "image_url": {"url": data_url(picture())}},
    ]
    messages: Any = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": parts, "name": "ann"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}
            ],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "18"},
    ]
    said = client.chat.completions.create(**STORED, messages=messages, tools=[TOOL])
    kept = list(client.chat.completions.messages.list(said.id, limit=1))
    assert ids(kept) == [f"{said.id}-{place}" for place in range(4)]
    assert [each.content for each in kept] == ["Be brief.", "Look", None, "18"]
    assert kept[1].content_parts is not None
    assert [part.model_dump(exclude_unset=True) for part in kept[1].content_parts] == parts
    assert kept[0].content_parts is None
    assert kept[2].tool_calls is not None
    assert kept[2].tool_calls[0].model_dump(exclude_unset=True) == messages[2]["tool_calls"][0]
    last = client.chat.completions.messages.list(said.id, order="desc", after=kept[2].id)
    assert ids(last.data) == [kept[1].id, kept[0].id]


def test_what_is_not_to_be_stored_is_not(client: OpenAI) -> None:
    for fields in ({}, {"store": False}):
        said = client.chat.completions.create(model=MODEL, messages=asked("count to 1"), **fields)  # type: ignore[arg-type]
        with pytest.raises(openai.NotFoundError, match="'store': true"):
            client.chat.completions.retrieve(said.id)
        with pytest.raises(openai.NotFoundError):
            client.chat.completions.messages.list(said.id)
    response = client.responses.create(model=MODEL, input="count to 1")
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.retrieve(response.id)
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.retrieve(response.id.replace("resp_", "chatcmpl-"))
