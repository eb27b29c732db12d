"""`Shares`: how many connections each of the processes on one socket holds, in memory that they share.

The kernel wakes all of them for a connection, and whoever is first takes it. That is not fair: of 120 connections at
once four idle workers took 57, 5, 58 and 0 (measured, two cores). A WebSocket stays where it is for an hour, so a
process that holds more than another one leaves what comes to that one, for `HOLD_SECONDS`: if it is still there then,
the other one is busy. It costs no message and no lock: each process writes a number of its own and reads the others'.
"""

import mmap
import os
import tempfile
from typing import BinaryIO, cast

HOLD_SECONDS = 0.003
_BYTES = 4  # of a number; one that is aligned is read and written whole


class Shares:
    """A table of numbers in a file that has no name; `own` is this process's place in it."""

    def __init__(self, descriptor: int, own: int = 0) -> None:
        self.descriptor = descriptor
        self._numbers = memoryview(mmap.mmap(descriptor, 0)).cast("I")
        self._own = own % len(self._numbers)

    @classmethod
    def make(cls, places: int) -> "Shares":
        """Return a new table, in which nobody accepts anything."""
        with _file() as file:
            file.truncate(places * _BYTES)
            return cls(os.dup(file.fileno()))

    def say(self, connections: int | None) -> None:
        """Say how many connections this process holds; None: it accepts none."""
        self._numbers[self._own] = 0 if connections is None else connections + 1

    def forget(self, place: int) -> None:
        """A process is gone."""
        self._numbers[place % len(self._numbers)] = 0

    def holds_more(self) -> bool:
        """Whether another process that accepts holds fewer connections than this one."""
        return self._numbers[self._own] > min(filter(None, self._numbers), default=0)


def _file() -> BinaryIO:
    """Return a file in memory, where the system has such: the first write to a mapped one on a full disk kills."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("respsite-shares"), "w+b")
    return cast("BinaryIO", tempfile.TemporaryFile())
