"""Whatever breaks at the end of a response, every reader gets an end, and what is kept agrees with what was told."""

import asyncio
from collections.abc import Callable, Sequence

import pytest

from responses_app.api.responses import read_to_end
from responses_app.observing.metrics import ModelMeter
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.events.events import TERMINAL, Event, EventType
from responses_app.protocol.output.stream import ResponseStream
from responses_app.runs.driving.persistence import RunPersistence
from responses_app.runs.driving.run import Run
from responses_app.runs.log import run_log as log
from responses_app.runs.log.journal import EventJournal
from responses_app.runs.log.run_log import RunLog
from tests.kit.fakes import Reading, Site
from tests.kit.laws import assert_laws
from tests.kit.memory_stores import MemoryResponseStore
from tests.kit.waiting import eventually
from tests.unit.runs.readers import hanging, id_of, idle, refused
from tests.unit.runs.upkeep import kept, looked_after

BUG = RuntimeError("bug: /secret")
KINDS: dict[str, dict[str, object]] = {
    "stored": {"transport": "sse"},
    "not stored": {"transport": "sse", "store": False},
    "in the background": {"background": True},
}
Break = Callable[[pytest.MonkeyPatch], None]


def breaks(owner: type, method: str, *, when: Callable[..., bool] = lambda *_: True) -> Break:
    """Return what lets a method raise a bug, once: what comes after it works."""

    def inject(patch: pytest.MonkeyPatch) -> None:
        whole, broken = getattr(owner, method), False

        def call(*args: object, **named: object) -> object:
            nonlocal broken
            if not broken and when(*args):
                broken = True
                raise BUG
            return whole(*args, **named)

        patch.setattr(owner, method, call)

    return inject


def broken(*_: object) -> None:
    raise BUG


def ends_an_item(_: object, events: Sequence[Event]) -> bool:
    return any(event.type is EventType.ITEM_DONE for event in events)


def ends_all(_: object, events: Sequence[Event]) -> bool:
    return any(event.type in TERMINAL for event in events)


BEFORE_IT_IS_KEPT = {
    "its part of the chain": breaks(RunPersistence, "link"),
    "its response": breaks(ResponseStream, "outcome"),
    "its log": breaks(RunLog, "whole"),
    "its last events": breaks(EventJournal, "extend", when=ends_an_item),
}
AFTERWARDS = {
    "the rest of its log": breaks(RunLog, "end"),
    "its terminal event": breaks(EventJournal, "extend", when=ends_all),
    "its metrics": breaks(ModelMeter, "ended"),
}


def with_faults(faults: dict[str, Break]) -> list[tuple[str, str]]:
    """Return all that can break, of each kind of response.

    One that is not stored has no log; in the background events are told only once they are kept.
    """
    never = {("not stored", "its log"), ("not stored", "the rest of its log"), ("in the background", "its last events")}
    return [(kind, fault) for kind in KINDS for fault in faults if (kind, fault) not in never]


async def end_of(site: Site, kind: str) -> tuple[Reading, JsonObject]:
    """Return a reader of a response whose run is over, and the last event that it got."""
    reading = await site.begin(input="hi", **KINDS[kind])
    events = await reading.to_the_end()
    await idle(site)
    assert "secret" not in str(events)
    return reading, events[-1]


@pytest.mark.parametrize(("kind", "fault"), with_faults(BEFORE_IT_IS_KEPT))
async def test_an_end_that_breaks_before_it_is_kept_is_a_failure(
    kind: str, fault: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, site: Site
) -> None:
    BEFORE_IT_IS_KEPT[fault](monkeypatch)
    async with looked_after(site, worker=""):
        reading, end = await end_of(site, kind)
        response: JsonObject = end["response"]  # type: ignore[assignment]
        assert (end["type"], response["status"]) == ("response.failed", "failed")
        assert "req_1" in str(response["error"])
        assert reading.run.problem is not None
        assert reading.run.link is None
        expected = [] if kind == "not stored" else [reading.run.response()]
        await eventually(lambda: kept(site.store) == expected)
    assert "bug: /secret" in caplog.text


