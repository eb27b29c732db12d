"""A connection limit that all workers share through Redis.

Each worker keeps its own count and reports it. A report is absolute ("I hold `held` slots and want `wanted` more")
and renews the worker's lease, so the same call serves acquire, release and heartbeat. In Redis stand:

    {prefix}:count   HASH   worker -> "generation:count"
    {prefix}:lease   ZSET   worker -> end of its lease, in milliseconds of Redis' clock

The braces are literal: they keep both keys in one cluster slot. Why it holds:

- One task, the reporter, makes all calls, one at a time. Everything asked for during a call goes into the next one:
  a thousand releases in one turn of the loop cost one call.
- A call that timed out may still reach Redis, after a later one. Each report carries a generation number, and Redis
  ignores a report older than the last it took.
- A killed worker sends no heartbeats; when its lease ends, the next report of any worker drops it with its slots.
- A worker's own `held` is never refused, since its connections are real. After a stall or a flush of Redis it is
  counted again at its next heartbeat. The total may then be over the limit; nothing is granted until it has drained.
- Without Redis a worker allows `limit` connections of its own, says so in `degraded`, and tries again at each
  heartbeat. An outage never ends a connection.
"""

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Callable

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from responses_app.limits.base import BaseConnectionLimit

logger = logging.getLogger(__name__)

# A late reply raises the built-in TimeoutError, which is an OSError.
REDIS_FAILURES = (RedisError, OSError)

# KEYS: count, lease. ARGV: worker, generation, held, wanted, limit, lease in ms. Gives {granted, total}.
# Reports are numbered (generation). One with the last number is that report sent again, and has the same effect.
REPORT = """
local worker, generation, held = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local wanted, limit, lease = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now)
local alive = {}
for _, name in ipairs(redis.call('ZRANGE', KEYS[2], 0, -1)) do alive[name] = true end

local others, last_generation, last_count = 0, 0, 0
local entries = redis.call('HGETALL', KEYS[1])
for i = 1, #entries, 2 do
  local its_generation, its_count = string.match(entries[i + 1], '^(%d+):(%d+)$')
  if entries[i] == worker then
    last_generation, last_count = tonumber(its_generation), tonumber(its_count)
  elseif alive[entries[i]] then
    others = others + tonumber(its_count)
  else
    redis.call('HDEL', KEYS[1], entries[i])
  end
end

if generation < last_generation then return {0, others + last_count} end
local granted = math.max(0, math.min(wanted, limit - others - held))
redis.call('HSET', KEYS[1], worker, string.format('%d:%d', generation, held + granted))
redis.call('ZADD', KEYS[2], now + lease, worker)
return {granted, others + held + granted}
"""


