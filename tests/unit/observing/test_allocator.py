"""The C library gives memory back, as far as its operator has not chosen otherwise."""

import ctypes
import os
import subprocess
import sys

import pytest

# A large block is freed, and then one of 1 MB is taken: does that have memory of its own, which goes back when freed?
_PROGRAM = """
import ctypes, os
from responses_app.observing.allocator import give_memory_back

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
