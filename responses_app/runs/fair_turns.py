"""`FairTurns`: who has the engine next, where it is to do only so much at once: projects have it in equal shares.

A turn is one generation. While all `max_running` are taken, the others wait, and a turn that ends makes room for one
of the project that has the fewest running; of those that have as few, for the one that was served longest ago. Example
with 4 turns: project A has sent 100 requests, and 4 of them run. B sends 10. The next two turns that end make room for
B: from then on each has two, as long as both have something to do.

Inside a project they come in the order of their arrival, which a priority moves: -10 comes as if it had been there 10 s
earlier, 10 as if 10 s later. So nothing waits for ever.
"""

import asyncio
import heapq
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count
from math import ceil
from typing import NamedTuple

from responses_app.protocol.errors import overloaded
from responses_app.runs.background import BackgroundQueue

MAX_RETRY_AFTER = 60  # seconds
WEIGHT = 0.1  # of the last turn in what a turn takes on average

_Waiting = tuple[float, int, "asyncio.Future[None]"]


class FairTurns:
    """Those of one worker. `max_running` 0: as many as come. At most `max_queued` of a project wait."""

    def __init__(self, *, max_running: int = 0, max_queued: int = 0, now: Callable[[], float] | None = None) -> None:
        self._max_running = max_running
        self._max_queued = max_queued
        self._now = now or (lambda: asyncio.get_running_loop().time())
        self._running: Counter[str] = Counter()
        self._waiting: dict[str, list[_Waiting]] = {}
        self._served: dict[str, int] = {}  # when a project was served last, as a number
        self._numbers = count(1)
        self._seconds = 1.0  # that a turn takes on average

    @property
    def running(self) -> int:
        """How many turns there are."""
        return self._running.total()

    @property
    def waiting(self) -> int:
        """How many wait for one."""
        return sum(map(len, self._waiting.values()))

    def check(self, project: str) -> None:
        """Raise `ApiError` (503) where as many of a project wait as may."""
        queued = len(self._waiting.get(project, ()))
        if self._max_running and queued >= self._max_queued and self.running >= self._max_running:
            share = max(1.0, self._max_running / max(1, len({*self._waiting, *self._running})))
            wait = min(MAX_RETRY_AFTER, max(1, ceil(self._seconds * (queued + 1) / share)))
            raise overloaded(
                f"The engine is full, and {queued} requests of this project wait for it already (ENGINE_MAX_QUEUED). "
                "Try again later.",
                retry_after=wait,
            )

    @asynccontextmanager
    async def turn(self, project: str, priority: int) -> AsyncIterator[None]:
        """Wait for a turn, and have it until the block ends."""
        if not self._max_running:
            yield
            return
        if self.running < self._max_running:  # then nobody waits
            self._take(project)
        else:
            await self._wait(project, priority)
        began = self._now()
        try:
            yield
        finally:
            self._seconds += WEIGHT * (self._now() - began - self._seconds)
            self._leave(project)

    def _take(self, project: str) -> None:
        self._running[project] += 1
        self._served[project] = next(self._numbers)

    async def _wait(self, project: str, priority: int) -> None:
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (self._now() + priority, next(self._numbers), granted)
        queue = self._waiting.setdefault(project, [])
        heapq.heappush(queue, entry)
        try:
            await granted
        except asyncio.CancelledError:
            if granted.cancelled():
                if entry in queue:
                    queue.remove(entry)
                    heapq.heapify(queue)
                    self._forget(project)
            else:  # it was granted in the very turn of the loop in which it was cancelled
                self._leave(project)
            raise

    def _leave(self, project: str) -> None:
        """Give a turn back, and to whoever is next."""
        self._running[project] -= 1
        while self._waiting and self.running < self._max_running:
            following = min(self._waiting, key=lambda each: (self._running[each], self._served.get(each, 0)))
            _, _, granted = heapq.heappop(self._waiting[following])
            if not granted.done():
                granted.set_result(None)
                self._take(following)
            self._forget(following)
        self._forget(project)

    def _forget(self, project: str) -> None:
        """Keep nothing of a project that has nothing here."""
        if not self._waiting.get(project, True):
            del self._waiting[project]
        if not self._running[project]:
            del self._running[project]
            if project not in self._waiting:
                self._served.pop(project, None)


class Queues(NamedTuple):
    """What a run may have to wait for: to begin, in the background, and for the engine, with each of its turns."""

    background: BackgroundQueue
    engine: FairTurns
