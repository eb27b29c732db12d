"""The hosted shell through the SDK: the demo engine runs the commands that it is told to."""

from collections.abc import Sequence
from typing import Any

import openai
from openai import OpenAI
from openai.types import responses as types

from tests.kit.fixtures import module_sdk, module_server
from tests.kit.laws import assert_laws
from tests.kit.sandboxes import needs_bubblewrap
from tests.kit.sdk import refusal

pytestmark = [needs_bubblewrap]

TOOL: Any = {"type": "shell", "environment": {"type": "container_auto"}}
ASKED: Any = {"model": "demo", "tools": [TOOL]}

server = module_server("shell", sandbox_memory_bytes=256 * 1024 * 1024)


client = module_sdk()


def called(response: Any) -> tuple[Any, Any]:
    """Return the only call of the shell in a response, and what came of it."""
    (call,) = (item for item in response.output if item.type == "shell_call")
    (output,) = (item for item in response.output if item.type == "shell_call_output")
    assert (output.call_id, call.status) == (call.call_id, "completed")
    return call, output


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
    begun: list[Any] = [event for event in events if event.type == "response.output_item.added"]
    added = next(event.item for event in begun if event.item.type == "shell_call")
    assert (added.status, added.action.commands) == ("in_progress", [])


def test_a_chain_has_one_container_for_code_and_commands(client: OpenAI) -> None:
    code: Any = {"type": "code_interpreter", "container": {"type": "auto"}}
    both: Any = {"model": "demo", "tools": [TOOL, code], "include": ["code_interpreter_call.outputs"]}
    first = client.responses.create(input="shell: echo 'x = 6' > known.py", **both)
    second = client.responses.create(
        input="python: import known; print(known.x * 7)", previous_response_id=first.id, **both
    )
    third = client.responses.create(input="shell: cat known.py", previous_response_id=second.id, **both)
    (ran,) = (item for item in second.output if item.type == "code_interpreter_call")
    assert ran.outputs is not None
    assert [each.to_dict() for each in ran.outputs] == [{"type": "logs", "logs": "42\n"}]
    assert called(third)[1].output[0].stdout == "x = 6\n"
    assert {called(each)[0].environment.container_id for each in (first, third)} == {ran.container_id}


def test_files_of_commands_are_cited_and_those_of_the_request_are_there(client: OpenAI) -> None:
    given = client.files.create(file=("given.csv", b"a\n1\n"), purpose="user_data")
    tool: Any = {"type": "shell", "environment": {"type": "container_auto", "file_ids": [given.id]}}
    ended = client.responses.create(model="demo", tools=[tool], input="shell: wc -l < given.csv > lines.txt")
    (message,) = (item for item in ended.output if item.type == "message")
    part: Any = message.content[0]
    (cited,) = part.annotations
    container = called(ended)[0].environment.container_id
    assert (cited.type, cited.filename, cited.container_id) == ("container_file_citation", "lines.txt", container)
    content = client.containers.files.content.retrieve(cited.file_id, container_id=container)
    assert content.read() == b"2\n"


def test_the_items_can_be_sent_again(client: OpenAI) -> None:
    said: Any = {"role": "user", "content": "shell: echo kept > a.txt"}
    first = client.responses.create(input=[said], store=False, **ASKED)
    items: Any = [said, *(item.to_dict() for item in first.output), {"role": "user", "content": "shell: cat a.txt"}]
    again = client.responses.create(input=items, store=False, **ASKED)
    assert called(again)[1].output[0].stdout == "kept\n"  # in the container that the items name


def test_what_a_shell_does_not_take(client: OpenAI) -> None:
    allowlist = {"type": "allowlist", "allowed_domains": ["example.com"]}
    unnamed: dict[str, Any] = {"type": "container_auto", "skills": [{"type": "skill_reference"}]}
    refused: Sequence[tuple[str, Any]] = (
        ("tools[0].environment.network_policy", {"type": "container_auto", "network_policy": allowlist}),
        ("tools[0].environment.skills[0].skill_id", unnamed),
        ("tools[0].environment.container_id", {"type": "container_reference", "container_id": "x"}),
        ("tools[0].environment.container_id", {"type": "container_reference"}),
        ("tools[0].environment.memory_limit", {"type": "container_auto", "memory_limit": "2g"}),
    )
    for param, environment in refused:
        asked = {"model": "demo", "input": "x", "tools": [{"type": "shell", "environment": environment}]}
        assert refusal(openai.BadRequestError, client.responses.create, **asked).param == param
