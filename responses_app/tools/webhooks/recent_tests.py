"""`RecentTests`: how many test events projects have had sent, so that none uses an endpoint's test to flood others."""

import math
import time
from collections import deque
from collections.abc import Callable

TESTS_A_MINUTE = 30  # of one project, through one worker
MINUTE = 60.0


class RecentTests:
    """The test events of the last minute, as one worker knows them. `clock` is in seconds, and never goes back."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._tests: dict[str, deque[float]] = {}  # when each was sent, by project

    def seconds_until_room(self, project: str) -> int:
        """Count a test and return 0; where the project has had as many as it may, return how long it has to wait."""
        since = self._clock() - MINUTE
        for name, times in list(self._tests.items()):
            while times and times[0] <= since:
                times.popleft()
            if not times:
                del self._tests[name]
        mine = self._tests.setdefault(project, deque())
        if len(mine) >= TESTS_A_MINUTE:
            return max(1, math.ceil(mine[0] - since))
        mine.append(self._clock())
        return 0
