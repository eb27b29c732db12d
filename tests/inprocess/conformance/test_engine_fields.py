"""Fields that reach into the engine, through OpenAI's SDK: log probabilities, cache keys, tiers, and vLLM's own."""

import json
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI

from engine.formats.harmony.encoding import decode_tokens
from tests.kit.fixtures import module_sdk, module_server
from tests.kit.inprocess import Server
from tests.kit.pictures import data_url, picture
from tests.kit.sdk import refusal

THINKS = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>So.<|return|>"
SCRIPT = [
    {"when": "[think]", "say": THINKS},
    {"say": "<|channel|>final<|message|>Good day.<|return|>", "chunk_tokens": 2},
]


TIERS = "auto,default,flex,priority"  # all but `scale`
server = module_server("fields", Server, script=SCRIPT, journal=True, responses_allowed_service_tiers=TIERS)
client = module_sdk()


@pytest.fixture
def journal(server: Server) -> Path:
    """Where the engine writes what it was asked for."""
    return server.folder / "journal.jsonl"


def test_logprobs_over_http_and_in_a_stream(client: OpenAI) -> None:
    asked = {"model": "scripted", "input": "hi", "top_logprobs": 2, "include": ["message.output_text.logprobs"]}
    response = client.responses.create(**asked)  # type: ignore[call-overload]
    part = response.output[0].content[0]
    assert "".join(entry.token for entry in part.logprobs) == part.text == "Good day."
    assert [len(entry.top_logprobs) for entry in part.logprobs] == [2, 2, 2]
    with client.responses.stream(**asked) as stream:
        deltas = [event for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert "".join(entry.token for delta in deltas for entry in delta.logprobs) == "Good day."
    assert final.output[0].content[0].logprobs == part.logprobs  # type: ignore[union-attr]


def test_keys_and_tiers_reach_the_engine(client: OpenAI, journal: Path) -> None:
    for key, tier in (("a", "fast"), ("b", "flex"), ("a", "auto")):
        response = client.responses.create(input="hi", prompt_cache_key=key, service_tier=tier)  # type: ignore[call-overload]
        assert response.service_tier == {"fast": "priority", "auto": "default"}.get(tier, tier)
        assert response.prompt_cache_key == key
    urgent, patient, normal = (json.loads(line) for line in journal.read_text().splitlines()[-3:])
    assert urgent["priority"] < normal["priority"] < patient["priority"]
    assert urgent["cache_salt"] == normal["cache_salt"] != patient["cache_salt"]
    for name, wrong in (("service_tier", "scale"), ("prompt_cache_key", "")):
        assert refusal(openai.BadRequestError, client.responses.create, input="hi", **{name: wrong}).param == name


BEFORE = {"previous_input_messages": [{"role": "user", "content": "Before."}]}
OPEN = {
    **{"request_id": "my-id", "priority": -5, "cache_salt": "salt", "enable_response_messages": True},
    **{**BEFORE, "mm_processor_kwargs": {"size": 1}},
}


# It takes vLLM's own fields.
OPENED = {"responses_compatibility_mode": "false", "enable_computer_call": "on"}
open_server = module_server("open-fields", Server, script=SCRIPT, journal=True, **OPENED)
open_client = module_sdk("open_server")


@pytest.fixture
def open_journal(open_server: Server) -> Path:
    """Where the engine of `open_client` writes what it was asked for."""
    return open_server.folder / "journal.jsonl"


def asked_of(journal: Path) -> Any:
    """Return the last generation that an engine was asked for."""
    return json.loads(journal.read_text().splitlines()[-1])


@pytest.mark.parametrize("name", OPEN)
def test_what_only_vllm_knows_is_refused_where_nobody_opened_the_door(client: OpenAI, name: str) -> None:
    told = refusal(openai.BadRequestError, client.responses.create, input="hi", extra_body={name: OPEN[name]})
    assert (told.param, told.code, told.type) == (name, "unsupported_parameter", "invalid_request_error")


def test_a_priority_of_its_own_counts_before_the_tier(open_client: OpenAI, open_journal: Path) -> None:
    for priority in (-5, 0):
        open_client.responses.create(input="hi", service_tier="flex", extra_body={"priority": priority})
        assert asked_of(open_journal)["priority"] == priority


def test_messages_that_the_model_read_and_said(open_client: OpenAI) -> None:
    asked: dict[str, Any] = {"input": "Now [think].", "instructions": "Be brief."}
    before = [
        {"role": "system", "content": "Left out."},
        {"role": "user", "content": "Before."},
        {"role": "assistant", "channel": "final", "content": "Long ago."},
    ]
    fields = {"enable_response_messages": True, "previous_input_messages": before}
    response = open_client.responses.create(**asked, extra_body=fields)
    kept = open_client.responses.retrieve(response.id)
    with open_client.responses.stream(**asked, model="scripted", extra_body=fields) as stream:
        streamed = stream.get_final_response()
    *_, last = open_client.responses.retrieve(streamed.id, stream=True)
    for each in (response, kept, streamed, last.response):  # type: ignore[union-attr]
        extra: Any = each.model_extra
        texts = [(message["role"], message["content"][0]["text"]) for message in extra["input_messages"]]
        assert [role for role, _ in texts] == ["system", "developer", "user", "assistant", "user"]
        assert [text for _, text in texts[2:]] == ["Before.", "Long ago.", "Now [think]."]
        assert "Be brief." in texts[1][1]
        said = [(message["channel"], message["content"][0]["text"]) for message in extra["output_messages"]]
        assert said == [("analysis", "Hm."), ("final", "So.")]


def test_nobody_is_shown_messages_who_does_not_ask(open_client: OpenAI) -> None:
    extra = open_client.responses.create(input="hi").model_extra or {}
    assert not {"input_messages", "output_messages"} & extra.keys()


def test_what_was_said_before_stays_in_the_chain(open_client: OpenAI, open_journal: Path) -> None:
    first = open_client.responses.create(input="hi", extra_body=BEFORE)
    assert "Before." in decode_tokens(asked_of(open_journal)["prompt_tokens"])
    open_client.responses.create(input="more", previous_response_id=first.id)
    assert "Before." in decode_tokens(asked_of(open_journal)["prompt_tokens"])
    counted = open_client.responses.input_tokens.count(input="hi", extra_body=BEFORE)
    assert counted.input_tokens > open_client.responses.input_tokens.count(input="hi").input_tokens


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"request_id": ""}, "request_id"),
        ({"request_id": "a/b"}, "request_id"),
        ({"request_id": "x" * 65}, "request_id"),
        ({"request_id": "compact"}, "request_id"),
        ({"cache_salt": ""}, "cache_salt"),
        ({"cache_salt": 5}, "cache_salt"),
        ({"priority": "soon"}, "priority"),
        ({"priority": 2**40}, "priority"),
        ({"enable_response_messages": "yes"}, "enable_response_messages"),
        ({"previous_input_messages": "Before."}, "previous_input_messages"),
        ({"previous_input_messages": ["Before."]}, "previous_input_messages[0]"),
        (
            {"previous_input_messages": [{"role": "user", "content": "x"}, {"role": "bard"}]},
            "previous_input_messages[1]",
        ),
        ({"previous_input_messages": [{"role": "user"}] * 5001}, "previous_input_messages"),
        (
            {"previous_input_messages": [{"role": "user", "content": "x"}], "previous_response_id": "resp_1"},
            "previous_input_messages",
        ),
        ({"mm_processor_kwargs": {"size": 1}}, "mm_processor_kwargs"),
    ],
)
def test_what_is_wrong_with_them_is_told(open_client: OpenAI, fields: dict[str, Any], param: str) -> None:
    assert refusal(openai.BadRequestError, open_client.responses.create, input="hi", extra_body=fields).param == param


