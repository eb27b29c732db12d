"""The memory of a process: a worker gives back what a large request has taken, and nothing of it is dumped.

glibc keeps freed memory for each thread apart (up to eight arenas a core), and raises the size from which on it gives
memory back at once to that of the largest block it has seen freed. So a few large requests in several threads leave a
worker with hundreds of megabytes of which nothing is used: no object of Python's, only gaps.
"""

import asyncio
import ctypes
import resource
import time
from collections.abc import Callable, Mapping

_LARGE_BYTES = 128 * 1024  # glibc's own sizes to begin with; set, they stay
_ARENAS = 2
# Parameters of `mallopt` (malloc.h), with the variables by which an operator sets them.
_PARAMETERS = (
    (-1, "MALLOC_TRIM_THRESHOLD_", _LARGE_BYTES),  # unused memory at the end of the heap that is given back
    (-3, "MALLOC_MMAP_THRESHOLD_", _LARGE_BYTES),  # size of a block that has memory of its own, given back when freed
    (-8, "MALLOC_ARENA_MAX", _ARENAS),
)
_IDLE_SHARE = 0.01  # of a core between two looks: about twice the share of a worker that nobody uses
_WORKED_SECONDS = 2.0  # of CPU since it was trimmed last


def give_memory_back(environ: Mapping[str, str]) -> None:
    """Have glibc give memory back, but for what its environment says otherwise; other C libraries are as they are.

    To be called before there are threads: each keeps the arena that it began with.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    for parameter, variable, value in _PARAMETERS:
        if variable not in environ:
            mallopt(parameter, value)


class TrimmedMemory:
    """Gives back the gaps in the heap of an idle process: glibc by itself gives back only the end of it.

    `now` is a clock, and `cpu_seconds` the processor time of this process, both in seconds.
    """

    def __init__(
        self,
        *,
        is_busy: Callable[[], bool],
        now: Callable[[], float] = time.monotonic,
        cpu_seconds: Callable[[], float] = time.process_time,
    ) -> None:
        self._is_busy = is_busy
        self._now = now
        self._cpu_seconds = cpu_seconds
        self._looked = now()
        self._cpu = self._trimmed = cpu_seconds()  # at the last look, and when it was trimmed last

    async def trim(self) -> bool:
        """Trim, unless the process is busy or has done little since the last time; return whether it was trimmed."""
        looked, self._looked = self._looked, self._now()
        cpu, self._cpu = self._cpu, self._cpu_seconds()
        is_idle = not self._is_busy() and self._cpu - cpu <= _IDLE_SHARE * (self._looked - looked)
        if not is_idle or self._cpu - self._trimmed < _WORKED_SECONDS:
            return False
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            await asyncio.to_thread(trim, 0)  # 30 ms, without the interpreter's lock
        self._trimmed = self._cpu
        return True


# Less than any dump has, so that none is written as a file. And, unlike 0, this is also how a process says that it does
# not want one where the system hands dumps to a program (`|` in /proc/sys/kernel/core_pattern); see core(5).
_NO_DUMP = 1


def forbid_core_dumps() -> None:
    """Have this process and all that it starts leave no core dump."""
    _, most = resource.getrlimit(resource.RLIMIT_CORE)
    limit = 0 if most == 0 else _NO_DUMP
    resource.setrlimit(resource.RLIMIT_CORE, (limit, limit))
