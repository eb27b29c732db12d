"""The states of engines on SQLite and on PostgreSQL, and the pure part of them."""

import time
from collections.abc import AsyncIterator

import pytest

from responses_app.protocol.engine_state import MAX_VERSIONS, EngineState
from responses_app.stores.base import WorkerState
from responses_app.stores.database.engines import DatabaseEngines
from responses_app.stores.database.responses.workers import WorkersAlone
from tests.contracts.adapters.stores import OnBothCase
from tests.contracts.engines import EngineStoreContract


class TestInDatabases(OnBothCase, EngineStoreContract):
    @pytest.fixture
    async def engines(self, alias: str) -> AsyncIterator[DatabaseEngines]:
        self._workers = WorkersAlone(using=alias, now=time.time)
        engines = DatabaseEngines(using=alias)
        yield engines
        await engines.aclose()
        await self._workers.aclose()

    async def beat(self, worker: str) -> None:
        await self._workers.beat(WorkerState(id=worker, started_at=time.time(), connections=0, in_flight=0))


def test_versions_are_in_their_order_and_bounded() -> None:
    state = EngineState()
    for number in range(MAX_VERSIONS + 3):
        state = state.named(f"v{number}")
    assert len(state.versions) == MAX_VERSIONS
    state = state.named("v5")
    assert (state.version, list(state.versions[-2:])) == ("v5", [f"v{MAX_VERSIONS + 2}", "v5"])
    assert list(state.versions).count("v5") == 1
