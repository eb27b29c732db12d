"""How the C library keeps memory that was freed: a worker gives back what a large request has taken.

glibc keeps freed memory for each thread apart (up to eight arenas a core), and raises the size from which on it gives
memory back at once to that of the largest block it has seen freed. So a few large requests in several threads leave a
worker with hundreds of megabytes of which nothing is used: no object of Python's, only gaps.
"""

import ctypes
from collections.abc import Mapping

_LARGE_BYTES = 128 * 1024  # glibc's own sizes to begin with; set, they stay
_ARENAS = 2
# Parameters of `mallopt` (malloc.h), with the variables by which an operator sets them.
_PARAMETERS = (
    (-1, "MALLOC_TRIM_THRESHOLD_", _LARGE_BYTES),  # unused memory at the end of the heap that is given back
    (-3, "MALLOC_MMAP_THRESHOLD_", _LARGE_BYTES),  # size of a block that has memory of its own, given back when freed
    (-8, "MALLOC_ARENA_MAX", _ARENAS),
)


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
