"""`Pulse`: when the store heard from this worker, and what follows from that about the others."""

import math

from responses_app.stores.clock import own_clock

GAP_PER_LEASE = 0.5  # leases; in a longer gap between two beats the database may have answered nobody
NOBODY = -math.inf  # a time since which everybody was seen, so nobody is dead


class Pulse:
    """Times are the store's, in Unix seconds; only how long this worker itself was silent goes by its own clock.

    A worker is dead if it was silent for a lease before *our own* last beat. What passes after that, while a claim
    waits for a database that hangs, is not a silence of others: they would wait too. Nor is a time in which we could
    not beat: after a start, or a gap, all have a lease to say that they live.
    """

    def __init__(self, lease: float) -> None:
        self._lease = lease
        self._last = self._since = math.inf
        self._heard_at = math.inf  # by our own clock

    @property
    def age(self) -> float:
        """Seconds since the last beat, by our own clock; infinite before the first."""
        return math.inf if math.isinf(self._heard_at) else own_clock() - self._heard_at

    @property
    def dead_before(self) -> float:
        """Who was not seen since then is dead."""
        continuous = self._last - self._since if math.isfinite(self._last) else 0.0
        return self._last - self._lease if continuous >= self._lease else NOBODY

    @property
    def suspect_before(self) -> float:
        """Who was not seen since then may be dead, by our own clock: worth a beat, after which `dead_before` tells."""
        return self._last + self.age - self._lease if math.isfinite(self._last) else NOBODY

    def beat(self, heard: float, *, asked: float) -> bool:
        """Note a beat that the store heard at a time of its clock, `asked` for at `clock()`.

        Return whether others may have taken this worker for dead before it.
        """
        gap = heard - self._last
        if not 0 <= gap <= self._lease * GAP_PER_LEASE:  # a clock that goes back is not a measure either
            self._since = heard
        silent = max(gap, asked - self._heard_at)  # minus infinity at the first
        self._last, self._heard_at = heard, asked
        return silent >= self._lease

    clock = staticmethod(own_clock)
