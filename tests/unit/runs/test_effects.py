"""A call that must not be made twice goes out only behind its line in the log, and only while the response is ours."""

import asyncio
from collections.abc import Callable, Collection

import pytest

from responses_app.kit.errors import StoreError
from responses_app.protocol.response.input_codec import decode
from responses_app.protocol.response.steps import Sampled
from responses_app.runs.driving import tool_calls
from responses_app.runs.log import run_log as logs
from responses_app.stores.base import Appended, LogAppend
from responses_app.tools.base import ToolCall, ToolResult
from tests.kit.fakes import FakeEngine, FakeStore, Reading, Site, run_settings
from tests.kit.waiting import eventually
from tests.unit.runs.readers import id_of
from tests.unit.runs.test_server_tools import ANSWER, ASKED, CALL, Shell, items_of, prompt_of

WAYS = pytest.mark.parametrize("background", [True, False], ids=["background", "foreground"])


class Store(FakeStore):
    """Keeps appends once `go_on` is set, and tells by `appending` that one waits; `then` is called when it is kept."""

    def __init__(self) -> None:
        super().__init__()
        self.appending = asyncio.Event()
        self.go_on = asyncio.Event()
        self.then: Callable[[], None] = lambda: None

    async def append(self, appends: Collection[LogAppend]) -> Appended:
        self.appending.set()
        await self.go_on.wait()
        appended = await super().append(appends)
        self.then()
        return appended

    async def claimed_by_another(self) -> None:
        """Have another worker take everything over."""
        (claimed,) = (await self.reclaim("heir", dead_before=float("inf"))).claimed
        assert claimed.claim.worker == "heir"


async def calling(tool: Shell, in_store: FakeStore, **fields: object) -> tuple[Site, Reading]:
    """Return a response whose model has just called a tool, and its site."""
    site = Site(FakeEngine([CALL, ANSWER]), in_store, tools=[tool], worker="own")
    reading = await site.begin(input="hi", tools=ASKED, **fields)
    await eventually(lambda: site.engine.running == 0 and bool(site.engine.requests))
    return site, reading


async def idle() -> None:
    """Let everything go on that can."""
    for _ in range(20):
        await asyncio.sleep(0)


@WAYS
async def test_it_goes_out_once_its_asking_is_kept(background: bool) -> None:
    store, tool, kept = Store(), Shell(), list[bytes]()
    tool.gives = lambda call: _noted(kept, store, call)
    site, reading = await calling(tool, store, background=background)
    await store.appending.wait()
    await idle()
    assert not tool.calls
    store.go_on.set()
    events = await reading.to_the_end()
    assert items_of(events) == [("code_interpreter_call", "completed"), ("message", "completed")]
    assert len(tool.calls) == 1
    said = [token for given in decode(kept[0]) if isinstance(given, Sampled) for token in given.token_ids]
    assert said == site.engine.encode(CALL)


def _noted(kept: list[bytes], store: FakeStore, call: ToolCall) -> ToolResult:
    """Note what is kept of the log when the tool runs."""
    kept.append(store._responses["default", call.use.response_id].log)
    return ToolResult("2")


async def test_one_that_may_be_repeated_waits_for_nothing() -> None:
    store, tool = Store(), Shell(repeatable=True)
    await calling(tool, store, background=True)
    await eventually(lambda: len(tool.calls) == 1)
    store.go_on.set()


async def test_what_is_not_stored_is_this_workers_alone_and_waits_for_nothing() -> None:
    store, tool = Store(), Shell()
    _, reading = await calling(tool, store, store=False)
    await reading.to_the_end()
    assert (len(tool.calls), store.appending.is_set()) == (1, False)


@WAYS
async def test_one_of_a_response_that_another_worker_has_never_goes_out(background: bool) -> None:
    store, tool = Store(), Shell()
    site, reading = await calling(tool, store, background=background)
    await store.appending.wait()
    if not background:  # it is taken over to fail behind its log, of which there is some
        (response_id,) = (key[1] for key in store._responses)
        store._responses["default", response_id].log = b"\x01"
    await store.claimed_by_another()
    store.go_on.set()
    await eventually(lambda: not site.registry.running)
    assert not tool.calls
    events = await reading.to_the_end()
    assert background or events[-1]["type"] == "response.failed"
    assert not background or events[-1]["type"] == "response.in_progress", "it ends elsewhere"


