"""`BackgroundQueue`: how many background responses run at once, and how many may wait for that."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from responses_app.protocol.errors import rate_limited


class BackgroundQueue:
    """First come, first served: at most `max_running` run, at most `max_queued` wait."""

    def __init__(self, *, max_running: int, max_queued: int) -> None:
        self._running = asyncio.Semaphore(max_running)
        self._places = max_running + max_queued
        self._taken = 0  # by those that wait, run, or are about to
        self.waiting = 0

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

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for a turn, and have it until the block ends."""
        self.waiting += 1
        try:
            await self._running.acquire()
        finally:
            self.waiting -= 1
        try:
            yield
        finally:
            self._running.release()
