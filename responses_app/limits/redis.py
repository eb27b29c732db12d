"""The ledger that all workers share through Redis. What is counted, and how, is told in `ledger`.

    {prefix}:requests_per_minute:key:ID      STRING  "left at", in milliseconds of Redis' clock; gone once it is full
    {prefix}:concurrent_responses:key:ID     ZSET    holder -> end of its lease, in milliseconds of Redis' clock
    {prefix}:connections                     ZSET    the same, of all open WebSockets

The braces are literal: they keep all keys in one cluster slot. Why it holds:

- One task, the clerk, makes all calls, one at a time, each of them one script. Everything asked for during a call goes
  into the next one: requests that come together share a round trip. What was used is settled with the next requests, or
  `SETTLE_SECONDS` later. So a worker's settlements are never overtaken by its own later requests.
- An ask is atomic over all its limits. No clock of a worker counts.
- A slot is a lease of its own: to grant, renew or drop it twice changes nothing. A call that timed out and reaches
  Redis all the same leaves a slot that nobody renews, and it ends by itself; so do those of a killed worker.
- A slot that its worker holds is real and is renewed whatever the limit says: after a stall of the worker, or a flush
  of Redis, all it holds is counted again at its next heartbeat. More may be held than the limit by then; nothing is
  granted until that has drained.
- A clock of Redis that is set back costs nothing: a bucket's time is never counted backwards, and leases that end later
  than any could are dropped until they are renewed.
- Without Redis each worker counts in its own memory, says so once and in `away`, and tries again at each heartbeat. It
  says then what was released meanwhile. An outage ends no connection and no response.
- Redis is there if it takes writes: a heartbeat writes, even with nothing to renew. A replica or a server that is full
  answers everything else, and only what was counted there may take the place of this worker's own count.

    {prefix}:alive                           STRING  what heartbeats write
"""

import asyncio
import contextlib
import hashlib
import logging
import re
from collections.abc import Callable, Mapping
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    ClusterDownError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
)

from engine import orjson
from responses_app.limits.ledger import TOLERANCE, Answer, Ask, BaseLedger, BucketsAndSlots, LedgerJob

logger = logging.getLogger("respsite.limits")

REDIS_FAILURES = (RedisError, OSError)  # a late reply raises the built-in TimeoutError, which is an OSError
SETTLE_SECONDS = 0.01  # how long a settlement may wait for a request to go along with
MAX_ASKS = 500  # in one call: Redis does nothing else meanwhile
# The rights that the user in REDIS_URL needs, as rules of Redis' ACL.
RIGHTS = "~respsite:* ~{respsite:* &respsite* +@all -@dangerous +info"
ALIVE = "alive"  # the key that heartbeats write

# KEYS: all of the job. ARGV: the job as JSON; it names a key by its place in KEYS. Gives the answers as JSON.
SCRIPT = (
    """
local job = cjson.decode(ARGV[1])
local now = job.now
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end
local ends = string.format('%.0f', now + job.lease)  -- of a lease that begins now
-- Before anything else: where Redis takes no writes, nothing of the job is done.
if job.alive then redis.call('SET', KEYS[job.alive], ends, 'PX', job.lease) end

-- A bucket is kept until it is full again.
local function keep(key, left)
  if left <= 0 then redis.call('DEL', key)
  else redis.call('SET', key, string.format('%.6f %.0f', left, now), 'PX', math.ceil(left)) end
end

local function left_of(key)
  local kept = redis.call('GET', key)
  if not kept then return 0 end
  local left, at = string.match(kept, '^(%S+) (%S+)$')
  left, at = tonumber(left), tonumber(at)
  if at > now then keep(key, left) end  -- the clock was set back
  return math.max(0, left - math.max(0, now - at))
end

-- How many hold a slot beside `id`, which is there if this call was sent before and its answer lost: not those whose
-- lease is over, nor any that ends later than one can.
local function held_beside(key, id)
  redis.call('ZREMRANGEBYSCORE', key, '-inf', string.format('%.0f', now))
  redis.call('ZREMRANGEBYSCORE', key, '(' .. ends, '+inf')
  return redis.call('ZCARD', key) - (redis.call('ZSCORE', key, id) and 1 or 0)
end

local function hold(key, ids)
  for _, id in ipairs(ids) do redis.call('ZADD', key, ends, id) end
  redis.call('PEXPIRE', key, job.lease)
end

-- What was used, what is given back, and what its worker still holds: whatever the limits say.
for _, each in ipairs(job.settle) do keep(KEYS[each[1]], left_of(KEYS[each[1]]) + each[2]) end
for _, each in ipairs(job.release) do redis.call('ZREM', KEYS[each[1]], each[2]) end
for _, each in ipairs(job.renew) do hold(KEYS[each[1]], each[2]) end

-- What is asked for, in order: all of an ask or nothing.
local answers = {}
for number, ask in ipairs(job.asks) do
  local charges, holds, id = ask[1], ask[2], ask[3]
  local left, held, granted = {}, {}, true
  for i, charge in ipairs(charges) do
    local key, cost, window = KEYS[charge[1]], charge[2], charge[3]
    left[i] = left_of(key)
    if cost ~= 0 and left[i] + cost > window + TOLERANCE then granted = false end
  end
  for i, place in ipairs(holds) do
    local key, limit = KEYS[place[1]], place[2]
    held[i] = held_beside(key, id)
    if held[i] >= limit then granted = false end
  end
  if granted then
    for i, charge in ipairs(charges) do
      left[i] = left[i] + charge[2]
      if charge[2] ~= 0 then keep(KEYS[charge[1]], left[i]) end
    end
    for _, place in ipairs(holds) do hold(KEYS[place[1]], {id}) end
  end
  answers[number] = {granted, left, held}
end
return cjson.encode(answers)
"""
).replace("TOLERANCE", str(TOLERANCE))

