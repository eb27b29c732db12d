"""`ForkClient`: the supervisor's side of the fork server, which it starts, and starts again where it is gone.

The first order starts a fork server. `renew` has the next order start another one, with the code that is on the disk
then. Until that has loaded the older one is kept: where the new code cannot be loaded, further workers come from the
older. Then it takes no more orders, and ends with the last of its workers.

A fork server that dies leaves its workers as they are. How they end is not known from then on, but that they do.
"""

import asyncio
import json
import logging
import os
import signal
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress

from responses_app.management.fork_server import MESSAGE_BYTES, Descriptors, Order
from responses_app.management.processes import READY, REFUSED, ChildProcess, Ends, how_ended, run_program
from responses_app.settings.conf import Settings

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


class _Server:
    """One fork server, from its start to its end."""

    def __init__(
        self,
        *,
        inherits: Sequence[int],
        ready: "Callable[[_Server], None]",
        ended: "Callable[[_Server, int | None], None]",
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
            self._lose_all(status)
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

    def _lose_all(self, status: int | None) -> None:
        """It is gone: what it was to fork is not forked, and what it has forked is looked after alone."""
        self._hear_answers()
        asyncio.get_running_loop().remove_reader(self._control)
        self._control.close()
        for process in self._processes.values():
            if process.pid:
                process.orphaned()
            else:
                process.ended(status or os.EX_SOFTWARE)


class ForkClient:
    """Has workers forked, which have the descriptors that are in `inherits`, too."""

    def __init__(self, *, inherits: Sequence[int] = ()) -> None:
        self._inherits = inherits
        self.refuses = False  # the fork server has found that it must not fork
        self._servers: list[_Server] = []  # that take orders, the newest last
        self._all: set[_Server] = set()
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

    def _start(self) -> _Server:
        server = _Server(inherits=self._inherits, ready=self._ready, ended=self._ended)
        self._servers.append(server)
        self._all.add(server)
        return server

    def _ready(self, server: _Server) -> None:
        """It has loaded: the older ones are not needed any more."""
        if server not in self._servers:  # it has died meanwhile
            return
        place = self._servers.index(server)
        for older in self._servers[:place]:
            older.retire()
        del self._servers[:place]

    def _ended(self, server: _Server, status: int | None) -> None:
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
