"""Commands of a shell, which the warden runs beside its kernel: those of one call at once, each in a group of its own.

What they print comes by two pipes a command. A command has ended when its first process has: what it left running in
the background is stopped at the end of the call, as all of the container is, and goes on with the next one.
"""

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Optional

_READ = 64 * 1024  # bytes read at once
_MAX_REST = 1024 * 1024  # bytes that are read of a pipe behind a command's end: what it left behind may print for ever
_SHELLS = ("/bin/bash", "/usr/bin/bash", "/bin/sh")  # the first one that is there
_NOT_STARTED = 126  # the exit code of a command that could not be run, as shells have it
_BY_SIGNAL = 128  # the exit code of one that a signal has ended is this and the signal's number
Heard = tuple[dict[str, Any], bytes]  # what the host is told of a piece of output, and the piece


class _Pipe(NamedTuple):
    place: int  # of the command, in the call
    stream: str  # `stdout` or `stderr`


class ShellCommands:
    """The commands of one call. `prepare` takes the limits of the container in a process that was just made."""

    def __init__(self, prepare: Callable[[], None]) -> None:
        self.pipes: dict[int, _Pipe] = {}  # those that are open, by the descriptor to read from
        self._prepare = prepare
        self._places: dict[int, int] = {}  # of the commands that run, by their processes
        self._ends: list[Optional[list[Any]]] = []  # noqa: UP045  # older Pythons read this, too

    def start(self, commands: list[str]) -> None:
        """Start them all."""
        self._ends = [None] * len(commands)
        # A command may end before its process is known here: that is told once all have begun.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        try:
            for place, command in enumerate(commands):
                self._start(place, command)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})

    @property
    def has_ended(self) -> bool:
        """Whether all commands have."""
        return None not in self._ends

    @property
    def ends(self) -> list[Any]:
        """How each command has ended: its exit code, and whether it was killed here."""
        return [end or [_BY_SIGNAL + signal.SIGKILL, True] for end in self._ends]

    def hear(self, descriptor: int) -> Optional[Heard]:  # noqa: UP045
        """Read what a pipe has; None where there is nothing now. One that has ended is closed."""
        pipe = self.pipes[descriptor]
        try:
            content = os.read(descriptor, _READ)
        except BlockingIOError:
            return None
        if not content:
            self._close(descriptor)
            return None
        return {"command": pipe.place, "stream": pipe.stream}, content

    def rest(self) -> Iterator[Heard]:
        """Yield what lies in the pipes once all commands have ended, and close them."""
        for descriptor in list(self.pipes):
            left = _MAX_REST
            while left > 0 and (heard := self.hear(descriptor)) is not None:
                left -= len(heard[1])
                yield heard
        self.close()

    def note_end(self, pid: int, status: int) -> None:
        """Take note of the end of a process, if it is a command's."""
        place = self._places.pop(pid, None)
        if place is not None and self._ends[place] is None:
            by_signal = os.WIFSIGNALED(status)
            code = _BY_SIGNAL + os.WTERMSIG(status) if by_signal else os.WEXITSTATUS(status)
            self._ends[place] = [code, False]

    def kill(self) -> None:
        """Kill the commands that run, each with its group."""
        for pid, place in list(self._places.items()):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)  # it may not have its group yet
                os.killpg(pid, signal.SIGKILL)
            self._ends[place] = [_BY_SIGNAL + signal.SIGKILL, True]

    def close(self) -> None:
        """Close what is open: nobody listens any more."""
        for descriptor in list(self.pipes):
            self._close(descriptor)

    def _close(self, descriptor: int) -> None:
        del self.pipes[descriptor]
        os.close(descriptor)

    def _start(self, place: int, command: str) -> None:
        readings, writings = zip(os.pipe(), os.pipe())  # noqa: B905  # older Pythons have no `strict`
        for descriptor, stream in zip(readings, ("stdout", "stderr")):  # noqa: B905
            os.set_blocking(descriptor, False)
            self.pipes[descriptor] = _Pipe(place, stream)
        try:
            pid = os.fork()
        except OSError as problem:  # as many processes as there may be
            os.write(writings[1], f"{problem.strerror}\n".encode())
            self._ends[place] = [_NOT_STARTED, False]
        else:
            if pid == 0:
                _become(command, *writings, self._prepare)
            self._places[pid] = place
        for descriptor in writings:
            os.close(descriptor)


def _become(command: str, out: int, err: int, prepare: Callable[[], None]) -> None:
    """Run a command in place of this process; never return."""
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        # Python ignores SIGPIPE, and what is ignored stays so behind `exec`: `yes | head` would go on for ever.
        for number in (signal.SIGCHLD, signal.SIGPIPE, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        # The standard input is the null device already (`warden.main`).
        os.dup2(out, 1)
        os.dup2(err, 2)
        prepare()
        shell = next(each for each in _SHELLS if os.path.exists(each))
        os.execve(shell, [os.path.basename(shell), "-c", command], _environment())
    except BaseException as problem:  # noqa: BLE001  # whoever asked for the command reads it
        os.write(2, f"{problem}\n".encode(errors="replace"))
    finally:
        os._exit(_NOT_STARTED)


def _environment() -> dict[str, str]:
    """Return the container's environment, in which `python3` is the Python that also runs code."""
    own = {name: value for name, value in os.environ.items() if name != "MPLBACKEND"}  # it is the kernel's alone
    own["PATH"] = f"{os.path.dirname(sys.executable)}:{own.get('PATH', '')}"
    return own