_DIGEST = hashlib.sha1(SCRIPT.encode(), usedforsecurity=False).hexdigest()  # how Redis calls it
_Pending = tuple[Ask, "asyncio.Future[Answer]"]


class RedisLedger(BaseLedger):
    """Counts together with all workers that use the same Redis and `prefix`.

    `connect` makes the client, which this object then owns and closes. It should set `socket_timeout=None`, since each
    call here is bounded by `timeout_seconds`. The slots of a killed worker are free again `lease_seconds` after it last
    renewed them. `now` takes the place of Redis' clock, in milliseconds.
    """

    def __init__(
        self,
        connect: Callable[[], Redis],
        *,
        prefix: str = "respsite:rates",
        lease_seconds: float = 12.0,
        heartbeat_seconds: float = 4.0,
        timeout_seconds: float = 1.0,
        now: Callable[[], float] | None = None,
    ) -> None:
        super().__init__()
        if min(heartbeat_seconds, timeout_seconds) <= 0 or lease_seconds < 2 * heartbeat_seconds:
            raise ValueError("Times are positive, and a lease lasts at least two heartbeats.")
        self._connect = connect
        # Three braces make one: "{respsite:rates}:".
        self._prefix = f"{{{prefix}}}:"
        self._lease = round(lease_seconds * 1000)
        self._heartbeat_seconds = heartbeat_seconds
        self._timeout_seconds = timeout_seconds
        self._now = now
        self._client: Redis | None = None
        self._waiting: list[_Pending] = []  # asks for the next call
        self._job = LedgerJob()  # what is to be settled
        self._wake = asyncio.Event()  # there is something to say
        self._settling: asyncio.TimerHandle | None = None  # rings when what is to be settled has waited long enough
        self._clerk: asyncio.Task[None] | None = None
        self._renews_now = False  # there is a slot that Redis does not know of
        self._knows_memory = False  # what Redis does when it is full: it may be another one each time it is back
        self._forget_at = 0.0  # while it is away: when all leases that it knows of are over

    async def start(self) -> None:
        """Connect and start the clerk; where Redis is away, start without."""
        await super().start()
        self._client = self._connect()
        self._client.set_retry(Retry(NoBackoff(), 1))  # hides a connection that broke while it was idle
        await self._call(renews=True)
        await self._learn_memory()
        self._clerk = asyncio.create_task(self._work(), name="clerk of limits")

    async def aclose(self) -> None:
        """Settle what is left, give back what this worker holds, and close the client, within two timeouts."""
        client = self._client
        if client is None or self.is_closed:
            return
        await super().aclose()
        self._wake.set()
        if self._clerk is not None:
            await asyncio.wait([self._clerk])  # not cancelled: a late call might take again what is given back now
        if self._settling is not None:
            self._settling.cancel()
        self._job.release += [(key, id) for key, ids in self.holders.items() for id in ids]
        self._own = BucketsAndSlots()
        try:
            if not self._job.is_empty:
                await self._call()
        finally:
            await client.aclose()
        if self._job.release:
            logger.warning(
                "Redis could not be told that this worker ends (%s); its leases of %.1f s will run out.",
                self.away,
                self._lease / 1000,
            )

    def post(self, job: LedgerJob) -> None:
        self._job.release += job.release
        # Releases are kept for when Redis is back, since it still has those leases; charges count here only.
        if self.away is not None:
            self._own.do(job, self._own_now())
            return
        for key, id in job.release:
            self._own.release(key, id)
        for key, cost in job.settle.items():
            self._job.settle[key] = self._job.settle.get(key, 0.0) + cost
        if self._settling is None:
            self._settling = asyncio.get_running_loop().call_later(SETTLE_SECONDS, self._settle)

    def _settle(self) -> None:
        self._settling = None
        self._wake.set()

    def hold(self, key: str, id: str) -> None:
        self._own.hold(key, id)
        self._renews_now = True
        self._wake.set()

    async def ask(self, ask: Ask) -> Answer:
        if self.away is not None or self._clerk is None or self._clerk.done():
            return self._own.do(LedgerJob(asks=[ask]), self._own_now())[0]
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append((ask, answer))
        self._wake.set()
        try:
            return await answer
        except asyncio.CancelledError:
            # It may have been granted in the very turn of the loop in which the caller was cancelled.
            if not answer.cancelled() and answer.result().granted:
                self.post(_given_back(ask))
            raise

    async def _work(self) -> None:
        """Call Redis when there is something to say, and at each heartbeat."""
        loop = asyncio.get_running_loop()
        beat = loop.time() + self._heartbeat_seconds
        try:
            while not self.is_closed:
                # Whichever comes first: something to say, or the time of the heartbeat.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(beat):
                        await self._wake.wait()
                # Cleared before the call: what comes during it wakes the next round at once.
                self._wake.clear()
                renews, self._renews_now = self._renews_now or loop.time() >= beat, False
                if renews:
                    beat = loop.time() + self._heartbeat_seconds
                if renews or self._waiting or not self._job.is_empty:
                    await self._call(renews=renews)
                await self._learn_memory()
        finally:
            self._answer_here(self._waiting)

    async def _call(self, *, renews: bool = False) -> None:
        """Say what there is to say, and answer those who asked."""
        pending, self._waiting = self._waiting[:MAX_ASKS], self._waiting[MAX_ASKS:]
        if self._waiting:
            self._wake.set()
        # What is posted during the call goes into the next job.
        job, self._job = self._job, LedgerJob()
        job.asks = [ask for ask, answer in pending if not answer.done()]
        pending = [each for each in pending if not each[1].done()]
        was_away = self.away is not None
        try:
            async with asyncio.timeout(self._timeout_seconds):
                answers = await self._say(job, renews=renews)
        except REDIS_FAILURES as error:
            self._went_away(error)
            # Behind an address that has moved on to another server, a new connection leads there.
            if isinstance(error, ReadOnlyError) and self._client is not None:
                await self._client.connection_pool.disconnect()
        except Exception as error:
            logger.exception("limits could not be counted in Redis, in an unforeseen way")
            self._went_away(error)
        else:
            self._came_back(was_away)
            self._give(pending, answers)
            return
        # The call has failed, or nobody knows: from here on this worker counts by itself.
        self._own.do(LedgerJob(job.settle, job.release), self._own_now())
        # Later Redis has no lease of this worker any more that could be released.
        if asyncio.get_running_loop().time() < self._forget_at:
            self._job.release = job.release + self._job.release
        # Also those who came during the call: nobody calls Redis before the next heartbeat.
        waiting, self._waiting = self._waiting, []
        self._answer_here([*pending, *waiting])

    async def _learn_memory(self) -> None:
        """Find out whether Redis forgets counts when it is full, once each time that it is there."""
        if self._knows_memory or self.away is not None or self._client is None:
            return
        self._knows_memory = True
        try:
            async with asyncio.timeout(self._timeout_seconds):
                self.forgets = evicts(await self._client.info("memory"))
        except REDIS_FAILURES as error:
            logger.info("what Redis does when it is full cannot be found out (%s)", reason(error))
            return
        if self.forgets:
            logger.warning("Redis may forget limits: %s", self.forgets)

    async def _say(self, job: LedgerJob, *, renews: bool) -> list[Answer]:
        client = self._client
        assert client is not None, "it was started"
        keys: dict[str, int] = {}

        def place(key: str) -> int:
            # Lua counts from 1.
            return keys.setdefault(key, len(keys) + 1)

        message: dict[str, Any] = {
            "lease": self._lease,
            "settle": [(place(key), cost) for key, cost in job.settle.items()],
            "release": [(place(key), id) for key, id in job.release],
            "renew": [(place(key), list(ids)) for key, ids in self._own.holders.items()] if renews else [],
            "asks": [
                (
                    [(place(charge.key), charge.cost, charge.window) for charge in ask.charges],
                    [(place(hold.key), hold.limit) for hold in ask.holds],
                    ask.id,
                )
                for ask in job.asks
            ],
        }
        if renews:
            message["alive"] = place(ALIVE)
        if self._now is not None:
            message["now"] = self._now()
        names = [self._prefix + key for key in keys]
        try:
            reply: Any = await client.evalsha(_DIGEST, len(names), *names, orjson.dumps(message))
        except NoScriptError:  # it is new there, was started again, or flushed
            reply = await client.eval(SCRIPT, len(names), *names, orjson.dumps(message))
        # cjson writes an empty table as an object
        return [Answer(granted, list(left), list(held)) for granted, left, held in orjson.loads(reply)]

    def _give(self, pending: list[_Pending], answers: list[Answer]) -> None:
        for (ask, waiting), answer in zip(pending, answers, strict=True):
            if answer.granted:
                for hold in ask.holds:
                    self._own.hold(hold.key, ask.id)
            if not waiting.done():
                waiting.set_result(answer)
            elif answer.granted:  # whoever asked has left meanwhile
                self.post(_given_back(ask))

    def _answer_here(self, pending: list[_Pending]) -> None:
        """Answer by this worker's own count."""
        for ask, waiting in pending:
            if not waiting.done():
                waiting.set_result(self._own.do(LedgerJob(asks=[ask]), self._own_now())[0])

    def _own_now(self) -> float:
        return self._now() if self._now is not None else asyncio.get_running_loop().time() * 1000

    def _went_away(self, error: Exception) -> None:
        """Note that Redis is away; log it the first time only."""
        if self.away is None:
            self._forget_at = asyncio.get_running_loop().time() + self._lease / 1000
            logger.warning(
                "Redis is away (%s: %s): until it is back, "
                "each worker counts connections and limits of keys and projects by itself",
                type(error).__name__,
                error,
            )
        self.away = reason(error)

    def _came_back(self, was_away: bool) -> None:
        self.away = None
        if was_away:
            self._knows_memory = False
            # Buckets of this worker's own count stay, and empty by themselves: else each of many short outages would
            # begin with a full one. Slots stay, too: they are renewed, and so counted in Redis again.
            logger.info(
                "Redis is back: connections and limits of keys and projects are counted by all workers together again"
            )


