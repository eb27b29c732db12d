"""`ForkServer`: a process that has loaded the application, and forks a worker whenever the supervisor orders one.

Loading takes two seconds and 140 MiB, half of it the vocabulary. A worker that is forked shares what was loaded: it
begins at once, and has memory of its own only for what it changes. Nothing that a fork would break has begun here:
there is one thread, no event loop (so neither Twisted's reactor nor `daphne.server` is imported), no connection and no
engine.
Python seeds `random` anew in each fork, and OpenSSL its own generator.

The supervisor's end of a socket is `ForkClient`, which starts the server. An order is one message, an `Order`, with its
descriptors. The answers have its number and the process's id, with a pidfd; and, when the process has ended, its exit
status. Where the other end is closed no more orders come: then the server ends with the last worker, whose status it
still reports.

The first order starts a fork server. `renew` has the next order start another one, with the code that is on the disk
then. Until that has loaded the older one is kept: where the new code cannot be loaded, further workers come from the
older. Then it takes no more orders, and ends with the last of its workers.

A fork server that dies leaves its workers as they are. How they end is not known from then on, but that they do.
"""

import asyncio
import ctypes
import json
import logging
import os
import select
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from engine.errors import reason_of
from responses_app.management.processes import READY, REFUSED, ChildProcess, Ends, how_ended, run_program
from responses_app.settings.conf import Settings

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


logger = logging.getLogger("respsite.supervisor")

STATUS_SECONDS = 5.0  # that a fork server may take to report the status of a process that has ended


def can_fork(own: Settings) -> bool:
    """Return whether workers may be forked: not where each imports vLLM, nor on a system without pidfds."""
    if own.in_process is not None or not hasattr(os, "pidfd_open"):
        return False
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:  # an older kernel, or a filter of system calls
        return False
    return True


class ForkedProcess:
    """A process that was ordered. Its `pid` is 0 until it has been forked."""

    def __init__(self, *, given_up: Callable[[int], None]) -> None:
        """`given_up` is called with a signal that comes before there is a process: it is not waited for any more."""
        self.pid = 0
        self._given_up = given_up
        self._descriptor = -1  # its pidfd
        self._is_orphan = False
        self._status: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()

    async def wait(self) -> int | None:
        """Return its exit status once it has ended, None where that is not known."""
        return await asyncio.shield(self._status)

    def send_signal(self, number: int) -> None:
        """Send it a signal. Raises `ProcessLookupError` where it has ended."""
        if self._status.done():
            raise ProcessLookupError
        if self.pid:
            signal.pidfd_send_signal(self._descriptor, number)
        else:
            self.ended(-number)
            self._given_up(number)

    def begun(self, pid: int, descriptor: int) -> None:
        """It has been forked."""
        if self._status.done():  # nobody waits for it any more
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            os.close(descriptor)
        else:
            self.pid, self._descriptor = pid, descriptor
            asyncio.get_running_loop().add_reader(descriptor, self._gone)

    def orphaned(self) -> None:
        """Its fork server is gone, and will report nothing of it."""
        self._is_orphan = True

    def ended(self, status: int | None) -> None:
        """It has ended."""
        if not self._status.done():
            self._status.set_result(status)
            if self._descriptor >= 0:
                asyncio.get_running_loop().remove_reader(self._descriptor)
                os.close(self._descriptor)

    def _gone(self) -> None:
        """It has ended. The fork server says how, unless that is gone or stands still."""
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._descriptor)
        if self._is_orphan:
            self._ended_alone()
        else:
            loop.call_later(STATUS_SECONDS, self._ended_alone)

    def _ended_alone(self) -> None:
        """It has ended, and nobody says how; it may have become a child of this process, as a container's first one."""
        if self._status.done():
            return
        ended = None
        with suppress(OSError):  # it is none, as a rule
            ended = os.waitid(os.P_PIDFD, self._descriptor, os.WEXITED | os.WNOHANG)
        if ended is None:
            self.ended(None)
        else:
            self.ended(ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status)


