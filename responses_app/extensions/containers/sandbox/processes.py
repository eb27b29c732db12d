"""A container's processes, seen from the host, as the kernel tells of them."""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

_MOST = 4096  # processes that are looked at: more than any limit allows
_KILLS = 100  # rounds of kills, 5 ms apart
# Page tables as well: mapping much takes them, though nothing is held. What is swapped out is still held.
_COUNTED = ("RssAnon:", "RssShmem:", "VmSwap:", "VmPTE:")  # lines of `/proc/PID/status`
_SHARED_OUT = ("Pss_Anon:", "Pss_Shmem:", "SwapPss:")  # lines of `/proc/PID/smaps_rollup`


@dataclass(frozen=True, slots=True)
class Seen:
    """A process as it was seen at one moment."""

    state: str  # a letter of `/proc/PID/stat`, of the first thread alone
    ticks: int  # hundredths of a second of processor time, of all its threads
    of_children: int  # the same of children that it has outlived
    threads: int  # how many there are

    @property
    def has_ended(self) -> bool:
        """Whether nothing of it is left but its entry; its first thread may end before the others do."""
        # Z: a zombie; X: dead.
        return self.state in "ZX" and self.threads <= 1


def seen(pid: int) -> Seen | None:
    """Look at a process; None where there is none. Takes 10 us."""
    try:
        descriptor = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
        try:
            line = os.read(descriptor, 4096)
        finally:
            os.close(descriptor)
        fields = line.rpartition(b")")[2].split()
        # utime, stime, cutime and cstime (`man 5 proc`), counted from behind the name.
        times = list(map(int, fields[11:15]))
        return Seen(fields[0].decode(), sum(times[:2]), sum(times[2:]), int(fields[17]))
    except (OSError, IndexError, ValueError):
        return None


def tree(root: int) -> Iterator[int]:
    """Yield a process and all that descend from it. Those that end meanwhile are left out."""
    waiting, seen = [root], 0
    while waiting and seen < _MOST:
        pid = waiting.pop()
        seen += 1
        yield pid
        try:
            # Each thread has the children that it has forked itself.
            for thread in threads(pid):
                waiting += map(int, Path(f"{thread}/children").read_text().split())
        except (OSError, ValueError):
            continue


def threads(pid: int) -> list[str]:
    """Return the folders of a process's threads. Where its first one has ended, they alone tell what it holds."""
    try:
        return [f"/proc/{pid}/task/{name}" for name in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return []


def end_below(root: int) -> None:
    """Kill all that descend from a process, however fast they make others. Takes up to half a second."""
    for _ in range(_KILLS):
        living = [pid for pid in tree(root) if pid != root and (each := seen(pid)) is not None and not each.has_ended]
        if not living:
            return
        for pid in living:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        # Some may fork while they are killed: looked at again when the others are gone.
        time.sleep(0.005)


def memory(root: int) -> int:
    """Return the bytes of memory that these processes hold, without those that programs share by being the same file.

    Forked processes share pages until they write to them, and each is counted with all of them. So more than a limit
    is only too much if `proportional_memory` says so, too.
    """
    return sum(map(_resident, tree(root)))


def proportional_memory(root: int) -> int:
    """Return the same, but with shared pages divided among those who share them: right, and ten times as slow."""
    return sum(map(_proportional, tree(root)))


def sockets(root: int) -> int:
    """Return how many sockets there are in the network of the processes below this one: a network of their own."""
    try:
        lines = Path(f"/proc/{first_below(root)}/net/sockstat").read_text().splitlines()
    except OSError:  # it has ended
        return 0
    # `sockets: used 12`.
    return next((int(line.split()[2]) for line in lines if line.startswith("sockets:")), 0)


def tcp_sockets(root: int) -> tuple[int, int]:
    """Return how many sockets of TCP there are in a network of their own, and how many bytes wait in them."""
    try:
        lines = Path(f"/proc/{first_below(root)}/net/tcp").read_text().splitlines()[1:]
    except OSError:  # it has ended
        return 0, 0
    # The fifth field: what waits to be sent and to be read, hexadecimal. One that has ended waits for a while, with
    # nothing in it (06, TIME_WAIT).
    fields = [line.split() for line in lines]
    queues = [each[4].split(":") for each in fields if each[3] != "06"]
    return len(queues), sum(int(size, 16) for each in queues for size in each)


def open_sockets(root: int, most: int) -> int:
    """Return how many sockets a process and all below it hold; more than `most` are not counted to their end."""
    targets: set[str] = set()
    for pid in tree(root):
        # As a set: several processes may hold the same socket.
        for thread in threads(pid):  # each may have descriptors of its own
            with contextlib.suppress(OSError):  # it ended meanwhile
                for name in os.listdir(f"{thread}/fd"):
                    with contextlib.suppress(OSError):
                        target = os.readlink(f"{thread}/fd/{name}")
                        targets.update([target] if target.startswith("socket:") else [])
        if len(targets) > most:
            break
    return len(targets)


def first_below(root: int) -> int | None:
    """Return a process that descends from another one, None where none does."""
    return next(islice(tree(root), 1, None), None)


def _resident(pid: int) -> int:
    return _sum(pid, "status", _COUNTED)


def _proportional(pid: int) -> int:
    proportional = _sum(pid, "smaps_rollup", _SHARED_OUT)  # a process can hide its map from all but root
    # Page tables are in neither file of the proportional figures.
    return proportional + _sum(pid, "status", ("VmPTE:",)) if proportional else _resident(pid)


def _sum(pid: int, file: str, names: tuple[str, ...]) -> int:
    """Return bytes that a file of `/proc` tells of: that of the process, or where it tells nothing, of a thread."""
    size = _bytes_of_lines(f"/proc/{pid}/{file}", names)
    return size or next(filter(None, (_bytes_of_lines(f"{thread}/{file}", names) for thread in threads(pid))), 0)


def _bytes_of_lines(path: str, names: tuple[str, ...]) -> int:
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return 0
    # The lines say kB, and mean 1024 bytes.
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(names))
