"""Containers watched from the host: that one takes no more than it may, and that nothing runs in it between calls.

`Excess`: whether a container holds more memory, files or sockets than it may.

`Cgroups`: where the server may have control groups (version 2), each container is in one. The freezer stops what
nothing inside can have woken, and the group's own limits count all memory, also what belongs to no process: files in
memory, buffers of sockets, the system's own records. A server that is root may usually make groups; another one may
where they were delegated to it (systemd: `Delegate=yes` with `DelegateSubgroup=`). Which limits there are differs: with
the older version of control groups the freezer is often all that can be had here.

`ContainerRest`: whether a container stands still, from the end of a call to the beginning of the next one.

The warden stops all processes at the end of a call. Code can have itself woken: by a timer whose signal is SIGCONT, by
a descriptor that sends one when something is written elsewhere, and by more that this page would not name all of. So
nothing here asks what may wake it. What runs takes processor time, or is not stopped, or is a process that was not
there: each of the three is seen, and the container ends.

Where it is in a cgroup of its own, that is frozen meanwhile, and what wakes goes no further: then only whether the
freezer holds all of it is looked at.
"""

import asyncio
import contextlib
import os
import secrets
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from responses_app.extensions.containers.sandbox import disk, processes
from responses_app.extensions.containers.sandbox.records import CellEnd
from responses_app.extensions.containers.sandbox.settings import SandboxSettings
from responses_app.protocol.setting import MIB

_PREFIX = "respsite-"
_OLD_SECONDS = 60.0  # an empty group is left over by then: what is moved into one is moved as soon as it is made
_TRIAL_SECONDS = 2.0  # for a group to freeze, and for its processes to end


@dataclass(frozen=True, slots=True)
class Cgroup:
    """The group of one container. What is written to it takes 10 us."""

    path: Path  # its folder in the file system of control groups

    def take(self, pids: Iterable[int]) -> None:
        """Move processes into it; what they start from then on is in it, too. Raises `OSError`."""
        for pid in pids:
            (self.path / "cgroup.procs").write_text(str(pid))

    def freeze(self) -> None:
        """Have all of it stop; what is in a system call stops as it leaves it (`is_frozen`). Raises `OSError`."""
        (self.path / "cgroup.freeze").write_text("1")

    def thaw(self) -> None:
        """Have it go on. Raises `OSError`."""
        (self.path / "cgroup.freeze").write_text("0")

    def is_frozen(self) -> bool:
        """Whether all of it stands still."""
        return "frozen 1" in self._lines("cgroup.events")

    def kill(self) -> None:
        """Kill all of it at once, however fast it makes others."""
        with contextlib.suppress(OSError):  # it is gone
            (self.path / "cgroup.kill").write_text("1")

    def remove(self) -> None:
        """Kill all of it, and take it away once it is empty; that takes as long as the processes take to end."""
        self.kill()
        deadline = time.monotonic() + _TRIAL_SECONDS
        while "populated 1" in self._lines("cgroup.events") and time.monotonic() < deadline:
            time.sleep(0.002)
        with contextlib.suppress(OSError):  # the next start takes it away (`find_cgroups`)
            self.path.rmdir()

    def killed_for_memory(self) -> int:
        """Return how many of its processes the system has ended because the group had no memory left."""
        return sum(int(line.split()[1]) for line in self._lines("memory.events") if line.startswith("oom_kill "))

    def _lines(self, name: str) -> list[str]:
        try:
            return (self.path / name).read_text().splitlines()
        except OSError:
            return []