class _ForkServerProcess:
    """One fork server, from its start to its end."""

    def __init__(
        self,
        *,
        inherits: Sequence[int],
        ready: "Callable[[_ForkServerProcess], None]",
        ended: "Callable[[_ForkServerProcess, int | None], None]",
    ) -> None:
        self._inherits = inherits
        self.is_ready = False
        self.is_retired = False
        self.has_forked = False
        self._ready = ready
        self._ended = ended
        self._processes: dict[int, ForkedProcess] = {}  # by number
        self._control, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.setblocking(False)
        self._child = ChildProcess("forkserver", hears=self._hear)
        self.life = asyncio.get_running_loop().create_task(self._live())

    def order(self, order: Order, descriptors: Descriptors) -> ForkedProcess:
        """Order a process. Raises `BrokenPipeError` where this is just ending."""
        process = self._processes[order.number] = ForkedProcess(given_up=self._give_up)
        try:
            order.send(self._control, descriptors)
        except BrokenPipeError:
            del self._processes[order.number]
            raise
        except OSError as problem:
            logger.error("worker %d cannot be ordered: %s", order.number, problem)
            self._processes.pop(order.number).ended(os.EX_OSERR)
        return process

    def retire(self) -> None:
        """Take no more orders, and end with the last process that was forked."""
        self.is_retired = True
        with suppress(OSError):  # it is just ending
            self._control.shutdown(socket.SHUT_WR)

    def kill(self) -> None:
        """End it at once; what it has forked goes on."""
        self._child.send(signal.SIGKILL)

    def _give_up(self, number: int) -> None:
        if number == signal.SIGKILL:  # it did not fork in time, so it hangs
            self.kill()

    def _hear(self, word: bytes) -> None:
        if word == READY:
            self.is_ready = True
            self._ready(self)

    async def _live(self) -> None:
        status: int | None = os.EX_OSERR
        try:
            status = await self._child.live(self._start)
        except OSError as problem:  # no memory, no process, no descriptor is left, for now
            logger.error("the fork server cannot be started: %s", problem)
        finally:
            self._theirs.close()
            # It is gone: what it was to fork is not forked, and what it has forked is looked after alone.
            self._hear_answers()
            asyncio.get_running_loop().remove_reader(self._control)
            self._control.close()
            for process in self._processes.values():
                if process.pid:
                    process.orphaned()
                else:
                    process.ended(status or os.EX_SOFTWARE)
            self._ended(self, status)

    async def _start(self, ends: Ends) -> asyncio.subprocess.Process:
        own = self._theirs.fileno()
        process = await run_program(["fork_workers", "--control", str(own)], [own, *self._inherits], ends)
        self._theirs.close()
        asyncio.get_running_loop().add_reader(self._control, self._hear_answers)
        return process

    def _hear_answers(self) -> None:
        with suppress(BlockingIOError):
            while self._hear_answer():
                pass
            asyncio.get_running_loop().remove_reader(self._control)  # its other end is closed

    def _hear_answer(self) -> bool:
        """Take one answer; return whether more may come."""
        try:
            message, descriptors, _, _ = socket.recv_fds(self._control, MESSAGE_BYTES, 1, socket.MSG_CMSG_CLOEXEC)
        except ConnectionResetError:  # it has ended, and left orders unread; what it has answered is still there
            return True
        if not message:
            return False
        answer = json.loads(message)
        if "pid" in answer:
            self.has_forked = True
            self._processes[answer["number"]].begun(answer["pid"], *descriptors)
        else:
            self._processes.pop(answer["number"]).ended(answer["status"])
        return True


class ForkClient:
    """Has workers forked, which have the descriptors that are in `inherits`, too."""

    def __init__(self, *, inherits: Sequence[int] = ()) -> None:
        self._inherits = inherits
        self.refuses = False  # the fork server has found that it must not fork
        self._servers: list[_ForkServerProcess] = []  # that take orders, the newest last
        self._all: set[_ForkServerProcess] = set()
        self._renews = False
        self._stopping = False

    @property
    def is_ready(self) -> bool:
        """Whether what is ordered now is forked at once."""
        return bool(self._servers) and self._servers[-1].is_ready

    def fork(self, order: Order, descriptors: Descriptors) -> ForkedProcess:
        """Order a process; it has descriptors of its own."""
        if self._renews:
            self._renews = False
            self._start()
        while self._servers:
            try:
                return self._servers[-1].order(order, descriptors)
            except BrokenPipeError:
                self._servers.pop()
        return self._start().order(order, descriptors)

    def renew(self) -> None:
        """From now on processes have the code that is on the disk now."""
        self._renews = True

    def stop(self) -> None:
        """Nothing more will be ordered: a fork server that ends is not missed."""
        self._stopping = True

    async def close(self) -> None:
        """End all fork servers."""
        self.stop()
        for server in self._all:
            server.kill()
        if self._all:
            await asyncio.wait([server.life for server in self._all])

    def _start(self) -> _ForkServerProcess:
        server = _ForkServerProcess(inherits=self._inherits, ready=self._ready, ended=self._ended)
        self._servers.append(server)
        self._all.add(server)
        return server

    def _ready(self, server: _ForkServerProcess) -> None:
        """It has loaded: the older ones are not needed any more."""
        if server not in self._servers:  # it has died meanwhile
            return
        place = self._servers.index(server)
        for older in self._servers[:place]:
            older.retire()
        del self._servers[:place]

    def _ended(self, server: _ForkServerProcess, status: int | None) -> None:
        self._all.discard(server)
        if server in self._servers:
            self._servers.remove(server)
        if self._stopping or server.is_retired:
            return
        if not server.is_ready:
            self.refuses = self.refuses or status == REFUSED
        else:
            logger.error("the fork server %s; its workers go on", how_ended(status))
            # One that dies again before it has forked anything is started when the next worker is.
            if server.has_forked and not self._servers:
                self._start()
