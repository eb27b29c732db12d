"""`WorkerHeartbeat`: says that this worker lives, and finds out whether others have taken it for dead."""

import asyncio
from collections.abc import Callable

from responses_app.runs.duties.pulse import Pulse
from responses_app.runs.registry.registry import RunRegistry
from responses_app.stores.base import BaseResponseStore, StoreError, WorkerState

BEATS_PER_LEASE = 3
TRIES_PER_BEAT = 4  # where one fails: who is late by one failure must not look dead
CHECK_SECONDS = 2.0  # how long `check` waits for an answer
FRESH_SECONDS = 1.0  # a beat that is not older shows that the store can be written to


class WorkerHeartbeat:
    """One per process. `state` is what this worker says of itself."""

    def __init__(
        self,
        store: BaseResponseStore,
        registry: RunRegistry,
        *,
        state: Callable[[], WorkerState],
        lease_seconds: float,
    ) -> None:
        self._store = store
        self._registry = registry
        self._state = state
        self._lease = lease_seconds
        self.pulse = Pulse(lease_seconds)
        self._looked_dead = False  # and it is not known yet what that has cost
        self._checking: asyncio.Task[str | None] | None = None

    @property
    def worker_id(self) -> str:
        """The id of this process."""
        return self._state().id

    @property
    def pause(self) -> float:
        """Seconds until the next beat is due."""
        pause = self._lease / BEATS_PER_LEASE
        return pause if self.pulse.age < pause else pause / TRIES_PER_BEAT

    @property
    def is_heard(self) -> bool:
        """Whether the last beats got through: at most one is missing."""
        return self.pulse.age < 2 * self._lease / BEATS_PER_LEASE

    async def beat(self) -> None:
        """Say that the worker lives, and stop what others took over while it was silent. Raises `StoreError`."""
        asked = self.pulse.clock()
        heard = await self._store.beat(self._state())
        self._looked_dead |= self.pulse.beat(heard, asked=asked)
        if self._looked_dead:
            await self._let_go()
            self._looked_dead = False

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
        if problem is None and self.pulse.age > FRESH_SECONDS:
            try:
                await self.beat()
            except StoreError:
                return "The database cannot be written to: look for a full disk, or a server that only lets read."
        return problem

    async def _let_go(self) -> None:
        claims = {run.response_id: run.claim for run in self._registry.running if run.claim is not None}
        for response_id in await self._store.lost(claims):
            self._registry.lose(response_id)
