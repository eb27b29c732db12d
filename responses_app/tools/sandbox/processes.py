"""What the kernel says of a container's processes, seen from the host."""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

_MOST = 4096  # processes that are looked at: more than any limit allows
_KILLS = 100
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


def end_below(root: int) -> None:
    """Kill all that descend from a process, however fast they make others. Takes up to half a second."""
    for _ in range(_KILLS):
        found = [pid for pid in tree(root) if pid != root and not _has_ended(pid)]
        if not found:
            return
        for pid in found:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)


def _has_ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (OSError, IndexError):
        return True


def memory(root: int) -> int:
    """Return the bytes of memory that these processes hold, without what programs share by being the same file.

    Forked processes share pages until they write to them, and each is counted with all of them. So more than a limit
    is only too much if `proportional_memory` says so, too.
    """
    return sum(map(_resident, tree(root)))


def proportional_memory(root: int) -> int:
    """Return the same, but with shared pages divided among those who share them: right, and ten times as slow."""
    return sum(map(_proportional, tree(root)))


def sockets(root: int) -> int:
    """Return how many sockets there are in the network of what runs below a process: a network of its own."""
    try:
        lines = Path(f"/proc/{first_below(root)}/net/sockstat").read_text().splitlines()
    except OSError:  # it has ended
        return 0
    return next((int(line.split()[2]) for line in lines if line.startswith("sockets:")), 0)


def open_sockets(root: int, most: int) -> int:
    """Return how many sockets a process and all below it hold; more than `most` are not counted to their end."""
    total = 0
    for pid in tree(root):
        with contextlib.suppress(OSError):  # it ended meanwhile
            for name in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    total += os.readlink(f"/proc/{pid}/fd/{name}").startswith("socket:")
        if total > most:
            break
    return total


def first_below(root: int) -> int | None:
    """Return a process that descends from another one, None where none does."""
    return next(islice(tree(root), 1, None), None)


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
