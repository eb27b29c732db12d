"""The C library gives memory back, as far as its operator has not chosen otherwise."""

import ctypes
import os
import subprocess
import sys

import pytest

from responses_app.observing.memory import TrimmedMemory

# A large block is freed, and then one of 1 MB is taken: does that have memory of its own, which goes back when freed?
_PROGRAM = """
import ctypes, os
from responses_app.observing.memory import give_memory_back

NAMES = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()

class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in NAMES]

library = ctypes.CDLL(None)
library.mallinfo2.restype = Info
give_memory_back(os.environ)
bytearray(20 << 20)
before = library.mallinfo2().hblks
kept = bytearray(1 << 20)
print(library.mallinfo2().hblks - before)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="the C library is not glibc 2.33 or later")
@pytest.mark.parametrize(("environ", "own"), [({}, 1), ({"MALLOC_MMAP_THRESHOLD_": str(32 << 20)}, 0)])
def test_a_large_block_has_memory_of_its_own_unless_the_operator_wants_none(environ: dict[str, str], own: int) -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    done = subprocess.run([sys.executable, "-c", _PROGRAM], env=kept | environ, capture_output=True, check=True)
    assert int(done.stdout) == own


class Process:
    """A process whose clocks are set by hand."""

    def __init__(self) -> None:
        self.busy, self.now, self.cpu = False, 0.0, 1.0
        self.memory = TrimmedMemory(is_busy=lambda: self.busy, now=lambda: self.now, cpu_seconds=lambda: self.cpu)

    async def trimmed(self, *, seconds: float, cpu: float, busy: bool = False) -> bool:
        """Return whether it is trimmed when so many seconds have passed, with so much work in them."""
        self.now, self.cpu, self.busy = self.now + seconds, self.cpu + cpu, busy
        return await self.memory.trim()


async def test_memory_is_trimmed_once_where_a_process_has_worked_and_rests() -> None:
    process = Process()
    looks = [
        (60, 0.1, False),  # it has not worked
        (60, 30.0, False),  # it works
        (60, 0.1, True),  # something is under way
        (60, 0.1, False),  # it rests
        (60, 0.1, False),  # nothing has come since
        (1, 3.0, False),
        (1, 0.1, False),
        (1, 0.001, False),
    ]
    trimmed = [await process.trimmed(seconds=seconds, cpu=cpu, busy=busy) for seconds, cpu, busy in looks]
    assert trimmed == [False, False, False, True, False, False, False, True]
