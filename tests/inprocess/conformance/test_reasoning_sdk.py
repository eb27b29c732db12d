"""Sealed reasoning and its summaries through OpenAI's SDK: loops without a store, a restart, edited items, events."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from engine.formats.harmony.encoding import decode_tokens
from tests.kit.inprocess import Server
from tests.kit.sdk import WEATHER, sdk_of

THOUGHT = "I look at it from every side. " * 12
SUMMARY = "**Every side**\n\nI looked."
THINKS = f"<|channel|>analysis<|message|>{THOUGHT}<|end|><|start|>assistant"
CALLS = ' to=functions.get_weather<|channel|>commentary json<|message|>{"city":"Rome"}<|call|>'
SCRIPT = [
    {"when": "Write a summary of the thought above", "say": f"<|channel|>final<|message|>{SUMMARY}<|return|>"},
    {"when": "How is it", "say": f"{THINKS}{CALLS}"},
    {"say": f"{THINKS}<|channel|>final<|message|>It is warm.<|return|>"},
]
ASKED: dict[str, Any] = {
    "model": "scripted",
    "tools": [WEATHER],
    "include": ["reasoning.encrypted_content"],
    "reasoning": {"summary": "auto"},
}
QUESTION: dict[str, Any] = {"role": "user", "content": "How is it in Rome?"}


def server_in(folder: Path) -> Server:
    """Return a server that keeps its secret, and what its engine was asked for, in this folder."""
    return Server(folder, script=SCRIPT, journal=True)


def client_of(server: Server) -> OpenAI:
    return sdk_of(server)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("reasoning")


@pytest.fixture(scope="module")
def client(folder: Path) -> Iterator[OpenAI]:
    with server_in(folder) as server, client_of(server) as client:
        yield client


def prompts(folder: Path) -> list[list[int]]:
    """Return the prompts of all turns that answered; those of summaries are left out."""
    lines = map(json.loads, (folder / "journal.jsonl").read_text().splitlines())
    return [line["prompt_tokens"] for line in lines if "the thought above" not in decode_tokens(line["prompt_tokens"])]


def outputs(response: Any) -> list[Any]:
    return [
        {"type": "function_call_output", "call_id": item.call_id, "output": "24 °C"}
        for item in response.output
        if item.type == "function_call"
    ]


def test_a_stream_tells_the_summary_in_its_place(client: OpenAI) -> None:
    with client.responses.stream(input=[QUESTION], store=False, **ASKED) as stream:
        events = list(stream)
        response = stream.get_final_response()
    thought, call, carrier = response.output
    assert [item.type for item in response.output] == ["reasoning", "function_call", "reasoning"]
    assert [part.text for part in thought.summary] == [SUMMARY]
    assert thought.encrypted_content
    assert (carrier.summary, carrier.content) == ([], None)
    types = [event.type.removeprefix("response.") for event in events]
    summary = [type for type in types if type.startswith("reasoning_summary")]
    assert summary[0] == "reasoning_summary_part.added"
    assert summary[-2:] == ["reasoning_summary_text.done", "reasoning_summary_part.done"]
    assert set(summary[1:-2]) == {"reasoning_summary_text.delta"}
    assert types[types.index("reasoning_summary_part.done") + 1] == "output_item.done"
    deltas = [event.delta for event in events if event.type == "response.reasoning_summary_text.delta"]
    assert "".join(deltas) == SUMMARY
    assert len(deltas) > 1
    assert call.name == "get_weather"


def test_a_loop_without_a_store_reads_what_a_stored_chain_reads_also_after_a_restart(tmp_path: Path) -> None:
    with server_in(tmp_path) as server, client_of(server) as client:
        first = client.responses.create(input=[QUESTION], **ASKED)
        client.responses.create(input=outputs(first), previous_response_id=first.id, **ASKED)
        wanted = prompts(tmp_path)[-2:]
    with server_in(tmp_path) as server, client_of(server) as client:
        hidden = [item.model_dump(exclude={"id", "content", "status"}, exclude_none=True) for item in first.output]
        for replayed in (first.output, hidden):
            client.responses.create(input=[QUESTION, *replayed, *outputs(first)], store=False, **ASKED)
            assert prompts(tmp_path)[-2:] == wanted
        shown = [item.model_dump(exclude={"id", "encrypted_content"}, exclude_none=True) for item in first.output]
        client.responses.create(input=[QUESTION, *shown, *outputs(first)], store=False, **ASKED)
        assert prompts(tmp_path)[-2:] != wanted, "rendered, the call has another order"
