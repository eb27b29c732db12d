"""`Places`: how many containers may work at once; projects share them, so that none has all of them.

One project may have `share` of them. Where it has, or none is free, its work waits. A place that becomes free goes to
the project that has fewest; of those that have as few, to the one that has waited for longest. Of a project only so
much work may wait, and only so long.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable

from responses_app.tools.sandbox.records import TooManyContainers

MAX_WAITING = 64  # of one project; what waits has a request of its own that waits for it


class Places:
    """Those of one process. `seconds` is how long may be waited for one."""

    def __init__(self, *, most: int, share: int, seconds: float) -> None:
        self._most = most
        self._share = share
        self._seconds = seconds
        self._taken: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # of each project; who came first is first

    async def take(self, project: str) -> None:
        """Have a place, which `give_back` ends. Raises `TooManyContainers`."""
        if self._is_free(project):
            self._taken[project] += 1
            return
        waiting = self._waiting.setdefault(project, deque())
        if len(waiting) >= MAX_WAITING:
            raise self._full(project)
        given = asyncio.get_running_loop().create_future()
        waiting.append(given)
        try:
            async with asyncio.timeout(self._seconds):
                await given
        except BaseException as ended:
            if given.done() and not given.cancelled():  # it was given in the very turn of the loop
                self.give_back(project)
            if isinstance(ended, TimeoutError):
                raise self._full(project) from None
            raise
        finally:
            self._forget(project, given)

    def give_back(self, project: str) -> None:
        """Give a place back, and to whoever is next."""
        self._taken[project] -= 1
        if not self._taken[project]:
            del self._taken[project]
        while (following := self._next()) is not None:
            given = self._waiting[following].popleft()
            if not given.done():
                self._taken[following] += 1
                given.set_result(None)

    def _is_free(self, project: str) -> bool:
        return self._taken.total() < self._most and self._taken[project] < self._share

    def _next(self) -> str | None:
        """Return the project that is served next; they stand in the order in which their first came."""
        able = [project for project, waiting in self._waiting.items() if waiting and self._is_free(project)]
        by_few: Callable[[str], int] = self._taken.__getitem__
        return min(able, key=by_few, default=None)

    def _forget(self, project: str, given: "asyncio.Future[None]") -> None:
        waiting = self._waiting.get(project)
        if waiting is not None and given in waiting:
            waiting.remove(given)
        if not waiting:
            self._waiting.pop(project, None)

    def _full(self, project: str) -> TooManyContainers:
        if self._taken[project] >= self._share:
            return TooManyContainers(
                f"this project has {self._share} containers at work, as many as one project may have at once "
                "(SANDBOX_PROJECT_CONTAINERS); try again once one of them has ended"
            )
        return TooManyContainers(
            f"all {self._most} containers that this server may have at once (SANDBOX_MAX_CONTAINERS) are at work; try "
            "again later"
        )