_REASONS = {  # by what Redis' answer begins with, or has in it
    "READONLY|read only replica": "it takes no writes: it is a replica",
    "OOM": "it is full: raise its maxmemory",
    "NOREPLICAS": "it takes no writes: too few of its replicas are there",
    "MISCONF": "it takes no writes: it cannot save to its disk",
    "CLUSTERDOWN|MOVED|CROSSSLOT": "it is a node of a Redis Cluster: REDIS_URL has to name a Redis of its own",
    "NOPERM|no permission|can't run this command": f"its user lacks rights: it needs {RIGHTS}",
}
_CLASSES = {
    ReadOnlyError: "READONLY",
    OutOfMemoryError: "OOM",
    NoPermissionError: "NOPERM",
    ClusterDownError: "CLUSTERDOWN",
}


def evicts(memory: Mapping[str, Any]) -> str | None:
    """Return why Redis may forget counts when it is full, by its INFO of memory; None where it keeps them."""
    policy = str(memory.get("maxmemory_policy", "noeviction"))
    if policy == "noeviction" or not int(memory.get("maxmemory", 0)):
        return None
    return f"when it is full it forgets keys ({policy}), and limits with them: set maxmemory-policy noeviction"


def reason(error: BaseException) -> str:
    """Return why Redis cannot be used, in a few words without an address."""
    text = f"{_CLASSES.get(type(error), '')} {error}"
    for words, told in _REASONS.items():
        if re.search(words, text):
            return told
    return type(error).__name__


def _given_back(ask: Ask) -> LedgerJob:
    """Return what undoes an ask that was granted."""
    return LedgerJob(
        settle={charge.key: -charge.cost for charge in ask.charges if charge.cost},
        release=[(hold.key, ask.id) for hold in ask.holds],
    )
