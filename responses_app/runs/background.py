"""`BackgroundQueue`: how many background responses run at once, and how many may wait for that."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from responses_app.protocol.errors import rate_limited


class BackgroundQueue:
    """First come, first served: at most `max_running` run, at most `max_queued` wait."""

    def __init__(self, *, max_running: int, max_queued: int) -> None:
        self._running = asyncio.Semaphore(max_running)
        self._max_queued = max_queued
        self.waiting = 0

    def check_room(self) -> None:
        """Raise `ApiError` (429) if another one would have to wait and may not."""
        if self._running.locked() and self.waiting >= self._max_queued:
            message = f"{self.waiting} background responses wait already (BACKGROUND_MAX_QUEUED). Try again shortly."
            raise rate_limited(message, retry_after=5)

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