class RedisConnectionLimit(BaseConnectionLimit):
    """Share `limit` slots among all workers that use the same Redis and `prefix`.

    `connect` makes the client, which this object then owns and closes. It should set `socket_timeout=None`, since
    each call here is bounded by `timeout_seconds`; a longer outage than that counts as Redis being away.
    The slots of a killed worker are free again `lease_seconds` after its last report.
    """

    def __init__(
        self,
        limit: int,
        *,
        connect: Callable[[], Redis],
        prefix: str = "respsite:connections",
        lease_seconds: float = 12.0,
        heartbeat_seconds: float = 4.0,
        timeout_seconds: float = 1.0,
    ) -> None:
        """Take the limit and its times.

        Raises:
            ValueError: `limit` is negative, a time is not positive, or one lost heartbeat would end the lease.
        """
        super().__init__(limit)
        if min(heartbeat_seconds, timeout_seconds) <= 0 or lease_seconds < 2 * heartbeat_seconds:
            raise ValueError("Times are positive, and a lease lasts at least two heartbeats.")
        self._connect = connect
        self._keys = (f"{{{prefix}}}:count", f"{{{prefix}}}:lease")
        self._lease_milliseconds = round(lease_seconds * 1000)
        self._heartbeat_seconds = heartbeat_seconds
        self._timeout_seconds = timeout_seconds
        self._worker = ""
        self._generation = 0
        self._client: Redis | None = None
        self._reporter: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._applicants: list[asyncio.Future[bool]] = []
        self._counters: list[asyncio.Future[int]] = []
        self._degraded: str | None = None

    @property
    def degraded(self) -> str | None:
        """Say in one sentence that Redis is away; None while it answers."""
        return self._degraded

    async def start(self) -> None:
        """Connect, report once and start the reporter; where Redis is away, start `degraded`.

        Raises:
            RuntimeError: it was started before.
        """
        await super().start()
        self._worker = uuid.uuid4().hex
        self._client = self._connect()
        # The heartbeat is what tries again. One retry here hides a connection that broke while it was idle.
        self._client.set_retry(Retry(NoBackoff(), 1))
        await self._report()
        self._reporter = asyncio.create_task(self._keep_reporting(), name="connection-limit-reporter")

    async def acquire(self) -> bool:
        """Take a slot if all workers together are below the limit; wait for Redis at most two timeouts."""
        if not self._accepts():
            return False
        if self._degraded is not None:
            return self._take()
        applicant: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._applicants.append(applicant)
        self._wake.set()
        try:
            return await applicant
        except asyncio.CancelledError:
            # The slot may have been granted in the very turn of the loop in which the caller was cancelled.
            if not applicant.cancelled() and applicant.result():
                self.release()
            raise

    def release(self) -> None:
        """Give one slot back at once; the reporter tells Redis."""
        super().release()
        if self._degraded is None:
            self._wake.set()

    async def total(self) -> int:
        """Report and count the open connections of all workers; those of this worker only while `degraded`."""
        if not self._accepts() or self._degraded is not None:
            return self._open
        counter: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._counters.append(counter)
        self._wake.set()
        return await counter

    async def aclose(self) -> None:
        """Stop the reporter, remove this worker from Redis and close the client, within two timeouts."""
        await super().aclose()
        client, self._client = self._client, None
        if client is None:
            return
        self._wake.set()
        try:
            if self._reporter is not None:
                # Not cancelled: a report that was under way might reach Redis after this worker was removed there.
                await asyncio.wait([self._reporter])
            await self._leave(client)
        finally:
            if self._reporter is not None:
                self._reporter.cancel()
            await client.aclose()

    async def _keep_reporting(self) -> None:
        """Report when something changed, and at each heartbeat, until the limit is closed."""
        try:
            while self._accepts():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._heartbeat_seconds):
                        await self._wake.wait()
                self._wake.clear()
                if self._accepts():
                    await self._report()
        finally:
            # Callers of `acquire` wait for a report. Where no more reports come, the limit has to be closed.
            await super().aclose()
            self._answer(*self._waiting(), granted=0, total=0)

    async def _report(self) -> None:
        """Tell Redis this worker's count, and answer those who waited for it."""
        applicants, counters = self._waiting()
        held = self._open
        reply = await self._exchange(held, wanted=len(applicants))
        if reply is None:  # by this worker's own count, then
            self._answer(applicants, counters, granted=max(0, self.limit - self._open), total=self._open)
            return
        granted, total = reply
        self._answer(applicants, counters, granted=granted, total=total)
        if self._open != held + granted:  # released or cancelled meanwhile
            self._wake.set()

    def _waiting(self) -> tuple[list[asyncio.Future[bool]], list[asyncio.Future[int]]]:
        """List who waits for an answer; forget who got one or gave up."""
        self._applicants = [future for future in self._applicants if not future.done()]
        self._counters = [future for future in self._counters if not future.done()]
        return self._applicants.copy(), self._counters.copy()

    async def _exchange(self, held: int, *, wanted: int) -> tuple[int, int] | None:
        """Send one report; give (granted, total), or None where Redis is away."""
        assert self._client is not None
        self._generation += 1
        arguments = (self._worker, self._generation, held, wanted, self.limit, self._lease_milliseconds)
        report = self._client.register_script(REPORT)
        try:
            async with asyncio.timeout(self._timeout_seconds):
                granted, total = await report(self._keys, arguments)
        except REDIS_FAILURES as error:
            self._went_away(error)
            return None
        except Exception as error:
            logger.exception("The connection limit's report failed in an unforeseen way.")
            self._went_away(error)
            return None
        self._came_back()
        return int(granted), int(total)

    def _answer(
        self,
        applicants: list[asyncio.Future[bool]],
        counters: list[asyncio.Future[int]],
        *,
        granted: int,
        total: int,
    ) -> None:
        """Give the granted slots to the first who still wait, and the total to those who asked for it."""
        for applicant in applicants:
            if not applicant.done():
                taken = granted > 0 and self._accepts()
                granted -= taken
                self._open += taken
                applicant.set_result(taken)
        for counter in counters:
            if not counter.done():
                counter.set_result(total)

    def _went_away(self, error: Exception) -> None:
        """Note that Redis is away; log it the first time only. The sentence is public, so it names no address."""
        if self._degraded is None:
            logger.warning(
                "Redis is away (%s: %s): until it is back, each worker allows %d connections of its own.",
                type(error).__name__,
                error,
                self.limit,
            )
        self._degraded = (
            f"The connection limit cannot use Redis ({type(error).__name__}): "
            f"until it is back, each worker allows {self.limit} connections of its own."
        )

    def _came_back(self) -> None:
        """Note that Redis answers."""
        if self._degraded is not None:
            logger.info("Redis is back: the connection limit of %d is global again.", self.limit)
        self._degraded = None

    async def _leave(self, client: Redis) -> None:
        """Remove this worker's count and lease; where Redis is away, the lease's end will."""
        count, lease = self._keys
        try:
            async with asyncio.timeout(self._timeout_seconds), client.pipeline(transaction=True) as pipeline:
                pipeline.hdel(count, self._worker)
                pipeline.zrem(lease, self._worker)
                await pipeline.execute()
        except REDIS_FAILURES as error:
            logger.warning(
                "Redis could not be told that this worker ends (%s: %s); its lease of %.1f s will run out.",
                type(error).__name__,
                error,
                self._lease_milliseconds / 1000,
            )