@dataclass(frozen=True, slots=True)
class Cgroups:
    """The group below which containers have theirs."""

    parent: Path
    limits: tuple[str, ...] = ()  # the controllers that bound them: memory, pids

    def make(self, *, memory: int, processes: int) -> Cgroup:
        """Make a group with room for so many bytes and processes, where that can be bounded. Raises `OSError`."""
        made = Cgroup(self.parent / f"{_PREFIX}{secrets.token_hex(8)}")
        made.path.mkdir()
        try:
            for name, most in {"memory.max": memory, "memory.swap.max": 0, "pids.max": processes}.items():
                if name.partition(".")[0] in self.limits and (made.path / name).exists():  # there may be no swap
                    (made.path / name).write_text(str(most))
        except OSError:
            made.remove()
            raise
        return made

    def described(self) -> str:
        """Describe it, for the log and the doctor."""
        names = {"memory": "memory", "pids": "the number of processes"}
        bounds = f", and bounds {' and '.join(names[each] for each in self.limits)}" if self.limits else ""
        return f"each container in a cgroup that is frozen between calls{bounds}"


def find_cgroups() -> Cgroups | None:
    """Return where containers can have groups; None where they cannot. It is tried with a process: takes some 10 ms."""
    for parent in _candidates():
        _remove_old(parent)
        cgroups = Cgroups(parent, tuple(_enabled(parent)))
        if _freezes(cgroups):
            return cgroups
    return None


def _candidates() -> Iterator[Path]:
    """Yield the groups that may have those of containers below them.

    A group that has processes of its own cannot bound memory for those below it, but for the machine's topmost one. So
    first comes the one above the server's own, where it was delegated: it has no processes.
    """
    mount, own = _mounted(), _own()
    if mount is None or own is None:
        return
    group = mount / own.relative_to("/")
    if group != mount and _is_delegated(group.parent):
        yield group.parent
    yield group


def _is_delegated(group: Path) -> bool:
    """Whether a group was left to a service (systemd says so), or to the server's user. Else it is somebody else's."""
    for name in ("user.delegate", "trusted.delegate"):
        with contextlib.suppress(OSError):
            if os.getxattr(group, name) == b"1":
                return True
    with contextlib.suppress(OSError):
        return group.stat().st_uid == os.geteuid() != 0
    return False


def _mounted() -> Path | None:
    """Return where version 2 is mounted."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            before, _, behind = line.partition(" - ")
            if behind.startswith("cgroup2 "):
                return Path(before.split()[4])
    return None


def _own() -> Path | None:
    """Return the server's own group in version 2, as a path below the mount."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            # `0::/path`: 0 is version 2; `..` is a group outside of what can be seen here.
            if line.startswith("0::/") and ".." not in line:
                return Path(line.removeprefix("0::"))
    return None


def _enabled(parent: Path) -> Iterator[str]:
    """Turn on the bounds of a group's children; yield the controllers that could be had."""
    for name in ("memory", "pids"):
        control = parent / "cgroup.subtree_control"
        with contextlib.suppress(OSError):  # it has processes of its own, or is not ours
            if name not in control.read_text().split():
                control.write_text(f"+{name}")
            yield name


def _freezes(cgroups: Cgroups) -> bool:
    """Whether a process that is put into a group there stands still."""
    try:
        trial = cgroups.make(memory=2**30, processes=64)
    except OSError:
        return False
    try:
        with subprocess.Popen(["sleep", "60"]) as sleeps:
            try:
                trial.take([sleeps.pid])
                trial.freeze()
                deadline = time.monotonic() + _TRIAL_SECONDS
                while not trial.is_frozen() and time.monotonic() < deadline:
                    time.sleep(0.002)
                return trial.is_frozen() and (trial.path / "cgroup.kill").exists()
            finally:
                sleeps.kill()
    except OSError:
        return False
    finally:
        trial.remove()


def _remove_old(parent: Path) -> None:
    """Take away the groups that killed servers have left; those that have processes stay."""
    for each in parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            if time.time() - each.stat().st_mtime > _OLD_SECONDS:
                each.rmdir()


# Until all stand still: a process is told to stop, and must have the processor once to do it, which others have first.
# It may be in a long system call, or just end: to give back memory takes time, so a container that may have more of it
# has longer, and more processor time (in hundredths of a second).
SETTLE_SECONDS, SETTLE_SECONDS_OF_GIB = 10.0, 1.0
SETTLE_TICKS, SETTLE_TICKS_OF_GIB = 20, 30
LOOKS_UNTIL_WALK = 8  # looks at the processes that are known, until one for others, which takes ten times as long
# Stopped, or traced; ended; or in the system, from where it comes out stopped, as the parent of a `vfork` does.
_STILL = "TtZXD"


