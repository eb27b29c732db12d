"""`Upkeep`: the duties of a worker beside its runs: to say that it lives, and to look after the store."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from responses_app.runs.duties.heartbeat import BEATS_PER_LEASE, WorkerHeartbeat
from responses_app.runs.duties.reclaimer import OrphanReclaimer
from responses_app.runs.log.tasks import end_tasks
from responses_app.runs.plan.settings import RunSettings
from responses_app.runs.registry.forgetting import Forgetting
from responses_app.runs.service import ResponseService
from responses_app.stores.base import NotMigrated, StoreError, WorkerState
from responses_app.stores.stores import Stores

logger = logging.getLogger("respsite.runs")

LOOK_SECONDS = 1.0  # between looks at what dead workers left
PURGE_SECONDS = 60.0


class Upkeep:
    """One per process. `state` is what this worker says of itself; nothing is taken over before `ready()`."""

    def __init__(
        self,
        service: ResponseService,
        stores: Stores,
        *,
        forgetting: Forgetting,
        state: Callable[[], WorkerState],
        ready: Callable[[], bool],
        settings: RunSettings,
    ) -> None:
        lease_seconds = settings.worker_lease_seconds
        self._service = service
        self._stores = stores
        self._forgetting = forgetting
        self._ready = ready
        self._look_seconds = min(LOOK_SECONDS, lease_seconds / BEATS_PER_LEASE)
        self._heartbeat = WorkerHeartbeat(stores.responses, service.registry, state=state, lease_seconds=lease_seconds)
        self._reclaimer = OrphanReclaimer(service, stores.responses, self._heartbeat)
        self._tasks: list[asyncio.Task[None]] = []
        self._purged_at = time.monotonic()
        self._purge_goes_on = False  # the last one has left something

    async def start(self) -> None:
        """Say that the worker lives, before it accepts anything; then go on saying so."""
        await self._look_after(self._heartbeat.beat)
        self._tasks = [  # two, since many orphans must not make this worker look dead
            asyncio.create_task(self._keep_beating(), name="heartbeat"),
            asyncio.create_task(self._keep_looking(), name="upkeep"),
        ]

    async def check(self) -> str | None:
        """Return None if the store can be read and written to now, else one sentence that says what to do."""
        return await self._heartbeat.check()

    @property
    def hears_store(self) -> bool:
        """Whether the store has heard from this worker lately."""
        return self._heartbeat.is_heard

    async def aclose(self) -> None:
        """Stop; what was taken over and does not run yet is for others, and ends that wait are tried once more."""
        await end_tasks(self._tasks)
        await self._look_after(self._service.unsaved.save)
        self._service.unsaved.leave()
        await self._look_after(self._reclaimer.give_back)

    async def _keep_beating(self) -> None:
        while True:
            await asyncio.sleep(self._heartbeat.pause)
            await self._look_after(self._heartbeat.beat)

    async def _keep_looking(self) -> None:
        while True:
            await self._look_after(self._service.unsaved.save)
            if self._ready() and not self._service.registry.draining:
                await self._look_after(self._reclaimer.reclaim)
                await self._look_after(self._purge)
            await asyncio.sleep(self._look_seconds)

    async def _look_after(self, duty: Callable[[], Awaitable[None]]) -> None:
        try:
            await duty()
        except NotMigrated:  # which is told once, not with every beat
            return
        except StoreError as problem:
            logger.warning("the store cannot be looked after now: %s", problem)
        except Exception:
            logger.exception("looking after the store broke")

    async def _purge(self) -> None:
        if not self._purge_goes_on and time.monotonic() - self._purged_at < PURGE_SECONDS:
            return
        self._purged_at = time.monotonic()
        self._purge_goes_on = False  # where this fails, later
        if files := await self._stores.files.purge():
            logger.info("%d files whose time was over were removed", files)
        purged = await self._stores.responses.purge()
        self._purge_goes_on = purged.more and bool(purged.responses)
        await self._forgetting.everywhere(purged.ids)
        if purged.responses:
            logger.info("%d stored responses past their bounds were removed", purged.responses)
