"""`Caretaker`: says that this worker lives, takes over what dead workers left, and removes what is past its bounds."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from responses_app.protocol.errors import ApiError
from responses_app.runs.failures import server_stopped
from responses_app.runs.service import ResponseService
from responses_app.stores.base import AcceptedResponse, BaseResponseStore, StoredResponse, StoreError, WorkerState

logger = logging.getLogger("respsite.runs")

BEATS_PER_LEASE = 3
PURGE_SECONDS = 60.0


class Caretaker:
    """One task per process. `state` is what this worker says of itself; nothing is taken over before `ready()`."""

    def __init__(
        self,
        service: ResponseService,
        store: BaseResponseStore,
        *,
        state: Callable[[], WorkerState],
        ready: Callable[[], bool],
        lease_seconds: float,
    ) -> None:
        self._service = service
        self._store = store
        self._state = state
        self._ready = ready
        self._lease = lease_seconds
        self._task: asyncio.Task[None] | None = None
        self._purged_at = time.monotonic()

    async def start(self) -> None:
        """Say that the worker lives, before it accepts anything; then go on saying so."""
        await self._look_after(self._beat)
        self._task = asyncio.create_task(self._run(), name="caretaker")

    async def aclose(self) -> None:
        """Stop; what others left stays theirs."""
        if self._task:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        while True:
            if self._ready():
                await self._look_after(self._inherit)
                await self._look_after(self._purge)
            await asyncio.sleep(self._lease / BEATS_PER_LEASE)
            await self._look_after(self._beat)

    async def _look_after(self, duty: Callable[[], Awaitable[None]]) -> None:
        try:
            await duty()
        except StoreError as problem:
            logger.warning("the store cannot be looked after now: %s", problem)
        except Exception:
            logger.exception("looking after the store broke")

    async def _beat(self) -> None:
        await self._store.beat(self._state())

    async def _inherit(self) -> None:
        estate = await self._store.inherit(self._state().id, lease_seconds=self._lease)
        if estate.failed:
            logger.warning("%d responses of workers that died have failed", estate.failed)
        for accepted in estate.queued:
            await self._run_again(accepted)

    async def _run_again(self, accepted: AcceptedResponse) -> None:
        response_id = accepted.response["id"]
        try:
            await self._service.run_again(accepted)
        except ApiError as error:
            logger.warning("response %s, which another start left, cannot run: %s", response_id, error.message)
            failed = {**accepted.response, "status": "failed", "error": server_stopped()}
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
        else:
            logger.info("response %s, which another start left, runs now", response_id)

    async def _purge(self) -> None:
        if time.monotonic() - self._purged_at < PURGE_SECONDS:
            return
        self._purged_at = time.monotonic()
        purged = await self._store.purge()
        if purged.responses:
            logger.info("%d stored responses past their bounds were removed", purged.responses)