async def test_a_worker_that_stood_still_behind_the_stores_answer_asks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, store, tool = [0.0], Store(), Shell()
    monkeypatch.setattr(tool_calls, "own_clock", lambda: clock[0])
    site, _ = await calling(tool, store, background=True)
    await store.appending.wait()

    def stand_still() -> None:
        """Be taken for dead when the append is kept, and before its answer is heard."""
        store.then = lambda: None
        clock[0] += 60.0
        asyncio.ensure_future(store.claimed_by_another()).add_done_callback(lambda _: None)

    store.then = stand_still
    store.go_on.set()
    await eventually(lambda: not site.registry.running)
    assert not tool.calls


async def test_a_tool_that_sends_late_confirms_first_and_sends_nothing_of_what_is_anothers_by_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, store, sent = [0.0], Store(), list[str]()
    monkeypatch.setattr(tool_calls, "own_clock", lambda: clock[0])

    class Slow(Shell):
        async def call(self, call: ToolCall) -> ToolResult:
            self.calls.append(call)
            for seconds in (0.5, 60.0):
                clock[0] += seconds
                if seconds == 60.0:
                    await store.claimed_by_another()
                await call.confirm()
                sent.append(f"after {clock[0]:g} s")
            return ToolResult("2")

    tool = Slow()
    store.go_on.set()
    site, _ = await calling(tool, store, background=True)
    await eventually(lambda: not site.registry.running)
    assert (len(tool.calls), sent) == (1, ["after 0.5 s"])


async def test_one_of_a_response_that_ends_meanwhile_never_goes_out() -> None:
    store, tool = Store(), Shell()
    site, reading = await calling(tool, store)
    await store.appending.wait()
    site.registry.cancel(reading.run, reason="a test")
    store.go_on.set()
    events = await reading.to_the_end()
    assert events[-1]["response"]["status"] == "cancelled"  # type: ignore[index]
    assert not tool.calls


@WAYS
async def test_one_that_cannot_be_kept_is_not_made_and_the_model_goes_on(
    background: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "KEEP_SECONDS", 0.01)
    store, tool = FakeStore(), Shell()
    monkeypatch.setattr("responses_app.runs.driving.persistence.BACKGROUND_PATIENCE", 0.0)

    def fail() -> None:
        store.failure = None  # the end is kept

    gate = asyncio.Event()
    site = Site(FakeEngine([CALL, [gate, ANSWER]]), store, tools=[tool])
    reading = await site.begin(input="hi", tools=ASKED, background=background)
    store.failure = StoreError("away")
    await eventually(lambda: len(site.engine.requests) == 2)
    fail()
    gate.set()
    events = await reading.to_the_end()
    assert items_of(events) == [("code_interpreter_call", "failed"), ("message", "completed")]
    assert not tool.calls
    assert "Error: the tool was not called: it must not run twice, and this server cannot" in prompt_of(site, 1)


async def test_while_the_store_is_away_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "KEEP_SECONDS", 0.05)
    monkeypatch.setattr(logs, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr("responses_app.runs.driving.persistence.AGAIN_SECONDS", 0.01)
    store, tool = FakeStore(), Shell()
    site = Site(FakeEngine([CALL, ANSWER]), store, tools=[tool], settings=run_settings(database_patience_seconds=30.0))
    tries = list[Collection[LogAppend]]()
    keep = store.append

    async def refuse(appends: Collection[LogAppend]) -> Appended:
        tries.append(appends)
        raise StoreError("away")

    monkeypatch.setattr(store, "append", refuse)
    reading = await site.begin(input="hi", tools=ASKED)
    await eventually(lambda: len(tries) > 10)
    assert not tool.calls
    monkeypatch.setattr(store, "append", keep)
    events = await reading.to_the_end()
    assert items_of(events) == [("code_interpreter_call", "completed"), ("message", "completed")]
    assert len(tool.calls) == 1


async def test_one_that_stops_while_it_waits_leaves_the_call_to_whoever_goes_on() -> None:
    store, tool = Store(), Shell()
    site, reading = await calling(tool, store, background=True)
    await store.appending.wait()
    closing = asyncio.create_task(site.registry.aclose())
    await idle()
    store.go_on.set()
    await closing
    assert not tool.calls
    heir = Site(FakeEngine([ANSWER]), store, tools=[tool], worker="heir")
    (claimed,) = (await store.reclaim("heir", dead_before=0.0)).claimed
    await heir.service.run_again(claimed)
    events = await (await heir.follow(id_of(reading))).to_the_end()
    assert events[-1]["response"]["status"] == "completed"  # type: ignore[index]
    assert not tool.calls, "nobody knows there that it did not go out"
