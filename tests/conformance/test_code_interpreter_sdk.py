"""The code interpreter through the SDK, as an agent's client uses it: the demo engine runs what it is told to."""

from collections.abc import Iterator
from typing import Any

import pytest
from openai import OpenAI

from tests.conformance.sdk import PATIENCE, Chat
from tests.server import Server
from tests.tools.sandbox.sandboxes import needs_bubblewrap

pytestmark = [needs_bubblewrap, pytest.mark.any_database]

TOOL: Any = {"type": "code_interpreter", "container": {"type": "auto"}}
ASKED: Any = {"model": "demo", "tools": [TOOL], "include": ["code_interpreter_call.outputs"]}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Return a server of this module's own: its containers end with it."""
    with Server(tmp_path_factory.mktemp("interpreter"), sandbox_memory_bytes=256 * 1024 * 1024) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[OpenAI]:
    """Return an unmodified SDK."""
    with OpenAI(base_url=server.base_url, api_key="none", max_retries=0, timeout=PATIENCE) as client:
        yield client


def call_of(response: Any) -> Any:
    """Return the only call of the interpreter in a response."""
    (call,) = [item for item in response.output if item.type == "code_interpreter_call"]
    return call


def test_a_chain_keeps_its_variables(client: OpenAI) -> None:
    first = client.responses.create(input="python: x = 6\nprint('kept')", **ASKED)
    second = client.responses.create(input="python: x * 7", previous_response_id=first.id, **ASKED)
    assert first.output_text == "The demo engine called python and it returned: kept."
    assert second.output_text == "The demo engine called python and it returned: 42."
    assert call_of(second).outputs[0].logs == "42\n"
    assert call_of(second).container_id == call_of(first).container_id


def test_a_stream_has_the_events_of_openai(client: OpenAI) -> None:
    with client.responses.stream(input="python: 2**100", **ASKED) as stream:
        kinds = [event.type for event in stream if "code_interpreter" in event.type]
        final = stream.get_final_response()
    prefix = "response.code_interpreter_call"
    deltas = [kind for kind in kinds if kind == f"{prefix}_code.delta"]
    rest = [f"{prefix}_code.done", f"{prefix}.interpreting", f"{prefix}.completed"]
    assert kinds == [f"{prefix}.in_progress", *deltas, *rest]
    assert (call_of(final).code, call_of(final).outputs[0].logs) == ("2**100", f"{2**100}\n")


def test_over_the_websocket_and_in_the_background(client: OpenAI) -> None:
    with client.responses.connect() as connection:
        done = Chat(connection).ask(input="python: y = 1", **ASKED)
    assert call_of(done).status == "completed"
    response = client.responses.create(input="python: y", previous_response_id=done.id, background=True, **ASKED)
    while response.status in ("queued", "in_progress"):
        response = client.responses.retrieve(response.id, include=ASKED["include"])
    assert call_of(response).outputs[0].logs == "1\n"


def test_a_client_that_leaves_stops_its_code(server: Server, client: OpenAI) -> None:
    stream = client.responses.create(input="python: while True: pass", stream=True, **ASKED)
    for event in stream:
        if event.type == "response.code_interpreter_call.interpreting":
            break
    stream.close()
    again = client.responses.create(input="python: 1 + 1", **ASKED)
    assert call_of(again).outputs[0].logs == "2\n"
