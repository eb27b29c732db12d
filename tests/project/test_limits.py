"""A test that hangs fails with the stacks of its processes, wherever it hangs, and the run ends."""

import re
from pathlib import Path

from tests.kit.small_runs import run_pytest
from tests.kit.waiting import eventually

HANGING = """
import asyncio, contextlib, os, subprocess, threading, time
import hypothesis
import pytest

pytestmark = pytest.mark.limit(0.3)

@pytest.fixture
def slow_to_start():
    time.sleep(60)

@pytest.fixture
def slow_to_end():
    yield
    threading.Event().wait()

@pytest.mark.limit(4)  # in which the child has begun
def test_sleeps():
    with subprocess.Popen(["sleep", "600"]) as child:
        try:
            asleep = time.sleep(60)
        finally:
            child.kill()

def test_joins_a_thread():
    thread = threading.Thread(target=lambda: release.wait())
    release = threading.Event()
    thread.start()
    try:
        thread.join()
    finally:
        release.set()

async def test_awaits():
    await asyncio.create_task(nobody_comes(), name="the one that hangs")

async def nobody_comes():
    await asyncio.Event().wait()

def test_needs_a_slow_fixture(slow_to_start): ...

def test_its_fixture_does_not_end(monkeypatch, slow_to_end):
    monkeypatch.setenv("LEFT_BY_A_TEST", "yes")

@hypothesis.given(hypothesis.strategies.lists(hypothesis.strategies.integers()))
def test_tries_examples(numbers):
    if len(numbers) > 3:
        time.sleep(60)

def test_catches_everything():
    with contextlib.suppress(BaseException):
        time.sleep(60)

@pytest.mark.limit(60)
def test_is_quick():
    assert "LEFT_BY_A_TEST" not in os.environ
"""
# pthread_mutex_lock, twice: it goes on when a signal has come, and holds the interpreter's lock.
HANGING_IN_C = """
import ctypes, pathlib, subprocess
import pytest

@pytest.mark.limit(2, grace=0.3)
def test_in_c():
    child = subprocess.Popen(["sleep", "600"])
    pathlib.Path("child").write_text(str(child.pid))
    mutex = ctypes.create_string_buffer(64)
    ctypes.PyDLL(None).pthread_mutex_lock(mutex)
    ctypes.PyDLL(None).pthread_mutex_lock(mutex)
"""


def has_ended(pid: str) -> bool:
    """Whether a process is gone, but for its status perhaps."""
    stat = Path("/proc") / pid / "stat"
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"


async def test_one_that_hangs_fails_with_its_stacks_and_the_next_one_runs(tmp_path: Path) -> None:
    end = await run_pytest(tmp_path, hanging=HANGING)
    assert end.exit_code == 1, end
    assert "5 failed, 2 passed, 2 errors" in end.printed, end.printed
    assert len(re.findall(r"LimitExceeded: more than (0.3|4) seconds.", end.printed)) >= 7
    assert re.search(r"--- process \d+ \(sleep\), [A-Z] \([\w ]+\), waits in \w+: sleep 600", end.printed)
    assert "in test_joins_a_thread" in end.printed
    assert "Task pending name='the one that hangs'" in end.printed


async def test_one_that_hangs_in_c_is_killed_with_its_processes_and_the_run_names_it(tmp_path: Path) -> None:
    end = await run_pytest(tmp_path, "--at-once", "2", hanging_in_c=HANGING_IN_C, other="def test_is_quick(): ...\n")
    assert end.exit_code == 2, end
    assert "a process ended in test_hanging_in_c.py::test_in_c" in end.printed
    told = end.printed + end.complaints
    assert "test_hanging_in_c.py::test_in_c did not end within its 2 seconds" in told
    assert re.search(r'File ".*test_hanging_in_c.py", line 11 in test_in_c', told)
    await eventually(lambda: has_ended((tmp_path / "child").read_text()), timeout=10)
