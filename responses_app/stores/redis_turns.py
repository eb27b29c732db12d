"""`RedisTurns`: the turns of chats in the Redis that workers share anyway."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

logger = logging.getLogger("respsite.stores")

PREFIX = "respsite:turns:2"  # another one wherever what is remembered changes: what stands under the first has thoughts
TIMEOUT_SECONDS = 0.5  # of a call: a chat waits no longer for what only makes it better
_FAILURES = (RedisError, OSError, TimeoutError)


class RedisTurns:
    """The turns of chats that workers share, by their keys, each for some time.

    It raises nothing, and takes no long: while Redis is away, nothing is known and nothing is kept.

    `connect` makes the client, which this object owns and closes.
    """

    def __init__(self, connect: Callable[[], Redis], *, prefix: str = PREFIX) -> None:
        self._connect = connect
        self._prefix = prefix
        self._client: Redis | None = None
        self._is_away = False

    async def get(self, keys: Sequence[str]) -> Sequence[bytes | None]:
        """Return what is kept under each of these keys."""
        nothing: Sequence[bytes | None] = [None] * len(keys)
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                # One round trip for all keys; a missing one is None.
                values: Sequence[Any] = await self._redis.mget([f"{self._prefix}:{key}" for key in keys])
        except _FAILURES as problem:
            self._note(problem)
            return nothing
        return values

    async def put(self, key: str, data: bytes, *, seconds: float) -> None:
        """Keep something for so long."""
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                # Redis forgets it by itself; 0 milliseconds would be an error.
                await self._redis.set(f"{self._prefix}:{key}", data, px=max(1, round(seconds * 1000)))
        except _FAILURES as problem:
            self._note(problem)
        else:
            self._note(None)

    async def aclose(self) -> None:
        """Close the client."""
        if self._client is not None:
            await self._client.aclose()

    @property
    def _redis(self) -> Redis:
        if self._client is None:
            self._client = self._connect()
        return self._client

    def _note(self, problem: Exception | None) -> None:
        """Log an outage once, when it begins. A write ends it: a replica answers reads."""
        if problem is not None and not self._is_away:
            logger.warning("Redis is away: chats of other workers are read as their clients send them: %r", problem)
        self._is_away = problem is not None
