"""The ledger of a server of one process."""

import asyncio
from collections.abc import Callable, Mapping

from responses_app.limits.ledger import Answer, Ask, BaseLedger, Counts, Job


class MemoryLedger(BaseLedger):
    """Counts in this process alone: several workers would allow as much each. `now` is in milliseconds."""

    def __init__(self, *, now: Callable[[], float] | None = None) -> None:
        super().__init__()
        self._counts = Counts()
        self._now = now or (lambda: asyncio.get_running_loop().time() * 1000)

    @property
    def holders(self) -> Mapping[str, set[str]]:
        return self._counts.holders

    async def aclose(self) -> None:
        await super().aclose()
        self._counts = Counts()

    async def ask(self, ask: Ask) -> Answer:
        return self._counts.do(Job(asks=[ask]), self._now())[0]

    def post(self, job: Job) -> None:
        self._counts.do(job, self._now())

    def hold(self, key: str, id: str) -> None:
        self._counts.hold(key, id)
