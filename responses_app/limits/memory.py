"""The ledger of a server of one process."""

import asyncio
from collections.abc import Callable

from responses_app.limits.ledger import Answer, Ask, BaseLedger, BucketsAndSlots, LedgerJob


class MemoryLedger(BaseLedger):
    """The ledger of this process alone: several workers would allow as much each. `now` is in milliseconds."""

    def __init__(self, *, now: Callable[[], float] | None = None) -> None:
        super().__init__()
        self._now = now or (lambda: asyncio.get_running_loop().time() * 1000)

    async def aclose(self) -> None:
        await super().aclose()
        self._own = BucketsAndSlots()

    async def ask(self, ask: Ask) -> Answer:
        return self._own.do(LedgerJob(asks=[ask]), self._now())[0]

    def post(self, job: LedgerJob) -> None:
        self._own.do(job, self._now())

    def hold(self, key: str, id: str) -> None:
        self._own.hold(key, id)
