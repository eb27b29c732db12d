"""`SharedPlaces`: how much a tool does at once; projects share it, so that none has all of it.

One project may have `share` of the places. Where it has, or none is free, its work waits. A place that becomes free
goes to the project that has fewest; of those that have as few, to the one that has waited for longest.

Example with 16 places, 8 of a project: A calls for 100 images at a service that hangs. 8 of them are under way. B calls
for one: it is under way at once.
"""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager


class NoPlace(Exception):
    """There was no place in time, or too much waits for one already. `is_own`: the project itself has its share."""

    def __init__(self, *, is_own: bool) -> None:
        super().__init__(is_own)
        self.is_own = is_own


class SharedPlaces:
    """The places of one process: `most` in all, `share` of each project.

    Work of a project waits for `seconds` at most, and no more than `most_waiting` of it at once. None is for callers
    that bound this themselves.
    """

    def __init__(self, *, most: int, share: int, seconds: float | None = None, most_waiting: int | None = None) -> None:
        self.most = most
        self.share = share
        self._seconds = seconds  # that work waits for a place; None: its caller bounds that
        self._most_waiting = most_waiting  # of one project; None: any number
        self._taken: Counter[str] = Counter()  # places, by project
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # of each project; who came first is first

    @asynccontextmanager
    async def taken(self, project: str) -> AsyncIterator[None]:
        """Wait for a place, and have it until the block ends. Raises `NoPlace`."""
        await self.take(project)
        try:
            yield
        finally:
            self.give_back(project)

    async def take(self, project: str) -> None:
        """Wait for a place, and have it until `give_back`. Raises `NoPlace`."""
        # Nobody of this project waits where a place is free for it: so nobody is passed over.
        if self._is_free(project):
            self._taken[project] += 1
            return
        waiting = self._waiting.setdefault(project, deque())
        if self._most_waiting is not None and len(waiting) >= self._most_waiting:
            raise self._full(project)
        turn = asyncio.get_running_loop().create_future()
        waiting.append(turn)
        try:
            async with asyncio.timeout(self._seconds):
                await turn
        except BaseException as ended:
            if turn.done() and not turn.cancelled():  # the place came in the same turn of the loop
                self.give_back(project)
            if isinstance(ended, TimeoutError):
                raise self._full(project) from None
            raise
        finally:
            self._forget(project, turn)

    def give_back(self, project: str) -> None:
        """Give a place back, and to whoever is next."""
        self._taken[project] -= 1
        if not self._taken[project]:
            del self._taken[project]
        # All that can go on: the share of this project and the whole may both have been in the way.
        while (following := self._next()) is not None:
            turn = self._waiting[following].popleft()
            if not turn.done():
                # Taken for whoever waits, before that one runs: so nobody else gets it meanwhile.
                self._taken[following] += 1
                turn.set_result(None)

    def _is_free(self, project: str) -> bool:
        return self._taken.total() < self.most and self._taken[project] < self.share

    def _next(self) -> str | None:
        """Return the project that is served next; they stand in the order in which their first came."""
        able = [project for project, waiting in self._waiting.items() if waiting and self._is_free(project)]
        by_few: Callable[[str], int] = self._taken.__getitem__
        return min(able, key=by_few, default=None)

    def _forget(self, project: str, turn: "asyncio.Future[None]") -> None:
        waiting = self._waiting.get(project)
        if waiting is not None and turn in waiting:
            waiting.remove(turn)
        if not waiting:
            self._waiting.pop(project, None)

    def _full(self, project: str) -> NoPlace:
        return NoPlace(is_own=self._taken[project] >= self.share)
