"""Who holds the approval of a call of a tool, and until when, also where its client leaves."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from responses_app.protocol.errors import ApiError
from responses_app.stores.base import AcceptedResponse, StoreError
from responses_app.stores.stores import ApprovalHolder
from responses_app.tools.mcp.tool import McpTool
from tests.contracts.store_life import Clock
from tests.kit.fakes import ANSWER, NOW, FakeEngine, FakeStore, Site
from tests.kit.mcp_servers import McpServer
from tests.kit.memory_stores import MemoryApprovalStore
from tests.kit.waiting import eventually
from tests.unit.tools.mcp.test_mcp_responses import ADD, answer_to, asking_at, call, declared


class _SlowStore(FakeStore):
    """Its next acceptance waits for `going`, and fails then."""

    def __init__(self) -> None:
        super().__init__()
        self.going: asyncio.Event | None = None

    async def accept(self, accepted: AcceptedResponse) -> None:
        if self.going is not None:
            going, self.going = self.going, None
            await going.wait()
            raise StoreError("away")
        await super().accept(accepted)


async def _leave(site: Site, given: dict[str, Any], *, once: Callable[[], bool]) -> None:
    """Begin a response, and leave it as soon as `once` says so, before it has begun."""
    begun = asyncio.create_task(site.begin(**given))
    await eventually(once)
    begun.cancel()
    with pytest.raises(asyncio.CancelledError):
        await begun


async def test_whose_client_left_before_it_was_accepted_holds_no_approval(tool: McpTool, running: McpServer) -> None:
    store, approvals = _SlowStore(), MemoryApprovalStore(now=lambda: NOW)
    site = Site(FakeEngine([ADD, ANSWER]), store, tools=[tool], approvals=approvals)
    given = (await asking_at(site, running)).answered()
    store.going = going = asyncio.Event()
    await _leave(site, given, once=lambda: store.going is None)
    with pytest.raises(ApiError, match="approval"):
        await site.begin(**given)
    going.set()
    await eventually(lambda: not approvals._holders)
    assert (await site.ask(**given))["status"] == "completed"


class _SlowApprovals(MemoryApprovalStore):
    """Its next claim is kept, and answered when `going` is set."""

    def __init__(self, now: Callable[[], float]) -> None:
        super().__init__(now=now)
        self.going: asyncio.Event | None = None

    async def claim(self, project: str, request_id: str, response_id: str, *, instead_of: str = "") -> ApprovalHolder:
        holder = await super().claim(project, request_id, response_id, instead_of=instead_of)
        if self.going is not None:
            going, self.going = self.going, None
            await going.wait()
        return holder


async def test_whose_client_left_while_it_was_claimed_holds_no_approval(tool: McpTool, running: McpServer) -> None:
    approvals = _SlowApprovals(lambda: NOW)
    site = Site(FakeEngine([ADD, ANSWER]), tools=[tool], approvals=approvals)
    given = (await asking_at(site, running)).answered()
    approvals.going = going = asyncio.Event()
    await _leave(site, given, once=lambda: approvals.going is None)
    going.set()
    await eventually(lambda: not approvals._holders)
    assert (await site.ask(**given))["status"] == "completed"


async def test_one_that_is_not_stored_holds_its_approval_on_all_workers_until_it_ends(
    tool: McpTool, running: McpServer
) -> None:
    clock, store, end = Clock(), FakeStore(), asyncio.Event()
    approvals = MemoryApprovalStore(now=clock)
    one = Site(FakeEngine([ADD, [end, ANSWER]]), store, tools=[tool], approvals=approvals)
    other = Site(FakeEngine([ANSWER]), store, tools=[tool], approvals=approvals, new_id=one.new_id)
    one.service.approving.renew_seconds = 0.01
    other.service.approving._now = clock
    given = (await asking_at(one, running)).answered()
    begun = await one.begin(transport="sse", **given, store=False)
    clock.now += 61
    holders = approvals._holders
    await eventually(lambda: [each.claimed_at for each in holders.values()] == [clock.now])
    refused = await other.refusal(**given)
    assert (refused.status, refused.code) == (409, "approval_in_use")
    end.set()
    await begun.to_the_end()
    await eventually(lambda: not holders)
    assert (await other.ask(**given))["status"] == "completed"
    await eventually(lambda: not holders)


@pytest.mark.parametrize("stored", [False, True])
async def test_one_that_stood_still_for_so_long_that_another_may_have_made_its_call_makes_it_not(
    tool: McpTool, running: McpServer, monkeypatch: pytest.MonkeyPatch, stored: bool
) -> None:
    """Of a stored one everybody knows that it runs, and its log tells whether it is still this worker's."""
    clock, approvals = Clock(), _StandsStill(now=lambda: NOW)
    approvals.clock = clock
    monkeypatch.setattr("responses_app.runs.approving.own_clock", clock)
    site = Site(FakeEngine([call("say", '{"text":"hi"}'), ANSWER]), tools=[tool], approvals=approvals)
    tools = declared(running, require_approval="always")
    first = await site.ask(input="hi", tools=tools)
    *_, request = first["output"]  # type: ignore[misc]
    given = {"input": answer_to(request, approve=True), "tools": tools, "previous_response_id": first["id"]}
    response = await site.ask(**given, store=stored)
    made, message = response["output"]  # type: ignore[misc]
    assert (made["status"], message["type"]) == ("completed" if stored else "failed", "message")
    assert stored or "the approval may have been used elsewhere" in str(made["error"])


class _StandsStill(MemoryApprovalStore):
    """Its worker stands still behind each of its answers."""

    clock: Clock

    async def claim(self, project: str, request_id: str, response_id: str, *, instead_of: str = "") -> ApprovalHolder:
        holder = await super().claim(project, request_id, response_id, instead_of=instead_of)
        self.clock.now += 61
        return holder
