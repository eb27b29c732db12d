"""Fields that reach into the engine, through OpenAI's SDK: log probabilities, cache keys, service tiers."""

import json
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
from openai import OpenAI

from tests.conformance.sdk import PATIENCE
from tests.server import Server

SCRIPT = [{"say": "<|channel|>final<|message|>Good day.<|return|>", "chunk_tokens": 2}]


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the engine writes what it was asked for."""
    return tmp_path_factory.mktemp("journal") / "journal.jsonl"


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory, journal: Path) -> Iterator[OpenAI]:
    """A client of a server that takes no `scale` tier."""
    options = json.dumps({"journal": str(journal)})
    folder = tmp_path_factory.mktemp("fields")
    tiers = "auto,default,flex,priority"
    with (
        Server(folder, script=SCRIPT, engine_options=options, responses_allowed_service_tiers=tiers) as server,
        OpenAI(base_url=server.base_url, api_key="none", max_retries=0, timeout=PATIENCE) as client,
    ):
        yield client


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


def test_too_many_logprobs(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(input="hi", top_logprobs=21)
    assert refused.value.param == "top_logprobs"


def test_keys_and_tiers_reach_the_engine(client: OpenAI, journal: Path) -> None:
    for key, tier in (("a", "fast"), ("b", "flex"), ("a", "auto")):
        response = client.responses.create(input="hi", prompt_cache_key=key, service_tier=tier)  # type: ignore[call-overload]
        assert response.service_tier == {"fast": "priority", "auto": "default"}.get(tier, tier)
        assert response.prompt_cache_key == key
    urgent, patient, normal = (json.loads(line) for line in journal.read_text().splitlines()[-3:])
    assert urgent["priority"] < normal["priority"] < patient["priority"]
    assert urgent["cache_salt"] == normal["cache_salt"] != patient["cache_salt"]


@pytest.mark.parametrize(
    ("fields", "param"), [({"service_tier": "scale"}, "service_tier"), ({"prompt_cache_key": ""}, "prompt_cache_key")]
)
def test_what_is_not_allowed_is_told(client: OpenAI, fields: dict[str, str], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(input="hi", **fields)  # type: ignore[call-overload]
    assert refused.value.param == param