def test_lists_have_what_an_include_asks_for(client: OpenAI) -> None:
    url = data_url(picture())
    part = {"type": "input_image", "image_url": url, "detail": "auto"}
    item: Any = {"type": "message", "role": "user", "content": [part]}
    conversation = client.conversations.create(items=[item])
    response = client.responses.create(input=[item])
    name: Any = "message.input_image.image_url"
    for include, expected in (([], None), ([name], url), (["message.output_text.logprobs"], None)):
        asked: Any = client.responses.input_items.list(response.id, include=include).data[0]
        listed: Any = client.conversations.items.list(conversation.id, include=include).data[0]
        got: Any = client.conversations.items.retrieve(listed.id, conversation_id=conversation.id, include=include)
        assert [each.content[0].image_url for each in (asked, listed, got)] == [expected] * 3


def test_screenshots_are_listed_where_the_server_is_set_to(client: OpenAI, open_client: OpenAI) -> None:
    url = data_url(picture())
    output = {"type": "computer_screenshot", "image_url": url}
    item: Any = {"type": "computer_call_output", "call_id": "c", "output": output}
    include: Any = ["computer_call_output.output.image_url"]
    for asks, expected in ((client, None), (open_client, url)):
        response = asks.responses.create(input=[item, {"role": "user", "content": "hi"}])
        (*_, listed) = asks.responses.input_items.list(response.id, include=include).data
        assert listed.type == "computer_call_output"
        assert listed.output.image_url == expected


def test_an_id_that_the_client_chooses(open_client: OpenAI) -> None:
    first = open_client.responses.create(input="hi", extra_body={"request_id": "vllm-1"})
    assert first.id == "vllm-1"
    assert open_client.responses.retrieve("vllm-1") == first
    *_, last = open_client.responses.retrieve("vllm-1", stream=True)
    assert last.response == first  # type: ignore[union-attr]
    assert open_client.responses.input_items.list("vllm-1").data[0].type == "message"
    more = open_client.responses.create(input="more", previous_response_id="vllm-1")
    assert more.previous_response_id == "vllm-1"
    for taken in ("vllm-1", more.id):
        told = refusal(openai.ConflictError, open_client.responses.create, input="hi", extra_body={"request_id": taken})
        assert (told.param, told.code) == ("request_id", "request_id_taken")
    background = open_client.responses.create(input="hi", background=True, extra_body={"request_id": "vllm-2"})
    assert background.id == "vllm-2"
    refusal(openai.BadRequestError, open_client.responses.cancel, "vllm-1")
    open_client.responses.delete("vllm-1")
    refusal(openai.NotFoundError, open_client.responses.retrieve, "vllm-1")
    with open_client.responses.stream(input="hi", model="scripted", extra_body={"request_id": "vllm-1"}) as stream:
        ids = {event.response.id for event in stream if hasattr(event, "response")}
    assert ids == {"vllm-1"}
