"""`BackgroundQueue`: how many background responses run at once, and how many may wait for that."""

from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager

from responses_app.protocol.errors import rate_limited
from responses_app.runs.queues.fair_turns import FairTurns


class BackgroundQueue:
    """At most `max_running` run, at most `max_queued` wait. `now` is a clock, in seconds.

    Who runs next is decided as for the engine (`FairTurns`): projects have equal shares, and inside a project the tier
    moves a response ahead or back by some time, so that none waits for ever.
    """

    def __init__(self, *, max_running: int, max_queued: int, now: Callable[[], float] | None = None) -> None:
        self._turns = FairTurns(max_running=max_running, now=now)
        self._places = max_running + max_queued
        self._taken = 0  # by those that wait, run, or are about to

    @property
    def waiting(self) -> int:
        """How many wait for a turn."""
        return self._turns.waiting.total()

    @contextmanager
    def admission(self) -> Iterator[None]:
        """Take a place for a response while it is accepted; it keeps it until it leaves, or if this raises.

        Raises `ApiError` (429) if it would have to wait and may not.
        """
        if self._taken >= self._places:
            message = f"{self.waiting} background responses wait already (BACKGROUND_MAX_QUEUED). Try again shortly."
            raise rate_limited(message, retry_after=5)
        self.enter()
        try:
            yield
        except BaseException:
            self.leave()
            raise

    def enter(self) -> None:
        """Take a place, whether there is one or not."""
        self._taken += 1

    def leave(self) -> None:
        """Give the place back: the response has ended."""
        self._taken -= 1

    def turn(self, project: str, tier: str, priority: int) -> AbstractAsyncContextManager[None]:
        """Wait for a turn, and have it until the block ends."""
        return self._turns.place(project, tier, priority).turn()
