"""`StoreClock`: one time for all workers, whatever the clocks of their machines say. `IdFactory` makes ids by it.

What a worker dates, another one judges: how old a response is, and whether a key has expired. With two machines' clocks
ten minutes apart and RESPONSES_STORE_TTL=300, a response of the one would be too old for the other before it has ended.
So all of them go by the store's clock, which they hear with every beat (see `WorkerHeartbeat`), and by their own, which
is never set, between two beats.

What is kept is the difference of the two clocks. An answer that was asked for at 100 and came at 102 of our own clock,
and says 1000, bounds it: 1000 was at the earliest at 100, so the difference is 900 at the most, and 898 at the least. A
difference within these bounds stays; another one moves to the nearer of them. So a database that hangs before it
answers does not make the clock wrong.
"""

import random
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial

from responses_app.protocol.ids import COUNTER_BITS

# Seconds that count also while the process is stopped or the machine sleeps, where the system can tell. Nobody sets
# this clock; what it says means nothing to another machine.
own_clock: Callable[[], float] = (
    partial(time.clock_gettime, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic
)


class StoreClock:
    """The store's clock: called, it returns Unix seconds; this machine's until the store was first heard."""

    def __init__(self) -> None:
        self._difference: float | None = None

    def __call__(self) -> float:
        return time.time() if self._difference is None else own_clock() + self._difference

    def heard(self, at: float, *, asked: float, answered: float) -> None:
        """Note a time of the store that was asked for and answered then, by `own_clock`."""
        # The store read its clock at some moment between the question and the answer.
        least, most = at - answered, at - asked
        before = (least + most) / 2 if self._difference is None else self._difference
        self._difference = min(max(before, least), most)


_random_bits: Callable[[int], int] = random.SystemRandom().getrandbits


class IdFactory:
    """Makes ids by a clock: `now()` is Unix seconds, `random_bits(n)` an n-bit int."""

    def __init__(self, now: Callable[[], float], random_bits: Callable[[int], int] = _random_bits) -> None:
        self._now = now
        self._random_bits = random_bits
        self._last = 0  # milliseconds and counter as one number, so that a full counter carries into the time

    def __call__(self, prefix: str) -> str:
        """Return a new id; a clock that stands still or goes back does not disturb the order."""
        # Never less than one more than the last: so ids are ordered whatever the clock does.
        self._last = max(self._last + 1, int(self._now() * 1000) << COUNTER_BITS)
        milliseconds, counter = divmod(self._last, 1 << COUNTER_BITS)
        # RFC 9562: 48 bits of time, version 7, 12 bits of counter, variant 0b10, 62 bits of chance.
        value = milliseconds << 80 | 0x7 << 76 | counter << 64 | 0b10 << 62 | self._random_bits(62)
        return f"{prefix}{value:032x}"


def utc(seconds: float) -> datetime:
    """Return a Unix time as columns have it."""
    return datetime.fromtimestamp(seconds, UTC)


def unix(time: datetime) -> int:
    """Return the Unix seconds of a column's time, as the API shows them."""
    return int(time.timestamp())


def rfc3339(seconds: int) -> str:
    """Return a time (Unix seconds) as clients of Anthropic's API read it."""
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