@dataclass(slots=True)
class ContainerRest:
    """One rest of a container, from the end of a call until the next one."""

    root: int  # all processes of the container descend from it
    memory: int  # bytes that the container may have
    attendants: frozenset[int]  # run no code of the container's: the warden, and what started it
    cgroup: Cgroup | None = None
    is_settled: bool = False  # all of it was seen to stand still
    _began: float = field(default_factory=time.monotonic)  # by the monotonic clock
    looks: int = 0  # how often it was looked at
    _seen: Mapping[int, int] = field(default_factory=dict)  # ticks, by process
    _ticks_at_first: int | None = None  # of all processes together, at the first look

    def is_kept(self) -> bool:
        """Look once; return whether it stands still, or has had no time to yet."""
        self.looks += 1
        if self.cgroup is not None:
            self.is_settled = self.cgroup.is_frozen()
            return self.is_settled or self._has_time()
        # Until all stands still, and then now and again: others may have come to be.
        walks = not self.is_settled or self.looks % LOOKS_UNTIL_WALK == 0
        ticks, is_still = self._look(processes.tree(self.root) if walks else self._seen)
        if self.is_settled:
            # A process that was not there before has no ticks that were seen: so it counts as running.
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
            process = processes.seen(pid)
            if process is None:
                continue
            if pid in self.attendants:  # what they do themselves is the host's work, or waiting
                ticks[pid] = process.of_children
            else:
                ticks[pid] = process.ticks + process.of_children
                is_still = is_still and process.state in _STILL
        return ticks, is_still


MAX_SOCKETS = 256  # of a container: each may hold 0.2 MB in memory that is no process's
MAX_WAITING = 64 * MIB  # bytes that were sent by TCP inside of a container, and not read yet
MAX_FILES_IN_MEMORY = 50_000  # of a container, folders and all: each takes 1 KB that is no process's, even if empty


class Excess:
    """Looks at the processes below `root`, and at their files; `folder` is None where these lie in memory."""

    def __init__(self, root: int, settings: SandboxSettings, folder: Path | None, *, has_tcp: bool = False) -> None:
        self._root = root
        self._settings = settings
        self._folder = folder
        self._has_tcp = has_tcp  # a network of its own, with sockets of TCP

    def of_memory(self) -> CellEnd | None:
        """Return how a cell ends that takes too much memory; None where it takes less."""
        root, most = self._root, self._settings.sandbox_memory_bytes
        if self._has_tcp:
            # What waits in them is memory that is no process's; sockets that are closed may hold some of it, too.
            sockets, waiting = processes.tcp_sockets(root)
            if sockets > MAX_SOCKETS or waiting > MAX_WAITING:
                return CellEnd.TOO_MUCH_MEMORY
        # The quick count first, which may count too much; the right one only where that is exceeded.
        if processes.memory(root) > most and processes.proportional_memory(root) > most:
            return CellEnd.TOO_MUCH_MEMORY
        if self._folder is None and processes.sockets(root) > MAX_SOCKETS:
            return CellEnd.TOO_MUCH_MEMORY
        return None

    async def of_files(self) -> CellEnd | None:
        """Return how a cell ends that has too many files, or too large ones; None where it has less."""
        root, most = self._root, self._settings.sandbox_disk_bytes
        if self._folder is None:
            return CellEnd.TOO_MANY_FILES if disk.files_in_memory(root) > MAX_FILES_IN_MEMORY else None
        # Its network is the host's, so its sockets are found by its processes.
        if await asyncio.to_thread(processes.open_sockets, root, MAX_SOCKETS) > MAX_SOCKETS:
            return CellEnd.TOO_MUCH_MEMORY
        return CellEnd.TOO_MUCH_DISK if await asyncio.to_thread(disk.used, self._folder, root, most) > most else None
