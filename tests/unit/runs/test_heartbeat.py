"""Whether the store can be used, as the heartbeat finds out."""

import pytest

from responses_app.runs import duties
from responses_app.stores.base import StoreError, WorkerState
from tests.kit.fakes import FakeStore, Site
from tests.unit.runs.upkeep import StoppedStore, looked_after


class FullStore(FakeStore):
    """A store that can be read, and not written to once it is full."""

    full = False

    async def beat(self, worker: WorkerState) -> float:
        if self.full:
            raise StoreError("no space left")
        return await super().beat(worker)


async def test_a_check_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duties, "FRESH_SECONDS", 0.0)
    site = Site(store=FullStore())
    assert isinstance(site.store, FullStore)
    async with looked_after(site) as upkeep:
        assert await upkeep.heartbeat.check() is None
        site.store.full = True
        problem = await upkeep.heartbeat.check()
        assert problem is not None
        assert "cannot be written to" in problem
        site.store.full = False
        assert await upkeep.heartbeat.check() is None


async def test_a_check_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duties, "FRESH_SECONDS", 0.0)
    monkeypatch.setattr(duties, "CHECK_SECONDS", 0.05)
    site = Site(store=StoppedStore())
    assert isinstance(site.store, StoppedStore)
    async with looked_after(site, worker="") as upkeep:
        site.store.goes_on.clear()
        for _ in range(2):
            problem = await upkeep.heartbeat.check()
            assert problem is not None
            assert "has not answered" in problem
        site.store.goes_on.set()
        assert await upkeep.heartbeat.check() is None
