"""The hosted shell through the SDK and the Agents SDK: the demo engine runs the commands that it is told to."""

import base64
from collections.abc import Iterator, Sequence
from typing import Any

import openai
import pytest
from agents import Agent, ModelSettings, OpenAIResponsesModel, Runner, ShellTool, set_tracing_disabled
from openai import AsyncOpenAI, OpenAI
from openai.types import responses as types

from tests.kit.fixtures import module_server
from tests.kit.laws import assert_laws
from tests.kit.sandboxes import needs_bubblewrap
from tests.kit.sdk import sdk_of
from tests.kit.server import Server

pytestmark = [needs_bubblewrap, pytest.mark.any_database]

TOOL: Any = {"type": "shell", "environment": {"type": "container_auto"}}
ASKED: Any = {"model": "demo", "tools": [TOOL]}

server = module_server("shell", sandbox_memory_bytes=256 * 1024 * 1024)


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[OpenAI]:
    """Return an unmodified SDK."""
    with sdk_of(server) as client:
        yield client


def called(response: Any) -> tuple[Any, Any]:
    """Return the only call of the shell in a response, and what came of it."""
    (call,) = (item for item in response.output if item.type == "shell_call")
    (output,) = (item for item in response.output if item.type == "shell_call_output")
    assert (output.call_id, call.status) == (call.call_id, "completed")
    return call, output


def test_commands_run_at_once_with_their_streams_apart(client: OpenAI) -> None:
    first = client.responses.create(input="shell: echo one; echo two >&2; exit 3\nsleep 0.1; echo ü", **ASKED)
    call, output = called(first)
    assert call.action.commands == ["echo one; echo two >&2; exit 3", "sleep 0.1; echo ü"]
    assert call.environment.container_id.startswith("cntr_")
    assert [(each.stdout, each.stderr, each.outcome.exit_code) for each in output.output] == [
        ("one\n", "two\n", 3),
        ("ü\n", "", 0),
    ]
    assert "exit code 3" in first.output_text
    assert first.tools[0].model_dump(exclude_none=True) == TOOL


def test_the_stream_has_the_events_of_openai(client: OpenAI) -> None:
    with client.responses.create(input="shell: echo one; echo two >&2", stream=True, **ASKED) as stream:
        events = list(stream)
    assert_laws([event.to_dict() for event in events])
    told: list[Any] = [event for event in events if ".shell_call" in event.type]
    assert [type(event) for event in told if not event.type.endswith("delta")] == [
        types.ResponseShellCallCommandAddedEvent,
        types.ResponseShellCallCommandDoneEvent,
        types.ResponseShellCallOutputContentDoneEvent,
    ]
    for event in told:
        fields = type(event).model_fields
        assert event.to_dict().keys() == {name for name, field in fields.items() if name != "obfuscation"}
    commands = [event for event in told if isinstance(event, types.ResponseShellCallCommandDeltaEvent)]
    assert "".join(event.delta for event in commands) == told[0].command + "echo one; echo two >&2"
    printed = [event for event in told if isinstance(event, types.ResponseShellCallOutputContentDeltaEvent)]
    assert "".join(event.delta.stdout or "" for event in printed) == "one\n"
    assert "".join(event.delta.stderr or "" for event in printed) == "two\n"
    done = told[-1]
    assert (done.output[0].stdout, done.output[0].stderr, done.output[0].outcome.exit_code) == ("one\n", "two\n", 0)
    kinds = [event.item.type for event in events if event.type == "response.output_item.done"]
    assert kinds == ["reasoning", "shell_call", "shell_call_output", "reasoning", "message"]
    (added,) = (event.item for event in events if event.type == "response.output_item.added" and event.item.type == "shell_call")  # fmt: skip
    assert (added.status, added.action.commands) == ("in_progress", [])


def test_what_is_printed_comes_while_the_command_runs(client: OpenAI) -> None:
    """The command goes on only once the client has answered what it printed: by a file that it puts there."""
    made = client.containers.create(name="slow")
    tool = {"type": "shell", "environment": {"type": "container_reference", "container_id": made.id}}
    asked = "shell: echo ready; until test -e go; do sleep 0.01; done; echo went"
    with client.responses.create(model="demo", tools=[tool], input=asked, stream=True) as stream:  # type: ignore[list-item]
        printed = ""
        for event in stream:
            if event.type == "response.shell_call_output_content.delta":
                printed += event.delta.stdout or ""
                if printed == "ready\n":
                    break
        assert printed == "ready\n"
    with pytest.raises(openai.NotFoundError):
        client.containers.files.retrieve("cfile_x", container_id=made.id)
