"""Who may use which core: vLLM's engine core polls and never sleeps, and would starve the servers beside it.

A starved server reads many tokens at once, and those cost less than tokens that come one by one.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.system.vllm.server import descendants

EVERY = sorted(os.sched_getaffinity(0))
_APART = 1 if len(EVERY) < 4 else 2
SERVING = set(EVERY[:_APART])
LOAD = set(EVERY[_APART : _APART + 1]) if len(EVERY) > 2 else SERVING
ENGINES = set(EVERY) - SERVING - LOAD or set(EVERY)


@contextmanager
def load_in_its_place() -> Iterator[None]:
    """Keep this process on the core of the load."""
    os.sched_setaffinity(0, LOAD)
    try:
        yield
    finally:
        os.sched_setaffinity(0, EVERY)


def place_server(pid: int) -> tuple[int, ...]:
    """Move a server and its engine core to their cores; return the server's processes, without those of the core."""
    computing: set[int] = set()
    for child in descendants(pid):
        if "EngineCore" in " ".join(child.cmdline()):
            computing |= {child.pid, *(below.pid for below in descendants(child.pid))}
    serving = [pid, *(child.pid for child in descendants(pid) if child.pid not in computing)]
    for each in serving:
        _move(each, SERVING)
    for each in computing:
        _move(each, ENGINES)
    return tuple(serving)


def _move(pid: int, cores: set[int]) -> None:
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with suppress(ProcessLookupError):  # it has ended
            os.sched_setaffinity(int(thread.name), cores)
