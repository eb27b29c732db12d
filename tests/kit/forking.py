"""Processes that begin where all have begun: `tests.kit.forker` has imported what they need, and forks for each.

    process = fork(["-m", "daphne", …], cwd=ROOT, environ=environ, output=log, errors=log)

It is a process of its own in a session of its own, with its own environment, as `subprocess.Popen` would start it. Only
what it imports stands there already. What is tested about a start itself is started by `subprocess`.
"""

import atexit
import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from tests.kit.limits import know

ROOT = Path(__file__).resolve().parents[2]
# Python, the C library and the linker read these before a program begins: for each choice there is a forker.
READ_EARLY = ("PYTHON", "LD_", "LC_", "LANG", "TZ", "MALLOC_", "GLIBC_")
FORK_SECONDS = 120.0  # how long a fork may take, with the forker's own start


class ForkedProcess:
    """A process that was forked, with what tests use of `subprocess.Popen`."""

    def __init__(self, reports: socket.socket, command: Sequence[str]) -> None:
        self._reports = reports
        self._command = command
        self._unread = b""
        self.returncode: int | None = None
        self.pid = self._number(FORK_SECONDS)

    def poll(self) -> int | None:
        """Return the exit status, as `subprocess` counts it; nothing while it runs."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(timeout=0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit status; raise subprocess.TimeoutExpired if it takes longer."""
        if self.returncode is None:
            self.returncode = self._number(timeout)
            self._reports.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, if it still runs."""
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it ended just now
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it (-9)."""
        self.send_signal(signal.SIGKILL)

    def _number(self, timeout: float | None) -> int:
        """Return the next number that the forker says of this process."""
        waiting = select.poll()
        waiting.register(self._reports, select.POLLIN)
        while b"\n" not in self._unread:
            if not waiting.poll(None if timeout is None else timeout * 1000):
                raise subprocess.TimeoutExpired(list(self._command), timeout or 0.0)
            said = self._reports.recv(64)
            assert said, "the forker has ended"
            self._unread += said
        line, _, self._unread = self._unread.partition(b"\n")
        return int(line)


def fork(
    command: Sequence[str],
    *,
    cwd: Path,
    environ: Mapping[str, str],
    output: IO[Any],
    errors: IO[Any],
    handed_on: Mapping[str, str] | None = None,
) -> ForkedProcess:
    """Start a process: `command` is what would stand behind `python`.

    `handed_on` are variables beside `environ` for what it starts itself: it may be forked from any forker for those.
    """
    ours, theirs = socket.socketpair()
    whole = {**environ, **(handed_on or {})}
    order = json.dumps({"command": list(command), "environ": whole, "cwd": str(cwd)}).encode()
    with theirs:
        _, control = _forker(_early(environ))
        socket.send_fds(control, [order], [output.fileno(), errors.fileno(), theirs.fileno()])
    process = ForkedProcess(ours, command)
    know(process.pid)
    return process


def run_forked(
    command: Sequence[str], *, cwd: Path, environ: Mapping[str, str], seconds: float
) -> "subprocess.CompletedProcess[str]":
    """Run a process that ends by itself, as `subprocess.run` would."""
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        status = fork(command, cwd=cwd, environ=environ, output=output, errors=errors).wait(seconds)
        output.seek(0)
        errors.seek(0)
        return subprocess.CompletedProcess(list(command), status, output.read(), errors.read())


def start_forker(environ: Mapping[str, str]) -> None:
    """Let a forker begin to import, for processes of such an environment."""
    _forker(_early(environ))


def _early(environ: Mapping[str, str]) -> frozenset[tuple[str, str]]:
    return frozenset((name, value) for name, value in environ.items() if name.startswith(READ_EARLY))


@functools.cache
def _forker(early: frozenset[tuple[str, str]]) -> tuple["subprocess.Popen[bytes]", socket.socket]:
    """Start a forker; return it and what takes orders. Test processes that are forked behind it share it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.kit.forker", str(theirs.fileno())],
            cwd=ROOT,
            env={name: value for name, value in os.environ.items() if not name.startswith(READ_EARLY)} | dict(early),
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the tests, which end what they started
        )
    atexit.register(_end, process, ours)
    return process, ours


def _end(process: "subprocess.Popen[bytes]", control: socket.socket) -> None:
    control.close()
    process.wait()
