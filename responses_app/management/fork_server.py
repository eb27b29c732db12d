"""`ForkServer`: a process that has loaded the application, and forks a worker whenever the supervisor orders one.

Loading takes two seconds and 140 MiB, half of it the vocabulary. A worker that is forked shares what was loaded: it
begins at once, and has memory of its own only for what it changes. Nothing that a fork would break has begun here:
there is one thread, no event loop (so neither Twisted's reactor nor `daphne.server` is imported), no connection and no
engine.
Python seeds `random` anew in each fork, and OpenSSL its own generator.

The supervisor's end of a socket is `ForkClient`. An order is one message, an `Order`, with its descriptors. The answers
have its number and the process's id, with a pidfd; and, when the process has ended, its exit status. Where the other
end is closed no more orders come: then the server ends with the last worker, whose status it still reports.
"""

import ctypes
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from engine.errors import reason_of

MESSAGE_BYTES = 4096


class Descriptors(NamedTuple):
    """What a worker inherits."""

    listener: int  # the listening socket
    lifeline: int  # a pipe's end, which tells when the supervisor is gone
    shares: int  # the file of `Shares`
    says: int  # a pipe for its words
    output: int  # a pipe for its standard output
    errors: int  # a pipe for its standard error


@dataclass(frozen=True, slots=True)
class Order:
    """A worker that is to be forked."""

    number: int
    at_once: bool  # it accepts connections before it is ready

    def send(self, control: socket.socket, descriptors: Descriptors) -> None:
        """Send the order. Raises `OSError` where nobody receives it."""
        socket.send_fds(control, [json.dumps(asdict(self)).encode()], descriptors)


class ForkServer:
    """Serves the orders that come by a socket."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._workers: dict[int, tuple[int, int]] = {}  # number and process id, by the pidfd
        self._waiting = select.poll()
        self._waiting.register(control, select.POLLIN)
        self._takes_orders = True

    def serve(self) -> tuple[Order, Descriptors] | None:
        """Fork for every order. Return in each new process with its order, and here with nothing, at the end."""
        while self._takes_orders or self._workers:
            for descriptor, _ in self._waiting.poll():
                if descriptor in self._workers:
                    self._report_end(descriptor)
                elif (ordered := self._next_order()) is not None and self._fork(*ordered):
                    return ordered
        return None

    def _next_order(self) -> tuple[Order, Descriptors] | None:
        message, descriptors = b"", list[int]()
        with suppress(ConnectionResetError):  # the supervisor has died, and left answers unread
            message, descriptors, _, _ = socket.recv_fds(
                self._control, MESSAGE_BYTES, len(Descriptors._fields), socket.MSG_CMSG_CLOEXEC
            )
        if not message:
            self._waiting.unregister(self._control)
            self._takes_orders = False
            return None
        return Order(**json.loads(message)), Descriptors(*descriptors)

    def _fork(self, order: Order, descriptors: Descriptors) -> bool:
        """Fork; return whether this is the new process."""
        for stream in (sys.stdout, sys.stderr):
            stream.flush()  # both processes would write what waits here
        ends: tuple[int, ...] = ()
        try:
            reported, report = ends = os.pipe()
            pid = os.fork()
        except OSError as problem:  # no memory, no process or no descriptor is left, for now
            sys.stderr.write(f"worker {order.number} cannot be forked: {reason_of(problem)}\n")
            self._answer({"number": order.number, "status": os.EX_OSERR})
        else:
            if pid == 0:
                os.close(report)
                self._become(order, descriptors, reported)
                return True
            self._keep(order.number, pid)
            os.write(report, b".")
        for descriptor in (*descriptors, *ends):
            os.close(descriptor)
        return False

    def _keep(self, number: int, pid: int) -> None:
        try:
            end = os.pidfd_open(pid)
        except OSError:  # no descriptor is left: nobody could end it
            os.kill(pid, signal.SIGKILL)
            raise
        self._workers[end] = (number, pid)
        self._waiting.register(end, select.POLLIN)
        self._answer({"number": number, "pid": pid}, [end])

    def _become(self, order: Order, descriptors: Descriptors, reported: int) -> None:
        """Make the new process one of its own, with its own output, once its start is `reported`."""
        # Where this server dies before that, the supervisor knows of no process, and would never end this one.
        if not os.read(reported, 1):
            os._exit(os.EX_SOFTWARE)
        os.close(reported)
        self._control.close()
        for end in self._workers:
            os.close(end)
        # Ctrl-C in a terminal is for the supervisor, who passes it on. And where Linux shares the CPU between sessions
        # (autogroup), one that starts does not get a part of what the busy ones have together.
        os.setsid()
        for descriptor, standard in ((descriptors.output, 1), (descriptors.errors, 2)):
            os.dup2(descriptor, standard)
            os.close(descriptor)
        rename_process(["serve_worker", "--number", str(order.number)])

    def _report_end(self, end: int) -> None:
        number, pid = self._workers.pop(end)
        self._waiting.unregister(end)
        os.close(end)
        _, status = os.waitpid(pid, 0)
        self._answer({"number": number, "status": os.waitstatus_to_exitcode(status)})

    def _answer(self, answer: Mapping[str, Any], descriptors: Sequence[int] = ()) -> None:
        with suppress(ConnectionError):  # the supervisor is gone
            socket.send_fds(self._control, [json.dumps(answer).encode()], descriptors)


def rename_process(words: Sequence[str]) -> None:
    """Replace the end of this process's command line, as `ps` shows it, by these words, cut to the room there is."""
    kept = len(sys.orig_argv) - len(sys.argv[1:])
    sys.orig_argv[kept:] = sys.argv[1:] = words
    try:
        # Where the command line lies in memory (proc(5), fields 48 and 49).
        begin, end = map(int, Path("/proc/self/stat").read_text().rpartition(")")[2].split()[45:47])
        begin += sum(map(len, Path("/proc/self/cmdline").read_bytes().split(b"\0")[:kept])) + kept
    except OSError:  # no /proc, so no `ps` either
        return
    room = end - begin
    if room > 0:
        # A last byte that is not zero would have the kernel read on behind it.
        ctypes.memmove(begin, "\0".join(words).encode()[: room - 1].ljust(room, b"\0"), room)
