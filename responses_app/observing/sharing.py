"""`SharedFolder`: the numbers of workers that stand side by side behind one address, of which a scrape reaches any.

Each worker has a place in the folder, the lowest that is free: a file with its numbers, written every second, and one
that it has locked for as long as it lives. The kernel lets go of the lock, whatever kills the worker. So everybody
knows whose numbers still hold: a dead worker's counters do, and its gauges do not. The next worker in its place goes on
with its counters, so the folder never has more files than there were workers at once, and a counter never goes back.
"""

import fcntl
import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

MAX_PLACES = 1000  # more workers than stand behind one address


class SharedFolder:
    """One worker's view of it. All of this blocks, and raises `OSError`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock: int | None = None  # the descriptor that holds this worker's lock
        self._place = -1
        self._writing = threading.Lock()  # the last write may come while one goes on

    def enter(self) -> bytes:
        """Take a place; return the numbers of the worker that had it before, which may be none."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for place in range(MAX_PLACES):
            lock = _locked(self._lock_file(place))
            if lock is not None:
                self._lock, self._place = lock, place
                with suppress(FileNotFoundError), self._numbers_file(place).open("rb") as file:
                    os.pwrite(lock, _identity(file), 0)
                    return file.read()
                return b""
        raise OSError(f"{MAX_PLACES} workers have their numbers there already")

    @property
    def has_place(self) -> bool:
        """Whether this worker has a place."""
        return self._lock is not None

    def write(self, numbers: bytes) -> None:
        """Let the others see the numbers of this worker. They read all of the old ones or all of the new ones."""
        if self._lock is None:
            raise OSError("this worker has no place")
        draft = self._folder / f"worker-{self._place}.draft"
        with self._writing:
            draft.write_bytes(numbers)
            # Renaming is atomic on POSIX: readers have the old file or the new one.
            draft.replace(self._numbers_file(self._place))

    def others(self) -> Sequence[tuple[bytes, bool]]:
        """Return the numbers of all other workers there ever were, each with whether it lives."""
        numbers = []
        for file in sorted(self._folder.glob("worker-*.json")):
            place = int(file.stem.removeprefix("worker-"))
            if place != self._place:
                with file.open("rb") as opened:
                    numbers.append((opened.read(), self._is_by_the_living(place, _identity(opened))))
        return numbers

    def leave(self) -> None:
        """Give the place back; the counters stay."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _is_by_the_living(self, place: int, identity: bytes) -> bool:
        # Shared: several may look at the same time, and none of them keeps another from seeing that it is free.
        lock = _locked(self._lock_file(place), fcntl.LOCK_SH)
        if lock is None:
            return self._lock_file(place).read_bytes() != identity
        os.close(lock)
        return False

    def _lock_file(self, place: int) -> Path:
        return self._folder / f"worker-{place}.lock"

    def _numbers_file(self, place: int) -> Path:
        return self._folder / f"worker-{place}.json"


def _identity(file: BinaryIO) -> bytes:
    """Return what no other version of the file has. Its length is always the same, so it can be written over."""
    about = os.fstat(file.fileno())
    return f"{about.st_ino:020} {about.st_mtime_ns:020}".encode()


def _locked(file: Path, how: int = fcntl.LOCK_EX) -> int | None:
    """Return a descriptor that holds the lock of a file, None where another process holds it."""
    # Never deleted: two processes could lock two files of the same name.
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor
