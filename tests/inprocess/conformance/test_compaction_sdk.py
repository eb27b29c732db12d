"""Compaction through OpenAI's SDK: on request, in line, by a trigger; and counting tokens."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI

from responses_app.protocol.errors import JsonObject
from tests.kit.inprocess import Server
from tests.kit.laws import assert_laws
from tests.kit.oracle import validate_compacted, validate_event
from tests.kit.sdk import MODEL, PATIENCE, WEATHER, Chat, Refused, refusal, server_sent
from tests.kit.waiting import eventually

FROM_1000: Any = [{"type": "compaction", "compact_threshold": 1000}]
LONG = "word " * 1200


def outcome(client: OpenAI, **fields: Any) -> list[Any]:
    """Compact, hold the answer to OpenAI's types, and return its output: the user's messages, and one compaction."""
    raw = client.responses.with_raw_response.compact(**{"model": MODEL, **fields})
    validate_compacted(json.loads(raw.text))
    response = raw.parse()
    assert response.object == "response.compaction"
    assert response.usage.output_tokens > 0
    *said, item = response.output
    assert [(each.type, each.role) for each in said] == [("message", "user")] * len(said)  # type: ignore[union-attr]
    assert item.type == "compaction"
    return response.output


def compacted(client: OpenAI, **fields: Any) -> JsonObject:
    """Compact, and return the compaction alone."""
    item: JsonObject = outcome(client, **fields)[-1].model_dump(exclude_unset=True)
    return item


def tampered(item: JsonObject) -> JsonObject:
    """Return the item with one character changed."""
    content = str(item["encrypted_content"])
    return {**item, "encrypted_content": content[:50] + ("A" if content[50] != "A" else "B") + content[51:]}


def user(text: str) -> Any:
    """Return a message of the user."""
    return {"role": "user", "content": text}


# The SDK's type of the output has no user's messages: its own serializer warns of them, and sends them all the same.
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
def test_all_ways_of_going_on_from_it_are_one_prompt(client: OpenAI, chat: Chat) -> None:
    """All of the output as it came, as JSON, the one item, in a conversation, on a socket: no message comes twice."""
    history: Any = [user("One"), {"role": "assistant", "content": "So?"}, user("Two")]
    output = outcome(client, input=history, instructions="Be brief.")
    assert [item.content[0].text for item in output[:-1]] == ["One", "Two"]
    as_json: list[Any] = [item.model_dump(exclude_unset=True) for item in output]
    assert "Two" not in json.dumps(as_json[-1]), "it is sealed"
    conversation = client.conversations.create(items=as_json)
    ways = [
        client.responses.create(model=MODEL, input=[*output, user("Three")]),
        client.responses.create(model=MODEL, input=[*as_json, user("Three")]),
        client.responses.create(model=MODEL, input=[as_json[-1], user("Three")]),
        client.responses.create(model=MODEL, input="Three", conversation=conversation.id),
        chat.ask([*as_json, user("Three")], store=False),
    ]
    assert len({way.output_text for way in ways}) == 1
    assert len({way.usage.input_tokens for way in ways if way.usage}) == 1
    assert "user message 1 of this conversation, behind a summary of 2 before" in ways[0].output_text
    again = outcome(client, input=[*as_json, user("Three")])
    assert [item.content[0].text for item in again[:-1]] == ["One", "Two", "Three"]
    fourth = client.responses.create(model=MODEL, input=[*again, user("Four")])
    assert "user message 1 of this conversation, behind a summary of 3 before" in fourth.output_text


@pytest.mark.each_database
def test_a_chain_gives_its_users_messages(client: OpenAI) -> None:
    first = client.responses.create(model=MODEL, input="One")
    second = client.responses.create(model=MODEL, input="Two <|end|>", previous_response_id=first.id)
    said = outcome(client, previous_response_id=second.id, input="Three")[:-1]
    assert [item.content[0].text for item in said] == ["One", "Two <|end|>", "Three"]


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")  # as above
@pytest.mark.parametrize("turns", [1, 2])
def test_a_chain_that_begins_with_a_compaction_gives_all_its_users_messages(client: OpenAI, turns: int) -> None:
    """As the Agents SDK's session does it: what compact gave is the beginning of a chain, which is compacted by id."""
    output: Any = outcome(client, input=[user("One"), user("Two")])
    told = ["One", "Two"]
    for _ in range(2):
        last = client.responses.create(model=MODEL, input=[*output, user("Three")])
        told.append("Three")
        for _ in range(turns - 1):
            last = client.responses.create(model=MODEL, input="Four", previous_response_id=last.id)
            told.append("Four")
        output = outcome(client, previous_response_id=last.id)
        assert [item.content[0].text for item in output[:-1]] == told
    after = client.responses.create(model=MODEL, input=[*output, user("Five")])
    assert f"user message 1 of this conversation, behind a summary of {len(told)} before" in after.output_text


