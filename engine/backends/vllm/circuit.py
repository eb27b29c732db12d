"""`Circuit`: when a server that fails is left alone, and when it is tried again. Pure: times come as arguments.

    closed ──── it is away, or fails MAX_FAILURES times in FAILURE_SECONDS ───> open
       ^                                                                         │
       └──────────────────── a probe of it works (after WAITS) ──────────────────┘

The circuit breaker of M. Nygard, "Release It!" (2007). The waits go on where they were for one that works for a moment
only: with a server that dies 5 s after each start, the probes come after 0, 1, 2, 5, 10, 10, … s.
"""

from collections import deque

MAX_FAILURES = 3
FAILURE_SECONDS = 10.0
WAITS = (0.0, 1.0, 2.0, 5.0, 10.0)  # seconds before each probe; the last one repeats
CALM_SECONDS = 30.0  # one that was used for so long begins with the first wait


class Circuit:
    """Of one server; open until it was found to work for the first time. Times are seconds of one clock."""

    def __init__(self) -> None:
        self.is_closed = False
        self._closed_at = 0.0
        self._failures: deque[float] = deque(maxlen=MAX_FAILURES)
        self._probes = 0

    def note_failure(self, now: float) -> bool:
        """Note that it broke a generation; return whether it does so too often."""
        self._failures.append(now)
        return len(self._failures) == MAX_FAILURES and now - self._failures[0] <= FAILURE_SECONDS

    def note_success(self) -> None:
        """Note that a generation came to its end."""
        self._failures.clear()

    def is_suspect(self, now: float) -> bool:
        """Whether it failed just now, and has not worked since."""
        return bool(self._failures) and now - self._failures[-1] <= FAILURE_SECONDS

    def open(self, now: float) -> None:
        """Use it no more until a probe works."""
        if self.is_closed:
            self.is_closed = False
            if now - self._closed_at >= CALM_SECONDS:
                self._probes = 0

    def next_wait(self) -> float:
        """Return how many seconds to wait before the next probe of an open one."""
        wait = WAITS[min(self._probes, len(WAITS) - 1)]
        self._probes += 1
        return wait

    def close(self, now: float) -> None:
        """Use it again: a probe has worked."""
        self.is_closed = True
        self._closed_at = now
        self._failures.clear()
