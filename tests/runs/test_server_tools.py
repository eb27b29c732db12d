"""A tool that the server runs inside a response: its item is open while it runs, its result lies between two turns."""

import asyncio
from collections.abc import Callable

import pytest

from engine.formats.harmony.encoding import decode_tokens
from responses_app.protocol.builders import HostedBuilder, ItemStatus, PendingEvents
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.events import EventType
from responses_app.tools.base import BaseTool, ToolFailed
from tests.protocol.laws import assert_laws
from tests.runs.fakes import FakeEngine, Site
from tests.waiting import eventually

CALL = "<|channel|>commentary to=shell code<|message|>1+1<|call|>"
ANSWER = "<|channel|>final<|message|>It is 2.<|return|>"
ASKED = [{"type": "local_shell"}]  # a kind that every version takes


class ShellBuilder(HostedBuilder):
    """Its item has the shape of a function call, so the laws of all items hold."""

    prefix, delta_type = "lsh_", EventType.ARGUMENTS_DELTA

    def closed(self) -> PendingEvents:
        return [(EventType.ARGUMENTS_DONE, {"arguments": self.text})]

    def item(self, status: ItemStatus) -> JsonObject:
        text = "" if status == "in_progress" else self.text
        return {"type": "function_call", "id": self.id, "name": "shell", "status": status, "arguments": text}


class Shell(BaseTool):
    """The tool of ten lines."""

    name, kind, timeout = "shell", "local_shell", 0.05

    def __init__(self, *, fails: Exception | None = None, hangs: bool = False) -> None:
        self.fails, self.hangs, self.ended = fails, hangs, asyncio.Event()

    def builder(self, new_id: Callable[[str], str]) -> HostedBuilder:
        return ShellBuilder(new_id)

    async def call(self, arguments: str) -> str:
        try:
            if self.hangs:
                await asyncio.Event().wait()
            if self.fails:
                raise self.fails
            return str(eval(arguments))
        finally:
            self.ended.set()


def site_with(tool: Shell) -> Site:
    return Site(FakeEngine([CALL, ANSWER]), tools=[tool])


def prompt_of(site: Site, turn: int) -> str:
    return decode_tokens(site.engine.prompts[turn])


async def events_of(site: Site) -> list[JsonObject]:
    reading = await site.begin(input="hi", tools=ASKED, transport="sse")
    events = await reading.to_the_end()
    assert_laws(events)
    return events


def items_of(events: list[JsonObject]) -> list[tuple[object, object]]:
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    return [(item["type"], item["status"]) for item in done]  # type: ignore[index]


async def test_its_result_stands_between_two_turns() -> None:
    site = site_with(Shell())
    events = await events_of(site)
    assert items_of(events) == [("function_call", "completed"), ("message", "completed")]
    assert "<|start|>shell to=assistant<|channel|>commentary<|message|>2<|end|><|start|>assistant" in prompt_of(site, 1)


async def test_its_item_is_open_while_it_runs_and_a_cancellation_ends_it() -> None:
    tool = Shell(hangs=True)
    tool.timeout = 60.0
    site = site_with(tool)
    reading = await site.begin(input="hi", tools=ASKED)
    await eventually(lambda: site.engine.running == 0 and len(site.engine.requests) == 1)
    seen = reading.take()
    assert [event["type"] for event in seen][-1] == "response.function_call_arguments.delta"
    site.registry.cancel(reading.run, reason="a test")
    events = await reading.to_the_end()
    assert tool.ended.is_set()
    assert events[-1]["response"]["status"] == "cancelled"  # type: ignore[index]
    assert items_of(events) == [("function_call", "incomplete")]


@pytest.mark.parametrize(
    ("tool", "told"),
    [
        (Shell(fails=ToolFailed("no such file")), "Error: no such file"),
        (Shell(fails=ValueError("secret")), "Error: the tool broke."),
        (Shell(hangs=True), "Error: the tool did not answer within 0.05 s."),
    ],
    ids=["fails", "breaks", "hangs"],
)
async def test_when_it_fails_the_model_is_told_and_goes_on(tool: Shell, told: str) -> None:
    site = site_with(tool)
    events = await events_of(site)
    assert items_of(events) == [("function_call", "failed"), ("message", "completed")]
    assert told in prompt_of(site, 1)
    assert "secret" not in prompt_of(site, 1)
    assert tool.ended.is_set()


async def test_one_that_was_not_asked_for_is_not_there() -> None:
    site = site_with(Shell())
    events = await (await site.begin(input="hi")).to_the_end()
    assert [event["item"]["type"] for event in events if event["type"] == "response.output_item.done"] == [  # type: ignore[index]
        "reasoning",
        "message",
    ]


async def test_its_stream_is_made_again_of_the_log_without_running_it() -> None:
    tool = Shell()
    site = site_with(tool)
    reading = await site.begin(input="hi", tools=ASKED, transport="sse")
    events = await reading.to_the_end()
    site.registry.resumable.drop(reading.run.response_id)
    tool.ended.clear()
    again = await site.follow(reading.reader.response_id)
    assert await again.to_the_end() == events
    assert not tool.ended.is_set()
