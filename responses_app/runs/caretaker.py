"""`Caretaker`: says that this worker lives, takes over what dead workers left, and removes what is past its bounds."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress

from responses_app.protocol.errors import ApiError
from responses_app.protocol.resources import Status
from responses_app.runs.failures import server_stopped
from responses_app.runs.forgetting import Forgetting
from responses_app.runs.pulse import Pulse
from responses_app.runs.service import ResponseService
from responses_app.stores.base import (
    AcceptedResponse,
    BaseResponseStore,
    ClaimLost,
    StoredResponse,
    StoreError,
    WorkerState,
)

logger = logging.getLogger("respsite.runs")

BEATS_PER_LEASE = 3
TRIES_PER_BEAT = 4  # where one fails: who is late by one failure must not look dead
PURGE_SECONDS = 60.0
CHECK_SECONDS = 2.0  # how long `check` waits for an answer
FRESH_SECONDS = 1.0  # a beat that is not older shows that the store can be written to


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
        self._reclaimed: deque[AcceptedResponse] = deque()  # taken over, and to be run here
        self._pulse = Pulse(lease_seconds)
        self._looked_dead = False  # and it is not known yet what that has cost
        self._checking: asyncio.Task[str | None] | None = None
        self._purged_at = time.monotonic()

    async def start(self) -> None:
        """Say that the worker lives, before it accepts anything; then go on saying so."""
        await self._look_after(self._beat)
        self._tasks = [  # two, since many orphans must not make this worker look dead
            asyncio.create_task(self._keep_beating(), name="heart"),
            asyncio.create_task(self._keep_looking(), name="caretaker"),
        ]

    async def check(self) -> str | None:
        """Return None if the store can be read and written to now, else one sentence that says what to do."""
        if self._checking is None or self._checking.done():
            self._checking = asyncio.create_task(self._check())
        try:
            async with asyncio.timeout(CHECK_SECONDS):
                return await asyncio.shield(self._checking)
        except TimeoutError:
            return f"The database has not answered for {CHECK_SECONDS:g} s: it hangs, or cannot be reached."

    async def _check(self) -> str | None:
        problem = await self._store.check()
        if problem is None and self._pulse.age > FRESH_SECONDS:
            try:
                await self._beat()
            except StoreError:
                return "The database cannot be written to: look for a full disk, or a server that only lets read."
        return problem

    async def aclose(self) -> None:
        """Stop; what was taken over and does not run yet is for others."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._look_after(self._give_back)

    async def _keep_beating(self) -> None:
        pause = self._lease / BEATS_PER_LEASE
        while True:
            await asyncio.sleep(pause if self._pulse.age < pause else pause / TRIES_PER_BEAT)
            await self._look_after(self._beat)

    async def _keep_looking(self) -> None:
        while True:
            await self._look_after(self._settle)
            if self._ready() and not self._service.registry.draining:
                await self._look_after(self._reclaim)
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
        asked = self._pulse.clock()
        heard = await self._store.beat(self._state())
        self._looked_dead |= self._pulse.beat(heard, asked=asked)
        if self._looked_dead:
            await self._let_go()
            self._looked_dead = False

    async def _let_go(self) -> None:
        """Stop what others have taken over while this worker was silent for so long that it looked dead."""
        runs = {run.response_id: run for run in self._service.registry.running if run.claim is not None}
        for response_id in await self._store.lost({each: run.claim for each, run in runs.items() if run.claim}):
            self._service.registry.lose(runs[response_id])

    async def _settle(self) -> None:
        """Keep the ends that could not be kept when they came."""
        unsaved = self._service.unsaved
        while unsaved:
            stored = unsaved.popleft()
            try:
                await self._store.save(stored)
            except ClaimLost:
                logger.warning("response %s ended here and runs elsewhere", stored.response["id"])
            except StoreError:
                unsaved.appendleft(stored)
                raise

    async def _reclaim(self) -> None:
        known = {run.response_id for run in self._service.registry.running}
        known |= {str(accepted.response["id"]) for accepted in self._reclaimed}
        known |= {str(stored.response["id"]) for stored in self._service.unsaved}
        orphans = await self._store.reclaim(self._state().id, dead_before=self._pulse.dead_before, known=known)
        if orphans.failed:
            logger.warning("%d responses of workers that died have failed", orphans.failed)
        self._reclaimed += orphans.queued
        while self._reclaimed and await self._run_again(self._reclaimed[0]):
            self._reclaimed.popleft()

    async def _run_again(self, accepted: AcceptedResponse) -> bool:
        """Run a response, or let it fail; return False if it can do neither now, and has to wait."""
        response_id = accepted.response["id"]
        try:
            await self._service.run_again(accepted)
        except ClaimLost:
            return True
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
        """Let a response fail that was taken over; where it is another worker's by now, that one decides."""
        failed = {**accepted.response, "status": Status.FAILED.value, "error": server_stopped()}
        stored = StoredResponse(
            project=accepted.project,
            response=failed,
            link=None,
            input_items=accepted.input_items,
            transport=accepted.transport,
            accepted=True,
            claim=accepted.claim,
        )
        with suppress(ClaimLost):
            await self._store.save(stored)

    async def _give_back(self) -> None:
        while self._reclaimed:
            try:
                await self._store.give_back(self._reclaimed[0])
            except ClaimLost:
                logger.info("response %s is another worker's already", self._reclaimed[0].response["id"])
            self._reclaimed.popleft()

    async def _purge(self) -> None:
        if time.monotonic() - self._purged_at < PURGE_SECONDS:
            return
        self._purged_at = time.monotonic()
        purged = await self._store.purge()
        await self._forgetting.everywhere(purged.ids)
        if purged.responses:
            logger.info("%d stored responses past their bounds were removed", purged.responses)
