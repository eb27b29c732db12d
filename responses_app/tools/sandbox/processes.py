"""What the kernel says of a container's processes, seen from the host."""

import os
from collections.abc import Iterator
from pathlib import Path

_MOST = 4096  # processes that are looked at: more than any limit allows
_COUNTED = ("RssAnon:", "RssShmem:")


def tree(root: int) -> Iterator[int]:
    """Yield a process and all that descend from it. What ends meanwhile is left out."""
    waiting, seen = [root], 0
    while waiting and seen < _MOST:
        pid = waiting.pop()
        seen += 1
        yield pid
        try:
            for thread in os.listdir(f"/proc/{pid}/task"):
                waiting += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split())
        except (OSError, ValueError):
            continue


def memory(root: int) -> int:
    """Return the bytes of memory that these processes hold, without what programs share by being the same file.

    Forked processes share pages until they write to them, and each is counted with all of them; so `shared_memory` is
    to be asked, too, before anybody is blamed.
    """
    return sum(map(_resident, tree(root)))


def proportional_memory(root: int) -> int:
    """Return the same, but with shared pages divided among those who share them: right, and ten times as slow."""
    return sum(map(_proportional, tree(root)))


def _resident(pid: int) -> int:
    return _sum(f"/proc/{pid}/status", _COUNTED)


def _proportional(pid: int) -> int:
    proportional = _sum(f"/proc/{pid}/smaps_rollup", ("Pss_Anon:", "Pss_Shmem:"))
    return proportional or _resident(pid)  # a process can hide its map from all but root


def _sum(path: str, names: tuple[str, ...]) -> int:
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(names))
