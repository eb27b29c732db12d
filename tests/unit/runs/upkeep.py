"""A site that is looked after, what dead workers left, and a store that does not hear of one."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

from responses_app.protocol.errors import JsonObject
from responses_app.runs.duties import Upkeep
from responses_app.stores.base import AcceptedResponse, Claim, WorkerState
from tests.kit.fakes import FakeEngine, FakeStore, Site, run_settings

LEASE = 0.06  # seconds
LEFT = "in_progress"  # the status of what `left_behind` leaves


async def left_behind(count: int = 1, *, worker: str = "") -> FakeStore:
    """Return a store with background responses that a worker accepted, and of which the model has said nothing."""
    site = Site(FakeEngine([[asyncio.Event()]]))
    for _ in range(count):
        await site.begin(input="hi", background=True)
    await site.registry.aclose()
    for each in site.store._responses.values():
        assert isinstance(each.of, AcceptedResponse)
        each.claim = Claim(worker)
        each.of = replace(each.of, claim=each.claim)
    return site.store


@asynccontextmanager
async def looked_after(
    site: Site, *, ready: Callable[[], bool] = lambda: True, worker: str = "me"
) -> AsyncIterator[Upkeep]:
    """Let the upkeep look after a site, whose own responses are of the worker ""."""
    upkeep = Upkeep(
        site.service,
        site.service.stores,
        forgetting=site.forgetting,
        state=lambda: WorkerState(id=worker, started_at=0),
        ready=ready,
        settings=run_settings(worker_lease_seconds=LEASE),
    )
    await upkeep.start()
    try:
        yield upkeep
    finally:
        await site.registry.aclose()
        await upkeep.aclose()


async def go_on_living(store: FakeStore, worker: str) -> None:
    """Beat for another worker."""
    while True:
        await store.beat(WorkerState(id=worker, started_at=0))
        await asyncio.sleep(LEASE / 10)


def kept(store: FakeStore) -> list[JsonObject]:
    return [each.response for each in store._responses.values()]


def statuses(store: FakeStore) -> list[object]:
    return [response["status"] for response in kept(store)]


class StoppedStore(FakeStore):
    """A store that hears nothing of this worker while it is stopped; other workers it hears."""

    def __init__(self) -> None:
        super().__init__()
        self.goes_on = asyncio.Event()
        self.goes_on.set()

    async def beat(self, worker: WorkerState) -> float:
        if worker.id == "":
            await self.goes_on.wait()
        return await super().beat(worker)
