"""The shell as a tool in responses: what the model reads, whose containers it has, and limits that the model sets."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from responses_app.extensions.containers.code_interpreter import CodeInterpreterTool
from responses_app.extensions.containers.sandbox.cells import MAX_COMMANDS
from responses_app.extensions.containers.shell import ShellTool
from responses_app.protocol.response.steps import StopReason
from tests.kit.fakes import ANSWER, FakeEngine, Site
from tests.kit.laws import assert_laws, counting_ids
from tests.kit.sandboxes import SMALL, interpreter, needs_bubblewrap
from tests.unit.runs.test_server_tools import prompt_of

pytestmark = [needs_bubblewrap, pytest.mark.asyncio(loop_scope="module")]

AUTO = [{"type": "shell", "environment": {"type": "container_auto"}}]
NEW_ID = counting_ids()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def code() -> AsyncIterator[CodeInterpreterTool]:
    """Return the code interpreter whose containers the shell has; the tests of this module share them."""
    made = interpreter()
    yield made
    await made.aclose()


def calling(*commands: str, **limits: int) -> str:
    arguments = json.dumps({"commands": commands, **limits})
    return f"<|channel|>commentary to=shell.exec <|constrain|>json<|message|>{arguments}<|call|>"


def site_of(code: CodeInterpreterTool, *turns: str) -> Site:
    return Site(FakeEngine(list(turns)), tools=[code, ShellTool(code, SMALL)], new_id=NEW_ID)


async def output_of(code: CodeInterpreterTool, call: str) -> tuple[dict[str, Any], str]:
    """Return what came of a call of the shell, and what the model reads of it."""
    site = site_of(code, call, ANSWER)
    events = await site.events(input="hi", tools=AUTO)
    response: Any = events[-1]["response"]
    (output,) = (item for item in response["output"] if item["type"] == "shell_call_output")
    read = prompt_of(site, 1).rpartition("to=assistant<|channel|>commentary<|message|>")[2].partition("<|end|>")[0]
    return output, read


async def test_what_the_model_reads(code: CodeInterpreterTool) -> None:
    _, read = await output_of(code, calling("echo one"))
    assert read == "one"
    _, read = await output_of(code, calling("true"))
    assert read == "[exit code 0]"
    _, read = await output_of(code, calling("echo one; echo two >&2; exit 3", "echo three"))
    assert read == "$ echo one; echo two >&2; exit 3\none\n[stderr]\ntwo\n[exit code 3]\n\n$ echo three\nthree"


async def test_limits_that_the_model_sets(code: CodeInterpreterTool) -> None:
    output, read = await output_of(code, calling("echo begun; sleep 60", timeout_ms=300))
    assert (output["status"], output["output"]) == (
        "completed",
        [{"stdout": "begun\n", "stderr": "", "outcome": {"type": "timeout"}}],
    )
    assert read == "begun\n[It ran for longer than 0.3 seconds and was stopped.]"
    output, _ = await output_of(code, calling("seq 1000", max_output_length=20))
    told = output["output"][0]["stdout"]
    assert (output["max_output_length"], told[:10], told[-10:]) == (20, "1\n2\n3\n4\n5\n", "\n999\n1000\n")
    assert "[… 3873 characters left out …]" in told
    for extreme in (10**400, 2**64):
        output, _ = await output_of(code, calling("echo one", timeout_ms=extreme, max_output_length=extreme))
        assert output["output"][0]["stdout"] == "one\n"
    output, _ = await output_of(code, calling("echo one", timeout_ms=-(10**400), max_output_length=-(10**400)))
    assert output["status"] == "completed"


@pytest.mark.parametrize(
    "call",
    [
        calling(),
        calling(*["true"] * (MAX_COMMANDS + 1)),
        calling("a\0b"),
        calling("true").replace('"commands"', '"command"'),
        calling("true").replace('"true"', "7"),
        calling("true").replace("{", "", 1),
    ],
)
async def test_calls_that_cannot_be_made_are_answered(code: CodeInterpreterTool, call: str) -> None:
    output, read = await output_of(code, call)
    assert (output["status"], output["output"][0]["outcome"]["exit_code"]) == ("incomplete", 1)
    assert output["output"][0]["stderr"] == read
    assert read.startswith("Error: ")


async def test_a_container_can_be_named_and_only_by_its_project(code: CodeInterpreterTool) -> None:
    mine = await code.containers.create("default")

    def named(id: str) -> list[Any]:
        return [{"type": "shell", "environment": {"type": "container_reference", "container_id": id}}]

    response: Any = await site_of(code, calling("true"), ANSWER).ask(input="hi", tools=named(mine.id))
    (call,) = (item for item in response["output"] if item["type"] == "shell_call")
    assert call["environment"] == {"type": "container_reference", "container_id": mine.id}
    for project, id in (("other", mine.id), ("default", "cntr_none")):
        raised = await site_of(code, ANSWER).refusal(input="hi", tools=named(id), project=project)
        assert (raised.status, raised.param) == (404, "tools[0].environment.container_id")


async def test_the_model_is_told_where_the_container_is_gone(code: CodeInterpreterTool) -> None:
    site = site_of(code, calling("echo x > a"), ANSWER, calling("ls"), ANSWER)
    first: Any = await site.ask(input="hi", tools=AUTO)
    (call,) = (item for item in first["output"] if item["type"] == "shell_call")
    await code.containers.delete("default", call["environment"]["container_id"])
    await site.ask(input="on", tools=AUTO, previous_response_id=first["id"])
    assert "The container of the earlier calls is gone" in prompt_of(site, 3)


@pytest.mark.parametrize("reason", [StopReason.INTERRUPTED, StopReason.DISCARDED, StopReason.CANCELLED])
async def test_a_stopped_response_stops_commands_and_can_go_on(code: CodeInterpreterTool, reason: StopReason) -> None:
    site = site_of(code, calling("echo begun; tail -f /dev/null"), ANSWER)
    reading = await site.begin(input="hi", tools=AUTO, transport="sse")
    await reading.until("response.shell_call_output_content.delta")
    assert reading.run.stop(reason)
    events = await reading.to_the_end()
    assert_laws(events)
    ended: Any = events[-1]["response"]
    kinds = [item["type"] for item in ended["output"] if item["type"] != "reasoning"]
    dropped = reason is StopReason.DISCARDED
    assert kinds == ["shell_call", *([] if dropped else ["shell_call_output"])]
    if not dropped:
        (printed,) = ended["output"][-1]["output"]
        assert (ended["output"][-1]["status"], printed["stdout"]) == ("incomplete", "begun\n")
    if reason is not StopReason.CANCELLED:
        again: Any = await site.ask(input="on", tools=AUTO, previous_response_id=ended["id"])
        assert again["status"] == "completed"
