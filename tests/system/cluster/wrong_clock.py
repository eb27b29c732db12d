"""A host whose wall clock is wrong, and is set again and again while it serves; its monotonic clocks stay right.

libfaketime cannot do that: it takes the monotonic deadlines of Python's waits for ones of the wall clock, and what
waits fails or hangs. So a few lines of C answer for the wall clock alone.
"""

import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from tests.kit.served import Supervised

SOURCE = Path(__file__).with_suffix(".c")


class WrongClock:
    """The clock of one server's processes: call `of` before it is started, `set` whenever it is to jump."""

    def __init__(self, folder: Path, *, ahead: float) -> None:
        compiler = shutil.which("cc")
        if compiler is None:
            pytest.skip("no C compiler is installed: make services CLUSTER=on")
        self._library = folder / "wrong_clock.so"
        subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-o", self._library, SOURCE, "-ldl"], check=True)
        self._file = folder / "ahead"
        self._file.write_bytes(_packed(ahead))

    def of(self, server: Supervised) -> None:
        server.environ |= {"LD_PRELOAD": str(self._library), "WRONG_CLOCK": str(self._file)}

    def set(self, ahead: float) -> None:
        """Set the clock so many seconds ahead of the right time, or behind it."""
        with self._file.open("r+b") as file:  # in place: the processes have this file mapped
            file.write(_packed(ahead))


def _packed(ahead: float) -> bytes:
    return struct.pack("=q", round(ahead))
