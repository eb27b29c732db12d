"""The states of engines on SQLite and on PostgreSQL, and the pure part of them."""

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from responses_app.protocol.engine_state import (
    MAX_VERSIONS,
    EngineState,
    NumberedState,
    OpenUpdate,
    WorkerReport,
)
from responses_app.stores.base import WorkerState
from responses_app.stores.database.responses.workers import WorkersAlone
from responses_app.stores.engines import EngineStore
from tests.contracts.store import UNTAMED, new_id


def model() -> str:
    """Return a model that no other test has."""
    return f"{new_id('model')}/{UNTAMED.replace(chr(0), '')[:20]}"


class TestInDatabases:
    @pytest.fixture
    async def engines(self, alias: str) -> AsyncIterator[EngineStore]:
        self._workers = WorkersAlone(using=alias, now=time.time)
        engines = EngineStore(using=alias)
        yield engines
        await engines.aclose()
        await self._workers.aclose()

    async def beat(self, worker: str) -> None:
        """Have a worker seen."""
        await self._workers.beat(WorkerState(id=worker, started_at=time.time(), connections=0, in_flight=0))

    async def test_a_state_is_kept_as_it_was_given(self, engines: EngineStore) -> None:
        name = model()
        assert await engines.read(name) == NumberedState(0, EngineState())
        assert name not in await engines.numbers()
        state = EngineState(
            paused="keep",
            until=1795730504.25,
            update=OpenUpdate(version="step-7", transfer=False, changed=True),
            version="step-6",
            versions=("step-5", "step-6"),
            actions=({"do": "pause", "mode": "keep", "more": [1, None, UNTAMED.replace(chr(0), "")]},),
            busy=new_id("worker"),
            busy_until=1795730600.5,
        )
        assert await engines.change(name, 1, state)
        assert await engines.read(name) == NumberedState(1, state)
        assert (await engines.numbers())[name] == 1

    async def test_of_those_that_change_it_at_once_one_does(self, engines: EngineStore) -> None:
        name = model()
        for number in (1, 2):
            states = [EngineState(version=str(place)) for place in range(5)]
            changed = await asyncio.gather(*(engines.change(name, number, state) for state in states))
            assert sum(changed) == 1
            kept = states[changed.index(True)]
            assert (await engines.read(name)).state == kept
            assert await engines.change(name, number, kept)  # once more: an answer of the store's may get lost
        assert not await engines.change(name, 5, EngineState())
        assert not await engines.change(name, 2, EngineState())

    async def test_what_workers_say_is_told_of_those_that_live(self, engines: EngineStore) -> None:
        name, here, silent = model(), new_id("wrk"), new_id("wrk")
        for worker in (here, silent):
            await self.beat(worker)
        await engines.report(name, WorkerReport(here, 3, {"problem": "none", "replicas": []}))
        await engines.report(name, WorkerReport(here, 4, {"problem": ""}))
        said = {each.worker: each for each in await engines.reports(name, seen_since=0.0)}
        assert said[here] == WorkerReport(here, 4, {"problem": ""})
        assert said[silent] == WorkerReport(silent, 0, {})
        assert await engines.reports(name, seen_since=4_000_000_000.0) == []
        # What was said of an older change may be written last.
        await engines.report(name, WorkerReport(here, 3, {"problem": "late"}))
        said = {each.worker: each for each in await engines.reports(name, seen_since=0.0)}
        assert said[here] == WorkerReport(here, 4, {"problem": ""})

    async def test_workers_of_long_ago_are_forgotten(self, engines: EngineStore) -> None:
        name, here, gone = model(), new_id("wrk"), new_id("wrk")
        await self.beat(here)
        await engines.report(name, WorkerReport(gone, 1, {}))
        await engines.report(name, WorkerReport(here, 2, {}))
        assert gone not in {each.worker for each in await engines.reports(name, seen_since=0.0)}


def test_versions_are_in_their_order_and_bounded() -> None:
    state = EngineState()
    for number in range(MAX_VERSIONS + 3):
        state = state.named(f"v{number}")
    assert len(state.versions) == MAX_VERSIONS
    state = state.named("v5")
    assert (state.version, list(state.versions[-2:])) == ("v5", [f"v{MAX_VERSIONS + 2}", "v5"])
    assert list(state.versions).count("v5") == 1
