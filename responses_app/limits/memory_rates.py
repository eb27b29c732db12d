"""Limits of keys and projects for a server of one process."""

import asyncio
from collections.abc import Callable

from responses_app.limits.ledger import Answer, Ask, Job, MemoryLedger
from responses_app.limits.rates import BaseRates


class MemoryRates(BaseRates):
    """Counts in this process alone: several workers would allow as much each. `now` is in milliseconds."""

    def __init__(self, *, now: Callable[[], float] | None = None) -> None:
        super().__init__()
        self._ledger = MemoryLedger()
        self._now = now or (lambda: asyncio.get_running_loop().time() * 1000)

    def post(self, job: Job) -> None:
        self._ledger.do(job, self._now())

    def _hold(self, key: str, id: str) -> None:
        self._ledger.hold(key, id)

    async def _ask(self, ask: Ask) -> Answer:
        return self._ledger.do(Job(asks=[ask]), self._now())[0]