def test_a_changed_item_is_refused(client: OpenAI, chat: Chat) -> None:
    broken: Any = [user("x"), tampered(compacted(client, input="One"))]
    for call in (client.responses.create, client.responses.compact, client.responses.input_tokens.count):
        told = refusal(openai.BadRequestError, call, model=MODEL, input=broken)  # type: ignore[arg-type]
        assert (told.code, told.param) == ("invalid_encrypted_content", "input[1].encrypted_content")
    with pytest.raises(Refused) as refused:
        chat.ask(broken)
    assert refused.value.error["code"] == "invalid_encrypted_content"
    assert chat.ask("Hello").status == "completed"


REFUSALS: dict[str, tuple[str, JsonObject, int, str, str | None]] = {
    "no model": ("compact", {"input": "x", "model": None}, 400, "model", "missing_required_parameter"),
    "model": ("compact", {"input": "x", "model": "gpt-9"}, 404, "model", "model_not_found"),
    "parent": (
        "compact",
        {"previous_response_id": "resp_0"},
        400,
        "previous_response_id",
        "previous_response_not_found",
    ),
    "too long": ("compact", {"input": "word " * 140_000}, 400, "input", "context_length_exceeded"),
    "model to count for": ("input_tokens", {"input": "x", "model": "gpt-9"}, 404, "model", "model_not_found"),
    "conversation": ("input_tokens", {"input": "x", "conversation": "conv_0"}, 404, "conversation", None),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_what_cannot_be_compacted_or_counted_is_told(demo_server: Server, case: str) -> None:
    path, fields, status, param, code = REFUSALS[case]
    body = {name: value for name, value in {"model": MODEL, **fields}.items() if value is not None}
    answer = httpx.post(f"{demo_server.base_url}/responses/{path}", json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (status, param, code)
    assert set(error) == {"message", "type", "param", "code"}


# In line.


def test_a_long_chain_is_compacted_on_the_way(client: OpenAI) -> None:
    first = client.responses.create(model=MODEL, input=LONG, context_management=FROM_1000)
    assert [item.type for item in first.output] == ["reasoning", "message"]
    with client.responses.with_streaming_response.create(
        model=MODEL, input="Two", previous_response_id=first.id, context_management=FROM_1000, stream=True
    ) as streamed:
        events = server_sent(list(streamed.iter_lines()))
    for event in events:
        validate_event(event)
    assert_laws(events)
    assert [event["type"] for event in events[2:5]] == [
        "response.output_item.added",
        "response.compaction.compacting",
        "response.output_item.done",
    ]
    second = client.responses.retrieve(str(events[-1]["response"]["id"]))  # type: ignore[index]
    assert [item.type for item in second.output] == ["compaction", "reasoning", "message"]
    assert "behind a summary of 1 before" in second.output_text
    third: Any = client.responses.create(
        model=MODEL, input="Three", previous_response_id=second.id, context_management=FROM_1000
    )
    assert [item.type for item in third.output] == ["reasoning", "message"]
    assert third.usage.input_tokens < 500
    assert "user message 2 of this conversation, behind a summary of 1 before" in third.output_text


def test_a_conversation_goes_on_behind_its_compaction(client: OpenAI) -> None:
    conversation = client.conversations.create()
    client.responses.create(model=MODEL, input=LONG, conversation=conversation.id)
    second = client.responses.create(
        model=MODEL, input="Two", conversation=conversation.id, context_management=FROM_1000
    )
    assert second.output[0].type == "compaction"
    third = client.responses.create(
        model=MODEL, input="Three", conversation=conversation.id, context_management=FROM_1000
    )
    assert "user message 2 of this conversation, behind a summary of 1 before" in third.output_text
    listed = client.conversations.items.list(conversation.id, order="asc", limit=100)
    assert [item.type for item in listed].count("compaction") == 1


# By a trigger.


async def test_leaving_a_compaction_leaves_nothing_running(tmp_path: Path) -> None:
    script = [{"when": "handoff summary", "say": "<|channel|>final<|message|>They<|return|>", "hang_after": 4}]
    with Server(tmp_path / "server", script=script) as server:

        def running() -> int:
            return int(httpx.get(f"{server.url}/ready").json()["responses_in_flight"])

        async with httpx.AsyncClient(timeout=PATIENCE) as http:
            asked = asyncio.create_task(
                http.post(f"{server.base_url}/responses/compact", json={"model": "scripted", "input": "x"})
            )
            await eventually(lambda: running() == 1)
            asked.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asked
            await eventually(lambda: running() == 0)


# Counting.


def test_counted_tokens_are_those_that_are_used(client: OpenAI) -> None:
    item = compacted(client, input="One")
    first = client.responses.create(model=MODEL, input="One")
    conversation = client.conversations.create(items=[user("One")])
    cases: list[dict[str, Any]] = [
        {"input": "Hello"},
        {"input": "Hello", "instructions": "Be brief.", "tools": [WEATHER], "reasoning": {"effort": "high"}},
        {"input": [item, user("Two")]},
        {"input": "Two", "previous_response_id": first.id},
        {"input": "Two", "conversation": conversation.id},
    ]
    for fields in cases:
        raw = client.responses.input_tokens.with_raw_response.count(model=MODEL, **fields)
        counted = json.loads(raw.text)
        assert set(counted) == {"object", "input_tokens"}
        assert raw.parse().object == "response.input_tokens"
        response: Any = client.responses.create(model=MODEL, **fields)
        assert counted["input_tokens"] == response.usage.input_tokens
