"""The code interpreter inside responses: what the model reads, what the items show, and which container it is."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import count

import orjson
import pytest
import pytest_asyncio

from responses_app.extensions.containers.code_interpreter import CodeInterpreterTool, code_of
from responses_app.extensions.containers.sandbox.choosing import SandboxChoice
from responses_app.protocol.errors import JsonObject
from tests.kit.fakes import FakeEngine, Site
from tests.kit.laws import counting_ids
from tests.kit.sandboxes import SMALL, content_of, interpreter, needs_bubblewrap, started
from tests.kit.waiting import eventually
from tests.unit.runs.test_server_tools import prompt_of
from tests.unit.tools.sandbox.wakers import WAKERS
from tests.unit.tools.sandbox.wakers import code_of as code_that_wakes

pytestmark = [needs_bubblewrap, pytest.mark.asyncio(loop_scope="module")]

AUTO = [{"type": "code_interpreter", "container": {"type": "auto"}}]
ANSWER = "<|channel|>final<|message|>Done.<|return|>"
NEW_ID = counting_ids()
OUTPUTS = ["code_interpreter_call.outputs"]


def calling(code: str) -> str:
    return f"<|channel|>analysis to=python code<|message|>{code}<|call|>"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def tool() -> AsyncIterator[CodeInterpreterTool]:
    """Return a tool that the tests of this module share, with its containers."""
    numbers = count(1)
    made = interpreter(lambda prefix: f"{prefix}{next(numbers)}")
    yield made
    await made.aclose()


def site_of(tool: CodeInterpreterTool, *turns: str) -> Site:
    """Return a site whose model says these turns; no two have responses of one id, so no two share a container."""
    return Site(FakeEngine(list(turns)), tools=[tool], new_id=NEW_ID)


def calls_of(response: JsonObject) -> list[JsonObject]:
    output = response["output"]
    assert isinstance(output, list)
    return [item for item in output if item["type"] == "code_interpreter_call"]


async def test_code_runs_and_the_model_goes_on(tool: CodeInterpreterTool) -> None:
    site = site_of(tool, calling("2**100"), ANSWER)
    events = await site.events(input="hi", tools=AUTO, include=OUTPUTS)
    (item,) = calls_of(events[-1]["response"])  # type: ignore[arg-type]
    assert str(item["container_id"]).startswith("cntr_")
    assert (item["status"], item["code"]) == ("completed", "2**100")
    assert item["outputs"] == [{"type": "logs", "logs": f"{2**100}\n"}]
    assert f"<|start|>python to=assistant<|channel|>commentary<|message|>{2**100}\n<|end|>" in prompt_of(site, 1)
    assert "Internet access for this session is disabled." in prompt_of(site, 0)


async def test_outputs_are_shown_where_they_were_asked_for(tool: CodeInterpreterTool) -> None:
    (item,) = calls_of(await site_of(tool, calling("1"), ANSWER).ask(input="hi", tools=AUTO))
    assert item["outputs"] is None


async def test_a_chain_keeps_its_variables_and_another_has_none_of_them(tool: CodeInterpreterTool) -> None:
    turns = [calling(code) for code in ("x = 40", "x += 1", "x + 1", "x")]
    site = site_of(tool, *(turn for call in turns for turn in (call, ANSWER)))
    more = {"input": "go on", "tools": AUTO, "include": OUTPUTS}
    first = await site.ask(**more)
    second = await site.ask(previous_response_id=first["id"], **more)
    third = await site.ask(previous_response_id=second["id"], **more)
    other = await site.ask(**more)
    (began,), (ended,), (alone,) = calls_of(first), calls_of(third), calls_of(other)
    assert ended["outputs"] == [{"type": "logs", "logs": "42\n"}]
    assert ended["container_id"] == began["container_id"] != alone["container_id"]
    assert "NameError" in str(alone["outputs"])
    assert alone["status"] == "completed"  # the tool did what it was asked for


async def test_only_calls_of_code_say_where_it_ran(tool: CodeInterpreterTool) -> None:
    """A `container_id` of another item has no effect: its client is told so."""
    mine = await tool.containers.create("default")
    site = site_of(tool, calling("1"), ANSWER)
    said = [{"role": "user", "content": "hi", "container_id": mine.id}]
    (item,) = calls_of(await site.ask(input=said, tools=AUTO))
    assert item["container_id"] != mine.id


async def test_a_container_can_be_named_and_only_by_its_project(tool: CodeInterpreterTool) -> None:
    containers = tool.containers
    mine = await containers.create("default")
    named = [{"type": "code_interpreter", "container": mine.id}]
    (item,) = calls_of(await site_of(tool, calling("z = 2"), ANSWER).ask(input="hi", tools=named))
    assert item["container_id"] == mine.id
    for project, id in (("other", mine.id), ("default", "cntr_none")):
        tools = [{"type": "code_interpreter", "container": id}]
        raised = await site_of(tool, ANSWER).refusal(input="hi", tools=tools, project=project)
        assert (raised.status, raised.param) == (404, "tools[0].container")


@pytest.mark.parametrize(
    ("container", "param"),
    [
        ("abc", "tools[0].container"),
        ({"type": "best"}, "tools[0].container"),
        ({"type": "auto", "memory_limit": "2g"}, "tools[0].container"),
        (
            {"type": "auto", "network_policy": {"type": "allowlist", "allowed_domains": ["a"]}},
            "tools[0].container.network",
        ),
        (5, "tools[0].container"),
    ],
)
async def test_a_container_that_cannot_be(tool: CodeInterpreterTool, container: object, param: str) -> None:
    raised = await site_of(tool).refusal(input="hi", tools=[{"type": "code_interpreter", "container": container}])
    assert raised.status == 400
    assert str(raised.param).startswith(param)


async def test_images_are_shown_and_the_model_is_told(tool: CodeInterpreterTool) -> None:
    code = "class Picture:\n    def _repr_png_(self): return b'png!'\nPicture()"
    site = site_of(tool, calling(code), ANSWER)
    (item,) = calls_of(await site.ask(input="hi", tools=AUTO, include=OUTPUTS))
    assert item["outputs"] == [{"type": "image", "url": "data:image/png;base64,cG5nIQ=="}]
    assert "[1 image(s) were shown to the user]" in prompt_of(site, 1)


async def test_code_that_does_not_end_fails_and_the_response_goes_on() -> None:
    slow = interpreter(lambda prefix: f"{prefix}1", settings=replace(SMALL, sandbox_call_seconds=0.3))
    site = site_of(slow, calling("import time\ntime.sleep(60)"), ANSWER)
    response = await site.ask(input="hi", tools=AUTO)
    assert (response["status"], calls_of(response)[0]["status"]) == ("completed", "failed")
    assert "ran for longer than 0.3 seconds and was stopped" in prompt_of(site, 1)
    await slow.aclose()


@pytest.mark.parametrize(
    ("code", "status", "told"),
    [
        ("import os\nos.kill(os.getppid(), 9)", "failed", "the container has ended"),
        ("import os\nwhile True: os.fork()", None, ""),
        ("open('a', 'wb').write(bytes(64 * 2**20))", "completed", "OSError"),
        ("kept = bytearray(2**30)", "completed", "MemoryError"),
        ("import socket\nsocket.create_connection(('127.0.0.1', 9))", "completed", "PermissionError"),
    ],
    ids=["kills its parent", "forks", "fills the disk", "fills memory", "opens a socket"],
)
async def test_what_code_does_to_its_container_the_response_goes_on(
    tool: CodeInterpreterTool, code: str, status: str | None, told: str
) -> None:
    site = site_of(tool, calling(code), calling("print(6 * 7)"), calling("print(6 * 7)"), ANSWER)
    async with asyncio.timeout(60):
        response = await site.ask(input="hi", tools=AUTO, include=OUTPUTS)
    assert response["status"] == "completed"
    first, *_, last = calls_of(response)
    assert first["status"] in ((status,) if status else ("completed", "failed"))
    assert told in prompt_of(site, 1)
    assert last["status"] == "completed"
    assert "42\n" in str(last["outputs"][0]["logs"])  # type: ignore[index]


async def test_a_cancelled_response_stops_its_code(tool: CodeInterpreterTool) -> None:
    site = site_of(tool, calling("while True: pass"), ANSWER)
    reading = await site.begin(input="hi", tools=AUTO)
    containers = tool.containers
    before = len(started(containers))
    await eventually(lambda: len(started(containers)) > before)
    site.registry.cancel(reading.run, reason="a test")
    events = await reading.to_the_end()
    assert events[-1]["response"]["status"] == "cancelled"  # type: ignore[index]
    (item,) = calls_of(events[-1]["response"])  # type: ignore[arg-type]
    assert item["status"] == "incomplete"
    done = await asyncio.wait_for(containers.run("default", str(item["container_id"]), "1 + 1"), 20)
    assert done.execution.output == "2\n"


async def test_a_lost_container_is_told_of(tool: CodeInterpreterTool) -> None:
    site = site_of(tool, calling("v = 1"), ANSWER, calling("v"), ANSWER)
    first = await site.ask(input="hi", tools=AUTO)
    containers = tool.containers
    await containers.delete("default", str(calls_of(first)[0]["container_id"]))
    await site.ask(input="on", tools=AUTO, previous_response_id=first["id"])
    assert "its variables and files are lost" in prompt_of(site, -1)


async def test_without_a_sandbox_a_request_is_refused_and_told_why() -> None:
    async def nothing() -> SandboxChoice:
        return SandboxChoice(None, None, "No sandbox can be used here. bubblewrap: it is not installed.")

    tool = interpreter(lambda prefix: prefix, choose=nothing)
    for _ in range(2):  # before it was tried, and behind that
        raised = await site_of(tool).refusal(input="hi", tools=AUTO)
        assert raised.code == "unsupported_parameter"
        assert "bubblewrap: it is not installed" in raised.message


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ("1+1", "1+1"),
        (orjson.dumps({"code": "a\nb"}).decode(), "a\nb"),
        ("{1: 2}", "{1: 2}"),
        ('{"code": 5}', '{"code": 5}'),
        ('{"code": "a", "b": 1}', '{"code": "a", "b": 1}'),
        ("", ""),
    ],
)
async def test_code_may_be_wrapped(arguments: str, code: str) -> None:
    assert code_of(arguments) == code


async def test_what_code_writes_is_cited(tool: CodeInterpreterTool) -> None:
    code = "class Picture:\n    def _repr_png_(self): return b'png!'\nopen('a.txt', 'w').write('hello')\nPicture()"
    said = "<|channel|>final<|message|>It is in [a.txt](sandbox:/mnt/data/a.txt).<|return|>"
    site = site_of(tool, calling(code), said, "<|channel|>final<|message|>Once more: /mnt/data/a.txt<|return|>")
    events = await site.events(input="hi", tools=AUTO)
    added = [event["annotation"] for event in events if event["type"] == "response.output_text.annotation.added"]
    response: JsonObject = events[-1]["response"]  # type: ignore[assignment]
    message = response["output"][-1]["content"][0]  # type: ignore[index]
    assert message["annotations"] == added
    text, image = added
    assert (text["filename"], text["container_id"]) == ("a.txt", calls_of(response)[0]["container_id"])  # type: ignore[index]
    assert message["text"][text["start_index"] : text["end_index"]] == "sandbox:/mnt/data/a.txt"  # type: ignore[index]
    content = await content_of(tool.containers, "default", str(text["container_id"]), text["file_id"])  # type: ignore[index]
    assert content == b"hello"
    shown = await content_of(tool.containers, "default", str(image["container_id"]), image["file_id"])  # type: ignore[index]
    assert shown == b"png!"
    later = await site.ask(input="again", tools=AUTO, previous_response_id=response["id"])
    (again,) = later["output"][-1]["content"][0]["annotations"]  # type: ignore[index]
    assert again["file_id"] == text["file_id"]  # type: ignore[index]


async def test_the_model_is_told_why_its_container_was_ended(tool: CodeInterpreterTool) -> None:
    runs_on = code_that_wakes(WAKERS[0])
    site = site_of(tool, calling(runs_on), ANSWER, calling("1 + 1"), ANSWER)
    first = await site.ask(input="hi", tools=AUTO)
    (call,) = calls_of(first)
    await eventually(lambda: call["container_id"] not in started(tool.containers))
    await site.ask(input="on", previous_response_id=first["id"], tools=AUTO)
    was_ended = "[The container of the earlier calls was ended, because its code ran on between calls: its variables"
    assert was_ended in prompt_of(site, 3)
