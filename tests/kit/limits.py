"""Every test has a limit, with its fixtures: behind it, it fails with the stacks of its processes.

The limit is 60 seconds, 300 in folders named `system`, or what the marker `limit(seconds)` says. A process of its own
watches (`tests.kit.watchdog`), so a test fails wherever it hangs: in an `await`, in a lock, in a loop. Where it hangs
in a function of C, or its fixtures do not end either, its processes are killed, and the run fails with its name.

PYTEST_DONT_REWRITE: what starts processes imports this before pytest takes it for a plugin.
"""

import asyncio
import faulthandler
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO

import pytest

from tests.kit import watchdog

LIMIT_SECONDS = 60.0
SYSTEM_SECONDS = 300.0
GRACE_SECONDS = 60.0  # until a test that has failed so has ended, with its fixtures
# Folders that have commands of their own: the tests there start models, or take as long as they are asked to.
LONGER = {
    "system": SYSTEM_SECONDS,
    "wheel": 900.0,
    "llama": 900.0,
    "vllm": 900.0,
    "cluster": 1800.0 + 60 * float(os.environ.get("SOAK_MINUTES") or 30),
    "fuzz": SYSTEM_SECONDS + float(os.environ.get("FUZZ_SECONDS") or 0),
}


@dataclass
class Watched:
    """What this process knows of the one that watches it."""

    pid: int  # this process: another one that was forked from it has none yet
    process: "subprocess.Popen[bytes]"
    stacks: IO[bytes]  # kept open: `faulthandler` has no more than its descriptor
    report: IO[bytes]
    test: str = ""
    seconds: float = 0.0
    raises: type[BaseException] | None = None  # what ends the phase of the test that runs now; None between them
    told: str = ""  # where its processes were when its limit was over

    def tell(self, **facts: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(facts).encode() + b"\n")
        self.process.stdin.flush()


_watched: Watched | None = None
_terminal = 2  # where the watching process prints: descriptor 2 before it is captured


def know(pid: int) -> None:
    """Make a process known that the test has started, and that is no child of this one."""
    if _watched is not None and _watched.pid == os.getpid():
        _watched.tell(process=pid)


def limit_of(item: pytest.Item) -> tuple[float, float]:
    """Return the limit of a test, and how long it has behind that until it is killed, in seconds."""
    marker = item.get_closest_marker("limit")
    if marker is not None:
        return float(marker.args[0]), float(marker.kwargs.get("grace", GRACE_SECONDS))
    return max(LONGER.get(part, LIMIT_SECONDS) for part in item.path.parts), GRACE_SECONDS


def pytest_configure(config: pytest.Config) -> None:
    """Keep what a message can be printed to, whatever is captured."""
    global _terminal
    _terminal = os.dup(2)
    config.addinivalue_line(
        "markers",
        "limit(seconds, grace=60): how long the test may take with its fixtures, and until it is killed behind that",
    )


def pytest_unconfigure() -> None:
    """End the process that watches."""
    global _watched
    if _watched is not None and _watched.pid == os.getpid():
        _watched.process.communicate()
        faulthandler.unregister(watchdog.WRITE_STACKS)
        for file in (_watched.stacks, _watched.report):
            file.close()
        _watched = None
    os.close(_terminal)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Have a test watched."""
    if item.config.option.usepdb:
        return (yield)
    watched = _watching()
    watched.test = item.nodeid
    watched.seconds, grace = limit_of(item)
    watched.tell(test=watched.test, seconds=watched.seconds, grace=grace)
    try:
        return (yield)
    finally:
        watched.test = ""
        watched.tell()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup() -> Generator[None, object, object]:
    """Let a test fail while its fixtures start."""
    return (yield from _failing(LimitExceeded))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    """Let a test fail while it runs."""
    return (yield from _failing(LimitExceeded))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown() -> Generator[None, object, object]:
    """Let a test fail while its fixtures end; all of them end, so the next test finds nothing of this one's."""
    return (yield from _failing(pytest.fail.Exception))  # behind any other one pytest forgets the fixtures left


def _failing(raises: type[BaseException]) -> Generator[None, object, object]:
    watched = _watched
    if watched is None:
        return (yield)
    watched.raises = raises
    try:
        result = yield
    except BaseException:
        if not watched.told:
            raise
        result = None
    finally:
        watched.raises = None
    if watched.told:
        # Another one than interrupted it: pytest cannot show one that began at an instruction without a line.
        told, watched.told = watched.told, ""
        raise LimitExceeded(told) from None
    return result


def _watching() -> Watched:
    """Return the process that watches this one; start it with the first test."""
    global _watched
    if _watched is None or _watched.pid != os.getpid():
        stacks, report = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        faulthandler.register(watchdog.WRITE_STACKS, file=stacks)
        signal.signal(watchdog.OVER, _fail)
        paths = [f"/proc/{os.getpid()}/fd/{file.fileno()}" for file in (stacks, report)]
        process = subprocess.Popen(
            [sys.executable, "-P", "-S", Path(watchdog.__file__), str(os.getpid()), *paths],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=_terminal,
            start_new_session=True,  # Ctrl-C is for the tests
        )
        _watched = Watched(os.getpid(), process, stacks, report)
    return _watched


class LimitExceeded(BaseException):
    """The test has taken too long. It is no `Exception`: for one, Hypothesis would look for a shorter example."""


def _fail(number: int, frame: FrameType | None) -> None:
    """Fail, in the main thread, wherever it is."""
    watched = _watched
    if watched is None or watched.pid != os.getpid() or watched.raises is None:
        return
    watched.report.seek(0)
    test, _, stacks = watched.report.read().decode().partition("\n")
    if test == watched.test:  # else it has ended just now
        watched.told = f"more than {watched.seconds:g} seconds. Its processes:\n{stacks}{_tasks()}"
        raise watched.raises


def _tasks() -> str:
    """Return where the tasks of the running event loop wait."""
    loop, text = asyncio._get_running_loop(), io.StringIO()
    for task in asyncio.all_tasks(loop) if loop is not None else ():
        task.print_stack(file=text)
    return text.getvalue()
