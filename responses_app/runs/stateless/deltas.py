"""`Deltas`: what a completion has said and its reader has not taken, bounded in bytes as a response's journal is."""

import asyncio
from collections import deque

from responses_app.protocol.errors import ApiError
from responses_app.protocol.stateless.completions import ChoiceDelta
from responses_app.runs.log.journal import ENTRY_BYTES, ReaderTooSlow

READ_AT_ONCE = 64  # that are taken and written together, where a reader is behind
TOKEN_BYTES = 16  # of memory for a token, about, and ten times that for each of its log probabilities


class Deltas:
    """A queue with one reader, which may be `max_bytes` behind."""

    def __init__(self, *, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._waiting: deque[tuple[ChoiceDelta, int]] = deque()  # with their bytes
        self._problem: ApiError | None = None
        self._news = asyncio.Event()

    @property
    def are_many(self) -> bool:
        """Whether more wait than are taken at once."""
        return len(self._waiting) > READ_AT_ONCE

    def put(self, delta: ChoiceDelta, tokens: int) -> None:
        """Add what this many tokens say. Raises `ReaderTooSlow` where too much waits already.

        An echo does not count: it comes at once, and is as long as the request.
        """
        if self._bytes > self._max_bytes:
            raise ReaderTooSlow
        size = ENTRY_BYTES + tokens * TOKEN_BYTES
        if delta.logprobs is not None:
            size += 10 * TOKEN_BYTES * sum(map(len, delta.logprobs.top_logprobs))
        self._bytes += size
        self._waiting.append((delta, size))
        self._news.set()

    def fail(self, problem: ApiError) -> None:
        """Tell of a failure behind what waits; the first one is told."""
        self._problem = self._problem or problem
        self._news.set()

    def give_up(self, problem: ApiError) -> None:
        """Tell of a failure instead of what waits."""
        self._waiting.clear()
        self._bytes = 0
        self._problem = problem
        self._news.set()

    async def take(self, seconds: float | None = None) -> list[ChoiceDelta]:
        """Return the next ones, none where nothing came in these seconds. Raises the failure once it is their turn."""
        if not self._waiting and self._problem is None:
            self._news.clear()
            try:
                async with asyncio.timeout(seconds):
                    await self._news.wait()
            except TimeoutError:
                return []
        if not self._waiting and self._problem is not None:
            raise self._problem
        taken: list[ChoiceDelta] = []
        while self._waiting and len(taken) < READ_AT_ONCE:
            delta, size = self._waiting.popleft()
            self._bytes -= size
            taken.append(delta)
        return taken
