"""`Rest`: whether a container stands still, from the end of a call to the beginning of the next one.

The warden stops all processes at the end of a call. Code can have itself woken: by a timer whose signal is SIGCONT, by
a descriptor that sends one when something is written elsewhere, and by more that this page would not name all of. So
nothing here asks what may wake it. What runs takes processor time, or is not stopped, or is a process that was not
there: each of the three is seen, and the container ends.

Where it is in a cgroup of its own, that is frozen meanwhile (`cgroups`), and what wakes goes no further: then only
whether the freezer holds all of it is looked at.
"""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from responses_app.tools.sandbox import processes
from responses_app.tools.sandbox.cgroups import Cgroup

# Until all stand still: a process is told to stop, and must have the processor once to do it, which others have first.
# It may be in a long system call, or just end: to give back memory takes time, so a container that may have more of it
# has longer, and more processor time (in hundredths of a second).
SETTLE_SECONDS, SETTLE_SECONDS_OF_GIB = 10.0, 1.0
SETTLE_TICKS, SETTLE_TICKS_OF_GIB = 20, 30
LOOKS_UNTIL_WALK = 8  # looks at the processes that are known, until one for others, which takes ten times as long
# Stopped, or traced; ended; or in the system, from where it comes out stopped, as the parent of a `vfork` does.
_STILL = "TtZXD"


@dataclass(slots=True)
class Rest:
    """One rest of a container, from the end of a call until the next one."""

    root: int  # all processes of the container descend from it
    memory: int  # bytes that the container may have
    attendants: frozenset[int]  # run no code of the container's: the warden, and what started it
    cgroup: Cgroup | None = None
    is_settled: bool = False  # all of it was seen to stand still
    _began: float = field(default_factory=time.monotonic)
    looks: int = 0  # how often it was looked at
    _seen: Mapping[int, int] = field(default_factory=dict)  # ticks, by process
    _ticks_at_first: int | None = None

    def is_kept(self) -> bool:
        """Look once; return whether it stands still, or has had no time to yet."""
        self.looks += 1
        if self.cgroup is not None:
            self.is_settled = self.cgroup.is_frozen()
            return self.is_settled or self._has_time()
        walks = not self.is_settled or self.looks % LOOKS_UNTIL_WALK == 0
        ticks, is_still = self._look(processes.tree(self.root) if walks else self._seen)
        if self.is_settled:
            return is_still and all(self._seen.get(pid) == ticks[pid] for pid in ticks)
        # Twice the same: between the steps of one look a process that forks and ends could be passed by.
        self.is_settled = is_still and ticks == self._seen
        self._seen = ticks
        if self._ticks_at_first is None:
            self._ticks_at_first = sum(ticks.values())
        most = SETTLE_TICKS + SETTLE_TICKS_OF_GIB * self.memory / 2**30
        return self._has_time() and sum(ticks.values()) - self._ticks_at_first < most

    def _has_time(self) -> bool:
        return time.monotonic() - self._began < SETTLE_SECONDS + SETTLE_SECONDS_OF_GIB * self.memory / 2**30

    def _look(self, pids: Iterable[int]) -> tuple[dict[int, int], bool]:
        ticks: dict[int, int] = {}
        is_still = True
        for pid in pids:
            found = processes.seen(pid)
            if found is None:
                continue
            if pid in self.attendants:  # what they do themselves is the host's work, or waiting
                ticks[pid] = found.of_children
            else:
                ticks[pid] = found.ticks + found.of_children
                is_still = is_still and found.state in _STILL
        return ticks, is_still
