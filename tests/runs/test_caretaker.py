"""The caretaker: what it takes over runs, waits or fails; nothing is lost on the way."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from engine.errors import EngineUnavailable
from responses_app.protocol.errors import JsonObject
from responses_app.runs.caretaker import Caretaker
from responses_app.stores.base import AcceptedResponse, Estate, StoreError, WorkerState
from tests.runs.fakes import FakeEngine, FakeStore, Site
from tests.waiting import eventually

LEASE = 0.06  # seconds


async def left_behind(count: int = 1, **fields: object) -> FakeStore:
    """Return a store with background responses that a worker accepted and never began."""
    site = Site(FakeEngine([[asyncio.Event()]]))
    for _ in range(count):
        await site.begin(input="hi", background=True, **fields)
    await site.registry.aclose()
    return site.store


@asynccontextmanager
async def looked_after(site: Site, *, ready: Callable[[], bool] = lambda: True) -> AsyncIterator[Caretaker]:
    """Let a caretaker look after a site."""
    caretaker = Caretaker(
        site.service,
        site.store,
        state=lambda: WorkerState(id="me", started_at=0),
        ready=ready,
        lease_seconds=LEASE,
    )
    await caretaker.start()
    try:
        yield caretaker
    finally:
        await site.registry.aclose()
        await caretaker.aclose()


def kept(store: FakeStore) -> list[JsonObject]:
    """Return the responses of a store."""
    return [each.response for each in store._responses.values()]


def statuses(store: FakeStore) -> list[object]:
    """Return the states of a store's responses."""
    return [response["status"] for response in kept(store)]


async def test_what_a_dead_worker_left_runs() -> None:
    site = Site(store=await left_behind(3))
    async with looked_after(site):
        await eventually(lambda: statuses(site.store) == ["completed"] * 3)


async def test_nothing_is_taken_over_before_the_engine_is_ready() -> None:
    site, ready = Site(store=await left_behind()), False
    async with looked_after(site, ready=lambda: ready):
        await asyncio.sleep(3 * LEASE)
        assert statuses(site.store) == ["queued"]
        ready = True
        await eventually(lambda: statuses(site.store) == ["completed"])


async def test_what_cannot_run_now_waits() -> None:
    site = Site(store=await left_behind(2))
    site.engine.ill = EngineUnavailable("away")
    async with looked_after(site):
        await asyncio.sleep(3 * LEASE)
        assert statuses(site.store) == ["queued"] * 2
        site.engine.ill = None
        await eventually(lambda: statuses(site.store) == ["completed"] * 2)


async def test_what_cannot_run_now_is_given_back_at_the_end() -> None:
    site = Site(store=await left_behind())
    site.engine.ill = EngineUnavailable("away")
    async with looked_after(site):
        await asyncio.sleep(3 * LEASE)
    other = Site(store=site.store)
    estate = await other.store.inherit("other", lease_seconds=1000)
    assert [accepted.response["status"] for accepted in estate.queued] == ["queued"], "nobody has to be dead first"


async def test_what_can_never_run_has_failed_and_stops_nothing_else() -> None:
    store = await left_behind(2)
    first = next(iter(store._responses.values()))
    assert isinstance(first.of, AcceptedResponse)
    assert first.of.request is not None
    first.of.request["model"] = "gone"
    site = Site(store=store)
    async with looked_after(site):
        await eventually(lambda: statuses(store) == ["failed", "completed"])
    error = kept(store)[0]["error"]
    assert isinstance(error, dict)
    assert error["code"] == "server_error"


async def test_what_breaks_has_failed_and_stops_nothing_else(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    site = Site(store=await left_behind(2))
    runs_again, broken = site.service.run_again, kept(site.store)[0]["id"]

    async def run_again(accepted: AcceptedResponse) -> None:
        if accepted.response["id"] == broken:
            raise KeyError("broken")
        await runs_again(accepted)

    monkeypatch.setattr(type(site.service), "run_again", lambda _, accepted: run_again(accepted))
    async with looked_after(site):
        await eventually(lambda: statuses(site.store) == ["failed", "completed"])
    assert "KeyError" in caplog.text


async def test_a_store_that_is_away_loses_nothing() -> None:
    site = Site(store=await left_behind(2))
    site.store.failure = StoreError("away")
    async with looked_after(site):
        await asyncio.sleep(3 * LEASE)
        assert statuses(site.store) == ["queued"] * 2
        site.store.failure = None
        await eventually(lambda: statuses(site.store) == ["completed"] * 2)


async def test_one_that_was_deleted_meanwhile_stays_deleted() -> None:
    site = Site(store=await left_behind())
    site.engine.ill = EngineUnavailable("away")
    async with looked_after(site):
        await asyncio.sleep(2 * LEASE)
        await site.library.delete("default", str(kept(site.store)[0]["id"]))
        site.engine.ill = None
        await eventually(lambda: len(site.engine.requests) == 1)
        await eventually(lambda: len(site.registry) == 0)
    assert statuses(site.store) == []


class SlowStore(FakeStore):
    """A store whose estate takes long to take over."""

    async def inherit(self, worker_id: str, *, lease_seconds: float) -> Estate:
        await asyncio.sleep(10 * lease_seconds)
        return Estate()


async def test_a_long_estate_does_not_make_a_worker_look_dead() -> None:
    site = Site(store=SlowStore())
    beats = 0
    beat = site.store.beat

    async def counted(worker: WorkerState) -> None:
        nonlocal beats
        beats += 1
        await beat(worker)

    site.store.beat = counted  # type: ignore[method-assign]
    async with looked_after(site):
        await asyncio.sleep(5 * LEASE)
    assert beats > 5
