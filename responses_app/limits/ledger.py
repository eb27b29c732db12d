"""The contract of the ledger, in which all that is limited is counted: over time in buckets, at once by slots.

`rates` counts the requests and tokens of keys and projects in it, and what runs for them; and the open WebSockets of
all workers.

**Buckets** (the generic cell rate algorithm, which is a token bucket kept as one number). A limit of 60 requests a
minute is a bucket that holds 60 and gets one back each second. What is kept is `left`: the milliseconds until it is
full again. A charge makes that longer, time makes it shorter, and a request goes through if `left` is not longer than
the minute behind it. Example: 60 a minute, so a request costs 1,000 ms.

    at 0 s      the bucket is full: left 0
    60 requests at once: each adds 1,000 ms: left 60,000; all go through
    the 61st    would make it 61,000, which is more than 60,000: refused; try again in 1,000 ms
    at 10 s     left 50,000: ten more go through; the bucket is full again at 70 s if nobody asks

What was used is charged at the end, whatever it is, so `left` may become longer than the minute: a response that said
three minutes' worth of tokens is waited for. A limit that changes needs nothing: the part of the bucket that was used
stays the same. `left` is kept with the time it was true at, and a clock that is set back costs nobody anything.

**Slots**. Each response or WebSocket that runs holds one of its key's and one of its project's, under an id of its own,
and each WebSocket one of the server's. In Redis it is a lease, which its worker renews: those of a killed worker end by
themselves.

A `LedgerJob` is all that a worker has to say at one time. Asks are done all or nothing, in order, behind the rest of
it. `BucketsAndSlots` does it in this process; `redis.SCRIPT` does the same in Redis.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple
from uuid import uuid4

TOLERANCE = 0.001  # milliseconds: what floating point may add up to in a bucket of which exactly all is taken


class Charge(NamedTuple):
    """What is taken from a bucket."""

    key: str  # of the bucket
    cost: float  # milliseconds; below 0 gives back, 0 only asks how much is left
    window: int  # milliseconds: the longest that the bucket may be behind the charge


class Hold(NamedTuple):
    """A slot that is taken."""

    key: str  # of the slots
    limit: int  # how many there are


class Ask(NamedTuple):
    """What is taken, all of it or nothing."""

    charges: Sequence[Charge]  # one for each bucket
    holds: Sequence[Hold] = ()
    id: str = ""  # of the slots' holder


class Answer(NamedTuple):
    """What came of an ask."""

    granted: bool  # it was taken
    left: Sequence[float]  # of each bucket by then, in milliseconds, in the order of the charges
    held: Sequence[int]  # how many others hold a slot, in the order of the holds


@dataclass(slots=True)
class LedgerJob:
    """All that a worker has to say to the ledger at one time."""

    # By the bucket's key, in milliseconds; taken whatever is left
    settle: dict[str, float] = field(default_factory=dict)
    release: list[tuple[str, str]] = field(default_factory=list)  # slots that are given back: key and holder's id
    asks: list[Ask] = field(default_factory=list)  # done in order, behind the rest

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to say."""
        return not (self.settle or self.release or self.asks)


class BucketsAndSlots:
    """The buckets and slots of this process. `now` is in milliseconds, of any clock that is not set back."""

    def __init__(self) -> None:
        self.buckets: dict[str, tuple[float, float]] = {}  # left, and when that was true; a full one is not here
        self.holders: dict[str, set[str]] = {}  # who holds slots, by their keys
        self._sweep_at = 1024  # at so many buckets those that are full again are dropped

    def do(self, job: LedgerJob, now: float) -> list[Answer]:
        """Do a job."""
        for key, cost in job.settle.items():
            self._keep(key, self._left(key, now) + cost, now)
        for key, id in job.release:
            self.release(key, id)
        return [self._answer(ask, now) for ask in job.asks]

    def hold(self, key: str, id: str) -> None:
        """Note a slot that was given elsewhere."""
        self.holders.setdefault(key, set()).add(id)

    def release(self, key: str, id: str) -> None:
        """Give a slot back."""
        holders = self.holders.get(key, set())
        holders.discard(id)
        if not holders:
            self.holders.pop(key, None)

    def _answer(self, ask: Ask, now: float) -> Answer:
        left = [self._left(charge.key, now) for charge in ask.charges]
        held = [len(self.holders.get(hold.key, ())) for hold in ask.holds]
        after = [have + charge.cost for charge, have in zip(ask.charges, left, strict=True)]
        fits = all(
            not charge.cost or then <= charge.window + TOLERANCE
            for charge, then in zip(ask.charges, after, strict=True)
        )
        if not (fits and all(count < hold.limit for hold, count in zip(ask.holds, held, strict=True))):
            return Answer(False, left, held)
        for charge, then in zip(ask.charges, after, strict=True):
            self._keep(charge.key, then, now)
        for hold in ask.holds:
            self.hold(hold.key, ask.id)
        return Answer(True, after, held)

    def _left(self, key: str, now: float) -> float:
        left, at = self.buckets.get(key, (0.0, now))
        # It empties by itself as time goes on; a full bucket stays full.
        return max(0.0, left - (now - at))

    def _keep(self, key: str, left: float, now: float) -> None:
        if left <= 0:
            self.buckets.pop(key, None)
            return
        self.buckets[key] = left, now
        if len(self.buckets) > self._sweep_at:  # full ones are the same as none
            self.buckets = {each: kept for each, kept in self.buckets.items() if self._left(each, now) > 0}
            self._sweep_at = max(1024, 2 * len(self.buckets))


class BaseLedger(ABC):
    """The ledger of one worker process.

    `start()` once, then all else from the loop that started it, then `aclose()`, also where `start()` was cancelled.
    """

    def __init__(self) -> None:
        self.is_started = False
        self.is_closed = False
        self.away: str | None = None  # the error for which this worker counts by itself; None: all count together
        self.forgets: str | None = None  # why counts may get lost where they are kept; None: they are not
        self._own = BucketsAndSlots()  # what it holds itself; and its buckets, while nobody shares them
        self._worker = uuid4().hex[:16]
        self._numbers = count(1)

    @property
    def holders(self) -> Mapping[str, Collection[str]]:
        """Who holds slots through this worker, by their keys."""
        return self._own.holders

    def new_id(self) -> str:
        """Return an id for a holder of slots that no worker has used."""
        return f"{self._worker}:{next(self._numbers)}"

    async def start(self) -> None:
        """Make it ready. Raises `RuntimeError` the second time."""
        if self.is_started:
            raise RuntimeError("A ledger is started once.")
        self.is_started = True

    async def aclose(self) -> None:
        """Give back all slots that this worker holds; do nothing the second time."""
        self.is_closed = True

    @abstractmethod
    async def ask(self, ask: Ask) -> Answer:
        """Return what came of an ask; where this is cancelled, nothing is taken."""

    @abstractmethod
    def post(self, job: LedgerJob) -> None:
        """Settle and release what a job has, soon; return at once and never raise. It has no asks."""

    @abstractmethod
    def hold(self, key: str, id: str) -> None:
        """Take a slot whatever the limit says."""