@pytest.mark.parametrize(("kind", "fault"), with_faults(AFTERWARDS))
async def test_an_end_that_is_kept_is_told_as_it_was_kept(
    kind: str, fault: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, site: Site
) -> None:
    AFTERWARDS[fault](monkeypatch)
    reading, end = await end_of(site, kind)
    if fault == "its terminal event":  # it cannot be told, so the stream ends without it
        assert end["type"] == "response.output_item.done"
        assert not reading.reader.is_whole
        assert reading.run.problem is not None
    else:
        assert end["type"] == "response.completed"
        assert reading.run.problem is None
        assert reading.run.link is not None
    assert [each["status"] for each in kept(site.store)] == ["completed"] * (kind != "not stored")
    assert "bug: /secret" in caplog.text


@pytest.mark.parametrize("kind", KINDS)
async def test_a_response_that_can_never_be_shown_ends_without_a_terminal_event(
    kind: str, monkeypatch: pytest.MonkeyPatch, site: Site
) -> None:
    """It is kept as failed all the same, as far as it came."""
    monkeypatch.setattr(ResponseStream, "outcome", broken)
    async with looked_after(site, worker=""):
        reading, end = await end_of(site, kind)
        assert end["type"] == "response.output_item.done"
        assert reading.run.problem is not None
        await eventually(lambda: [each["status"] for each in kept(site.store)] == ["failed"] * (kind != "not stored"))


@pytest.mark.parametrize("kind", KINDS)
async def test_a_run_whose_task_breaks_beside_it_ends_too(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    breaks(Run, "execute")(monkeypatch)
    site = Site()
    async with looked_after(site, worker=""):
        _, end = await end_of(site, kind)
        assert end["type"] == "response.failed"
        await eventually(lambda: [each["status"] for each in kept(site.store)] == ["failed"] * (kind != "not stored"))


@pytest.mark.parametrize("fault", ["its response", "its terminal event"])
async def test_a_body_without_an_end_is_an_error(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is neither a response that is still in progress, nor another one than is kept."""
    if fault == "its response":
        monkeypatch.setattr(ResponseStream, "outcome", broken)
    else:
        AFTERWARDS[fault](monkeypatch)
    reading = await Site().begin(input="hi", transport="json")
    error = await refused(read_to_end(reading.reader))
    assert (error.status, error.code) == (500, "server_error")


@pytest.mark.parametrize("place", [0, 1])
async def test_a_reader_that_breaks_costs_the_others_nothing(place: int, caplog: pytest.LogCaptureFixture) -> None:
    gate = asyncio.Event()
    site = hanging(gate)
    first = await site.begin(input="hi", transport="sse")
    readings = [first, await site.follow(id_of(first))]
    await site.engine.waits.wait()
    readings[place].reader.listen(broken)
    gate.set()
    events = await readings[1 - place].to_the_end()
    assert events[-1]["type"] == "response.completed"
    assert_laws(events)
    assert [each["status"] for each in kept(site.store)] == ["completed"]
    assert "bug: /secret" in caplog.text


@pytest.mark.parametrize("transport", ["sse", "json"])
async def test_one_that_is_accepted_and_cannot_begin_ends(transport: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ResponseStream, "start", broken)
    site = Site()
    async with looked_after(site, worker=""):
        reading = await site.begin(input="hi", transport=transport)
        assert [event["type"] for event in await reading.to_the_end()] == ["response.failed"]
        await eventually(lambda: kept(site.store) == [reading.run.response()])


async def test_what_cannot_be_told_of_one_response_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them are kept in one transaction, and told behind it."""
    gate = asyncio.Event()
    site = hanging(gate)
    breaks(RunLog, "has_kept")(monkeypatch)
    readings = [await site.begin(input="hi", background=True) for _ in range(3)]
    told = [asyncio.create_task(reading.until("response.output_text.delta")) for reading in readings]
    await eventually(lambda: sum(each.done() for each in told) >= 2)
    gate.set()
    await asyncio.gather(*told)
    for reading in readings:
        assert (await reading.to_the_end())[-1]["type"] == "response.completed"


async def test_what_a_store_that_broke_did_not_keep_is_kept_later(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = asyncio.Event()
    site = hanging(gate)
    monkeypatch.setattr(log, "RETRY_SECONDS", 0.01)
    breaks(MemoryResponseStore, "append")(monkeypatch)
    reading = await site.begin(input="hi", background=True)
    await reading.until("response.output_text.delta")
    gate.set()
    assert (await reading.to_the_end())[-1]["type"] == "response.completed"
