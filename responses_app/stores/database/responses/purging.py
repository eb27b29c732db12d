"""What a worker's purges remove next: looked for once for many, since to look costs more the more is stored.

Limits of entries or bytes need a count, of one index: half a minute over 100 million responses. So one look finds up to
`MAX_PLANNED` responses, which the next purges remove, and after a slow one there is none for `PAUSES` times as long.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from responses_app.stores.database.responses.retention import MAX_RESPONSES, Plan

MAX_PLANNED = 10_000  # responses; those that are found to go, and went in another way meanwhile, are left out
QUICK_SECONDS = 0.1  # a look that takes no longer costs nothing worth a pause
PAUSES = 50  # so that at most 2 % of the time is spent on looking

NOTHING = Plan((), 0, more=False)


class PurgePlans:
    """One per store. `clock` is in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._plan = NOTHING
        self._look_at = float("-inf")

    @property
    def wants_look(self) -> bool:
        """Whether to look now for what is to go."""
        return not self._plan.response_ids and self._clock() >= self._look_at

    @contextmanager
    def looking(self) -> Iterator[Callable[[Plan], None]]:
        """Time a look, and tell what it found."""
        began = self._clock()
        try:
            yield self._found
        finally:  # also one that was given up: it took longest of all
            seconds = self._clock() - began
            self._look_at = self._clock() + (seconds * PAUSES if seconds > QUICK_SECONDS else 0.0)

    def _found(self, plan: Plan) -> None:
        self._plan = plan

    def next(self) -> Plan:
        """Return what one purge removes. `more` says that another one has something to do now."""
        plan = self._plan
        ids, left = plan.response_ids[:MAX_RESPONSES], plan.response_ids[MAX_RESPONSES:]
        self._plan = Plan(left, 0, more=plan.more) if left else NOTHING
        return Plan(ids, 0, more=bool(left) or (plan.more and self._clock() >= self._look_at))
