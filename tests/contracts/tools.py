"""What every tool of the server does, whatever it is: in responses that it is called in, and by itself."""

import asyncio
from dataclasses import dataclass, field, replace

import orjson
import pytest

from responses_app.protocol.errors import JsonObject
from responses_app.protocol.items.offers import Offer
from responses_app.protocol.output.hosted_items import builder_of
from responses_app.protocol.requests.server_tools import ITEMS, item_of, parse_server_tool, private_fields
from responses_app.protocol.response.input_codec import decode, encode
from responses_app.protocol.response.steps import CallTool, Offered, ToolReturned
from responses_app.runs.driving.tool_calls import call_tool
from responses_app.runs.plan.plan import RequestTools, ToolEntry
from responses_app.runs.plan.settings import RunSettings
from responses_app.tools.base import BaseTool, ToolCall, ToolUse
from tests.kit.fakes import ANSWER, FakeEngine, Site
from tests.kit.laws import assert_laws, counting_ids
from tests.kit.oracle import validate_event

NONSENSE = ("", "{", "[1]", '{"no": "such"}', "\x00", "x" * 100_000, '{"id":' + "9" * 400 + "}")


@dataclass(frozen=True)
class ToolCase:
    """A tool, as a request declares it, and calls of it: one that it can do, one that it fails at, one that hangs."""

    tool: BaseTool
    declared: JsonObject
    good: tuple[str, str]  # the name that the model calls, and what with
    said: str  # what the model reads of that, among other things
    bad: tuple[str, str]
    slow: tuple[str, str] | None = None
    # The items that say how both calls ended, and their statuses; "": the items of the calls.
    ends: tuple[str, str, str] = ("", "completed", "failed")
    fields: JsonObject = field(default_factory=dict)

    @property
    def item(self) -> str:
        """The type of the items of its calls."""
        return str(item_of(self.declared))

    @property
    def use(self) -> ToolUse:
        """The declaration as a tool gets it."""
        label = str(self.declared.get("server_label"))
        return ToolUse(
            declared=parse_server_tool(self.declared, "tools[0]"),
            private=private_fields([self.declared]).get(label, {}),
            project="default",
            response_id="resp_1",
            chain_id="resp_1",
        )

    async def offer(self) -> Offer:
        """Return what it gives the model."""
        offer = await self.tool.offer(self.use)
        return offer or self.tool.offer_listed(self.use, (await self.tool.list_tools(self.use)).tools)

    async def call(self, name: str, arguments: str) -> ToolReturned:
        """Call it as a run does."""
        request_tools = RequestTools((ToolEntry(self.tool, self.use, await self.offer()),))
        tool = next(each for each in (await self.offer()).tools if each.name == name)
        wanted = CallTool(name, arguments, "item_1", tool=tool.tool)
        return await call_tool(request_tools.entry_of(name), wanted, tell=lambda _: None, settings=RunSettings())


def turn(name: str, arguments: str) -> str:
    """Return what a model says that calls a tool."""
    return f"<|channel|>commentary to={name} <|constrain|>json<|message|>{arguments}<|call|>"


class ToolContract:
    """Subclass it with a fixture `case`."""

    async def test_it_offers_what_items_can_show_and_a_log_can_keep(self, case: ToolCase) -> None:
        assert set(case.tool.kinds) <= {*ITEMS, "shell"}
        assert case.tool.problem() is None
        offer = await case.offer()
        assert offer.tools
        known = {f"{offer.namespace.name}.{each.name}" for each in offer.namespace.functions} or {offer.namespace.name}
        assert {tool.name for tool in offer.tools} == known
        assert set(offer.contents) <= known
        for tool in offer.tools:
            assert tool.item == case.item
            assert builder_of(tool, counting_ids()).item("in_progress")["type"] in (tool.item, "mcp_approval_request")
        offered = Offered(list(offer.tools), [], [], {})
        assert list(decode(encode([offered]))) == [offered]
        assert (await case.offer()).tools == offer.tools, "the same on every worker, at any time"

    async def test_a_response_calls_it_and_its_events_are_openais(self, case: ToolCase) -> None:
        site = Site(FakeEngine([turn(*case.good), turn(*case.bad), ANSWER]), tools=[case.tool])
        reading = await site.begin(input="hi", tools=[case.declared], transport="sse")
        events = await reading.to_the_end()
        assert_laws(events)
        for event in events:
            validate_event(event)
        kind, *statuses = case.ends
        calls = [each for each in events[-1]["response"]["output"] if each["type"] == (kind or case.item)]  # type: ignore[index]
        assert [call["status"] for call in calls] == statuses
        site.registry.resumable.drop(reading.reader.source.response_id)
        again = await site.follow(reading.reader.source.response_id)
        assert await again.to_the_end() == events, "made of the log, without the tool"

    async def test_it_does_what_it_can_and_says_what_it_cannot(self, case: ToolCase) -> None:
        done, failed = await case.call(*case.good), await case.call(*case.bad)
        assert not done.failed
        assert case.said in done.text
        assert failed.failed
        assert failed.text

    @pytest.mark.parametrize("arguments", NONSENSE, ids=range(len(NONSENSE)))
    async def test_whatever_the_model_writes_is_answered(self, case: ToolCase, arguments: str) -> None:
        returned = await case.call(case.good[0], arguments)
        orjson.dumps([returned.text, returned.shown, returned.state])
        assert returned.text != "Error: the tool broke."
        assert "responses_app" not in returned.text

    async def test_calls_at_once_are_apart(self, case: ToolCase) -> None:
        every = await asyncio.gather(*(case.call(*case.good) for _ in range(4)))
        assert [each.failed for each in every] == [False] * 4

    async def test_what_only_reads_can_begin_before_it_is_asked_for(self, case: ToolCase) -> None:
        (tool,) = [tool for tool in (await case.offer()).tools if tool.name == case.good[0]]
        assert not tool.reads or tool.repeatable
        if not tool.reads:
            pytest.skip("a call may change something")
        early = ToolCall(use=case.use, name=tool.name, arguments=case.good[1], item_id="", tool=tool.tool)
        before = await case.tool.call(early)
        asked = replace(early, item_id="item_2", state=before.state)
        assert await (await case.tool.begin(early))(asked) == await case.tool.call(asked)

    async def test_a_cancellation_ends_its_work(self, case: ToolCase) -> None:
        if case.slow is None:
            pytest.skip("none of its calls is slow")
        calling = asyncio.create_task(case.call(*case.slow))
        await asyncio.sleep(0.2)  # it has begun, or has not: either way it ends now
        calling.cancel()
        async with asyncio.timeout(10):
            with pytest.raises(asyncio.CancelledError):
                await calling
        assert not (await case.call(*case.good)).failed

    async def test_it_can_be_closed_twice(self, case: ToolCase) -> None:
        await case.call(*case.good)
        await case.tool.aclose()
        await case.tool.aclose()
