"""`Caretaker`: says that this worker lives, takes over what dead workers left, and removes what is past its bounds."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import replace

from responses_app.protocol.errors import ApiError
from responses_app.protocol.resources import Status
from responses_app.runs.failures import server_stopped
from responses_app.runs.forgetting import Forgetting
from responses_app.runs.service import ResponseService
from responses_app.stores.base import AcceptedResponse, BaseResponseStore, StoredResponse, StoreError, WorkerState

logger = logging.getLogger("respsite.runs")

BEATS_PER_LEASE = 3
FOREVER = 10 * 365 * 24 * 3600.0  # seconds: of a lease that does not end
PURGE_SECONDS = 60.0


class Caretaker:
    """One per process. `state` is what this worker says of itself; nothing is taken over before `ready()`."""

    def __init__(
        self,
        service: ResponseService,
        store: BaseResponseStore,
        *,
        forgetting: Forgetting,
        state: Callable[[], WorkerState],
        ready: Callable[[], bool],
        lease_seconds: float,
    ) -> None:
        self._service = service
        self._store = store
        self._forgetting = forgetting
        self._state = state
        self._ready = ready
        self._lease = lease_seconds
        self._tasks: list[asyncio.Task[None]] = []
        self._inherited: deque[AcceptedResponse] = deque()  # taken over, and to be run here
        self._seen_at = self._seen_since = -FOREVER  # when the store heard from this worker: last, and since when
        self._purged_at = time.monotonic()

    async def start(self) -> None:
        """Say that the worker lives, before it accepts anything; then go on saying so."""
        await self._look_after(self._beat)
        self._tasks = [  # two, since a long estate must not make this worker look dead
            asyncio.create_task(self._keep_beating(), name="heart"),
            asyncio.create_task(self._keep_looking(), name="caretaker"),
        ]

    async def aclose(self) -> None:
        """Stop; what was taken over and does not run yet is for others."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._look_after(self._give_back)

    async def _keep_beating(self) -> None:
        while True:
            await asyncio.sleep(self._lease / BEATS_PER_LEASE)
            await self._look_after(self._beat)

    async def _keep_looking(self) -> None:
        while True:
            await self._look_after(self._settle)
            if self._ready() and not self._service.registry.draining:
                await self._look_after(self._inherit)
                await self._look_after(self._purge)
            await asyncio.sleep(self._lease / BEATS_PER_LEASE)

    async def _look_after(self, duty: Callable[[], Awaitable[None]]) -> None:
        try:
            await duty()
        except StoreError as problem:
            logger.warning("the store cannot be looked after now: %s", problem)
        except Exception:
            logger.exception("looking after the store broke")

    async def _beat(self) -> None:
        await self._store.beat(self._state())
        now = time.monotonic()
        if now - self._seen_at > self._lease:
            self._seen_since = now
        self._seen_at = now

    @property
    def _heard_all(self) -> bool:
        """Whether all who live could say so: after a start, or a store that was away, that takes a lease."""
        now = time.monotonic()
        return now - self._seen_at <= self._lease <= now - self._seen_since

    async def _settle(self) -> None:
        """Keep the ends that could not be kept when they came."""
        unsaved = self._service.unsaved
        while unsaved:
            stored = unsaved.popleft()
            try:
                await self._store.save(stored)
            except StoreError:
                unsaved.appendleft(stored)
                raise

    async def _inherit(self) -> None:
        lease = self._lease if self._heard_all else FOREVER
        estate = await self._store.inherit(self._state().id, lease_seconds=lease)
        if estate.failed:
            logger.warning("%d responses of workers that died have failed", estate.failed)
        self._inherited += estate.queued
        while self._inherited and await self._run_again(self._inherited[0]):
            self._inherited.popleft()

    async def _run_again(self, accepted: AcceptedResponse) -> bool:
        """Run a response, or let it fail; return False if it can do neither now, and has to wait."""
        response_id = accepted.response["id"]
        try:
            await self._service.run_again(accepted)
        except ApiError as error:
            logger.warning("response %s, which another start left, cannot run: %s", response_id, error.message)
            if error.retry_after is not None:
                return False
        except Exception:
            logger.exception("response %s, which another start left, cannot run", response_id)
        else:
            logger.info("response %s, which another start left, runs now", response_id)
            return True
        await self._fail(accepted)
        return True

    async def _fail(self, accepted: AcceptedResponse) -> None:
        failed = {**accepted.response, "status": Status.FAILED.value, "error": server_stopped()}
        await self._store.save(
            StoredResponse(
                project=accepted.project,
                response=failed,
                link=None,
                input_items=accepted.input_items,
                transport=accepted.transport,
                accepted=True,
            )
        )

    async def _give_back(self) -> None:
        while self._inherited:
            await self._store.accept(replace(self._inherited[0], worker="", again=True))
            self._inherited.popleft()

    async def _purge(self) -> None:
        if time.monotonic() - self._purged_at < PURGE_SECONDS:
            return
        self._purged_at = time.monotonic()
        purged = await self._store.purge()
        await self._forgetting.everywhere(purged.ids)
        if purged.responses:
            logger.info("%d stored responses past their bounds were removed", purged.responses)
