"""`SandboxSession`: a living container: one sandbox with its warden, spoken to by one event loop.

    start() ──> run(), put(), get(), list_files(), remove(), one at a time ──> close()

Commands of a shell run beside the kernel (`run_commands`); in all else they are as a cell is.

A call that takes too long, prints too much or takes too much memory is interrupted, as Ctrl-C does it; where that does
not end it in GRACE_SECONDS, all processes of the container are killed, and a new kernel begins: its variables are lost,
its files are not. A warden that does not answer is killed with all it has; then the session is over.

A container is watched as long as it lives: a cell for what it takes, and between cells whether all stands still
(`ContainerRest`). One that runs on is ended, and the session says why (`why_ended`).
"""

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from engine.errors import reason_of
from responses_app.extensions.containers.sandbox import disk, processes
from responses_app.extensions.containers.sandbox.cells import (
    MAX_IMAGE_BYTES,
    Answer,
    CommandOutputs,
    Output,
    Report,
    answered,
    commands_end,
    files_in,
    images_in,
    part_in,
)
from responses_app.extensions.containers.sandbox.inside.respsite_kernel import frames
from responses_app.extensions.containers.sandbox.launch import (
    NO_START,
    NOTHING_MORE,
    BaseSandbox,
    ContainerExtras,
    Interpreter,
    StartedSandbox,
    give_cores,
    received_listener,
    start_process,
)
from responses_app.extensions.containers.sandbox.records import (
    CellEnd,
    CommandsEnd,
    ContainerFilePart,
    Execution,
    ListedFile,
    SandboxError,
    checked_path,
    clean,
    unfinished,
)
from responses_app.extensions.containers.sandbox.settings import KEPT_OUTPUT, SandboxSettings
from responses_app.extensions.containers.sandbox.watching import Cgroup, Cgroups, ContainerRest, Excess
from responses_app.protocol.setting import MIB

if TYPE_CHECKING:
    from responses_app.extensions.containers.egress.proxies import ContainerProxy

logger = logging.getLogger("respsite.sandbox")

Result = TypeVar("Result")
Answered = tuple[frames.Frame | None, CellEnd]  # the warden's answer, None where all was ended; how the work ended

START_SECONDS = 20.0  # until the warden answers; a cold disk is slow
GRACE_SECONDS = 2.0  # from an interruption until everything is killed
ANSWER_SECONDS = 10.0  # the warden's own work: files, restarts
WATCH_SECONDS = 0.1  # how often the memory and the files of a running cell are looked at
REST_SECONDS = 0.25  # how often a container is looked at between cells: 50 us where nothing runs
QUICK_SECONDS = 0.05  # in so short a cell nothing grows far: it is not looked at again when it ends
MAX_PRINTED = 16 * MIB  # more than that is not read to its end: the cell is interrupted
ROOM_BYTES = 64 * MIB  # in a cgroup, for what belongs to no process: the host's watch ends a cell before that
MAX_CODE = MIB  # bytes of a cell
_READ = 64 * 1024  # bytes read at once
_ENDED = "the container has ended"
_RAN_ON = "its code ran on between calls"
_TOO_LARGE = "it held too much memory between calls"
_UNSEEN = "it could not be watched"


class SandboxGone(SandboxError):
    """The container has ended; its variables and its files are lost."""


class SandboxSession:
    """One container. `start` makes it; `is_alive` until it has been closed or has broken."""

    def __init__(
        self, started: StartedSandbox, settings: SandboxSettings, way_out: "ContainerProxy | None" = None
    ) -> None:
        self.why_ended = ""  # why it ended by itself; "" while it lives, and where it was closed
        self._process = started.process
        # Processes that were there before any code ran: the sandbox's own.
        self._attendants: frozenset[int] = frozenset()
        self._cgroup: Cgroup | None = None  # None where there are no groups
        self._killed = 0  # processes that the system has ended for the group's memory
        self._rest: ContainerRest | None = None  # watches that all stands still; None while a cell runs
        self._guard: asyncio.Task[None] | None = None  # watches as long as the container lives
        self._settings = settings
        self._folder = started.launch.folder  # on the host, with its files; None where they lie in memory
        self._excess = Excess(started.process.pid, settings, started.launch.folder, has_tcp=way_out is not None)
        self._ends_together = started.launch.ends_together
        self._user = started.user
        self._door = started.door
        self._way_out = way_out  # closed with the container
        self._pipe = started.output  # what is printed comes here
        self._lock = asyncio.Lock()  # one call at a time has the warden
        self._output = Output(0)  # of the running cell
        self._halt: asyncio.Future[CellEnd] | None = None  # set to end the running cell; None between cells
        self._reader: asyncio.StreamReader  # set once the warden is there
        self._writer: asyncio.StreamWriter | None = None
        self._ending: asyncio.Task[None] | None = None  # the one end, for all who close it
        self._asking: set[asyncio.Task[frames.Frame]] = set()  # each ends with its answer, or when this is closed
        self.is_alive = True

    @classmethod
    async def start(
        cls,
        sandbox: BaseSandbox,
        interpreter: Interpreter,
        settings: SandboxSettings,
        cgroups: Cgroups | None = None,
        *,
        extras: ContainerExtras = NOTHING_MORE,
    ) -> "SandboxSession":
        """Start a container, in a group of its own where there are `cgroups`.

        Raises `SandboxError` if it does not start.
        """
        started = await start_process(sandbox, interpreter, settings, extras)
        session = cls(started, settings, extras.way_out)
        await session._begin(started.channel, cgroups)
        return session

    async def _begin(self, channel: socket.socket, cgroups: Cgroups | None) -> None:
        os.set_blocking(self._pipe, False)
        self._output = Output(KEPT_OUTPUT)
        self._listen()
        try:
            self._reader, self._writer = await asyncio.open_connection(sock=channel)
            async with asyncio.timeout(START_SECONDS):
                await self._next_frame()
            if self._way_out is not None and self._door is not None:
                self._way_out.open(received_listener(self._door))
            # Last: before it has answered, not all its processes are there.
            self._take_place(cgroups)
        except (SandboxGone, TimeoutError):
            self._hear()
            printed = self._output.text().strip()
            await self.close()
            raise SandboxError(NO_START, detail=printed[-500:]) from None
        except BaseException:
            await self.close()
            raise
        self._begin_rest()
        self._guard = asyncio.create_task(self._keep_guard())

    def _take_place(self, cgroups: Cgroups | None) -> None:
        """Give its processes the cores, the priority and the group that they keep; no code has run in it yet."""
        started = list(processes.tree(self._process.pid))
        self._attendants = frozenset(pid for pid in started if processes.first_below(pid) is not None)
        give_cores(started)
        if cgroups is None:
            return
        # Files that lie in memory count as memory.
        files = 0 if self._folder is not None else 2 * self._settings.sandbox_disk_bytes
        try:
            self._cgroup = cgroups.make(
                memory=self._settings.sandbox_memory_bytes + files + ROOM_BYTES,
                processes=self._settings.sandbox_max_processes + len(started),
            )
            self._cgroup.take(started[1:])  # the first one ends the others when the server has been killed
        except OSError as problem:
            raise SandboxError(NO_START, detail=f"its cgroup: {reason_of(problem)}") from None

    @contextlib.asynccontextmanager
    async def _awake(self, *, runs: bool) -> AsyncIterator[None]:
        """Have the warden to oneself, and awake. `runs`: so is what else there is in the container."""
        async with self._lock:
            # It may have ended while this waited for the lock.
            self._check()
            try:
                if self._cgroup is not None:
                    self._cgroup.thaw()
                # The guard looks at the cell from now on.
                if runs:
                    self._rest = None
                yield
            # Also where the call failed: nothing may run between calls.
            finally:
                if self.is_alive and self._cgroup is not None:
                    self._cgroup.freeze()
                if runs or self._cgroup is not None:
                    self._begin_rest()

    def _begin_rest(self) -> None:
        self._rest = ContainerRest(
            self._process.pid, self._settings.sandbox_memory_bytes, self._attendants, self._cgroup
        )

    async def run(self, code: str, seconds: float | None = None, answer: Answer | None = None) -> Execution:
        """Run a cell, for at most `seconds`. A cancellation interrupts it. Raises `SandboxError`, `SandboxGone`.

        With `answer` it may call tools: what that is given and returns is JSON, and its time is not the cell's. What it
        raises ends the cell, and is raised.
        """
        content = code.encode(errors="replace")
        if len(content) > MAX_CODE:
            raise SandboxError(f"the code is larger than {MAX_CODE} bytes")
        seconds = seconds or self._settings.sandbox_call_seconds
        question = {"do": "run", "calls": answer is not None}
        last, ended = await self._undisturbed(partial(self._carry_out, question, content, seconds, tools=answer))
        if last is None:
            return Execution(self._output.text(), ended, variables_lost=True)
        return self._execution(last, ended)

    async def run_commands(
        self, commands: Sequence[str], *, most: int, report: Report, seconds: float | None = None
    ) -> CommandsEnd:
        """Run commands of a shell, all at once and for at most `seconds`; a cancellation kills them.

        `report` is told what they print, as they do: `most` characters of each. Raises `SandboxError`, `SandboxGone`.
        """
        content = json.dumps(list(commands)).encode()
        if len(content) > MAX_CODE:
            raise SandboxError(f"the commands are larger than {MAX_CODE} bytes")
        outputs = CommandOutputs(len(commands), most, report)

        def hear(frame: frames.Frame) -> None:
            outputs.take(frame)
            if outputs.size > MAX_PRINTED and self._halt is not None:
                _resolve(self._halt, CellEnd.TOO_MUCH_OUTPUT)

        seconds = seconds or self._settings.sandbox_call_seconds
        try:
            work = partial(self._carry_out, {"do": "commands"}, content, seconds, hear=hear)
            answer, ended = await self._undisturbed(work)
        finally:
            outputs.end()
        header = None if answer is None else answer.header
        return commands_end(header, len(commands), ended, files_in(header or {}))

    async def _undisturbed(self, work: Callable[["asyncio.Future[CellEnd]"], Awaitable[Result]]) -> Result:
        """Do what runs code; a cancellation, or what it takes too much of, halts it by the future that it gets."""
        async with self._awake(runs=True):
            # A new future for each: a halt of the one before must not end this one.
            halt = self._halt = asyncio.get_running_loop().create_future()
            cell = asyncio.ensure_future(work(halt))
            try:
                # `shield`: it is ended by `halt` alone, so that the warden's answer is always read.
                return await asyncio.shield(cell)
            except asyncio.CancelledError:
                _resolve(halt, CellEnd.STOPPED)
                # The next call must find the kernel free.
                await self._settled(cell)
                raise
            finally:
                self._halt = None

    async def restart(self) -> None:
        """End all its processes and begin with a new kernel; files stay. Raises `SandboxGone`."""
        await self._ask({"do": "restart"})

    async def put(self, path: str, content: bytes) -> None:
        """Write a file; `path` is under the work folder. Raises `SandboxError`, `SandboxGone`."""
        part = unfinished(checked_path(path), "whole")
        await self.put_part(part, 0, content)
        # Written beside it, then renamed: nobody reads half a file.
        await self.rename(part, path)

    async def put_part(self, path: str, begin: int, content: bytes) -> None:
        """Write a part of a file behind its first `begin` bytes. Raises `SandboxError`, `SandboxGone`."""
        if begin + len(content) > self._settings.sandbox_disk_bytes:
            raise SandboxError(f"a file has at most {self._settings.sandbox_disk_bytes} bytes")
        await self._ask({"do": "put", "path": checked_path(path), "begin": begin}, content)

    async def rename(self, path: str, to: str) -> None:
        """Give a file another path, in place of a file that is there. Raises `SandboxError`, `SandboxGone`."""
        await self._ask({"do": "rename", "path": checked_path(path), "to": checked_path(to)})

    async def get_part(self, path: str, begin: int, most: int) -> ContainerFilePart:
        """Return at most so many bytes of a file from a place on. Raises `SandboxError`, `SandboxGone`."""
        question = {"do": "get", "path": checked_path(path), "begin": begin, "most": most}
        return part_in(await self._ask(question, max_payload=most), begin, self._settings.sandbox_disk_bytes)

    async def remove(self, path: str) -> None:
        """Remove a file. Raises `SandboxError`, `SandboxGone`."""
        await self._ask({"do": "remove", "path": checked_path(path)})

    async def list_files(self) -> list[ListedFile]:
        """Return the files under the work folder, without hidden ones. Raises `SandboxGone`."""
        return files_in((await self._ask({"do": "list"})).header)

    async def close(self) -> None:
        """End the container, with all its processes; also where this is cancelled, though nobody waits for it then."""
        if self.is_alive:
            # At once, so that nobody begins anything; all else happens in `_end`.
            self.is_alive = False
            # Before it is closed: its number may be another file's soon.
            asyncio.get_running_loop().remove_reader(self._pipe)
            os.close(self._pipe)
            self._ending = asyncio.create_task(self._end())
        # All who close wait for the same end; a cancelled one leaves it to go on.
        if self._ending is not None:
            await asyncio.shield(self._ending)

    async def _end(self) -> None:
        if self._guard is not None:
            self._guard.cancel()  # where it waits for this, it has nothing else to do
            # From here on processes end, and their numbers may be others' soon: nothing is to be watched any more.
            await asyncio.gather(self._guard, return_exceptions=True)
        if self._door is not None:
            self._door.close()
        if self._way_out is not None:
            await self._way_out.aclose()
        if self._cgroup is not None:
            self._cgroup.kill()
        if not self._ends_together:
            await asyncio.to_thread(processes.end_below, self._process.pid)
        with contextlib.suppress(ProcessLookupError):  # a start that is cut has begun no other group of processes yet
            os.killpg(self._process.pid, signal.SIGKILL)
        if self._writer is not None:
            self._writer.close()
        # It is killed, so that ends soon; until then its number stays its own.
        await asyncio.to_thread(self._process.wait)
        if self._cgroup is not None:
            await asyncio.to_thread(self._cgroup.remove)
        # Only now: processes of this user are gone.
        self._user.close()
        if self._folder is not None:
            await asyncio.to_thread(disk.remove, self._folder)

    def memory(self) -> int:
        """Return the bytes of memory that its processes hold now."""
        return processes.proportional_memory(self._process.pid)

    # A cell, or commands.

    async def _carry_out(
        self,
        question: Mapping[str, Any],
        content: bytes,
        seconds: float,
        halt: "asyncio.Future[CellEnd]",
        *,
        hear: Callable[[frames.Frame], None] | None = None,
        tools: Answer | None = None,
    ) -> Answered:
        self._check()  # again: this begins as a task of its own
        self._output = Output(KEPT_OUTPUT)
        self._listen()
        self._send(question, content)
        answer, began = asyncio.create_task(self._last_frame(hear)), time.monotonic()
        left = seconds
        try:
            while True:
                either: set[asyncio.Future[Any]] = {answer, halt}
                waits_since = time.monotonic()
                await asyncio.wait(either, timeout=left, return_when=asyncio.FIRST_COMPLETED)
                left -= time.monotonic() - waits_since
                if not answer.done():
                    return await self._interrupt(answer, halt.result() if halt.done() else CellEnd.TIMED_OUT)
                if tools is None or "call" not in (await answer).header:
                    break
                # Its next frame is read meanwhile: the cell may die while it waits.
                called, answer = await answer, asyncio.create_task(self._last_frame(hear))
                if (reply := await answered(called.payload, tools, halt)) is not None:
                    self._send({"do": "answer"}, reply)
            # Something may have grown between the last look and the end.
            if time.monotonic() - began > QUICK_SECONDS and (excess := self._excess.of_memory()) is not None:
                return await self._interrupt(answer, excess)
            return await answer, CellEnd.DONE
        finally:
            answer.cancel()
            # Read by nobody else: its error must not be logged as forgotten.
            await asyncio.gather(answer, return_exceptions=True)

    async def _last_frame(self, hear: Callable[[frames.Frame], None] | None) -> frames.Frame:
        """Return the warden's answer, or a call; frames before that are heard."""
        while "command" in (frame := await self._next_frame()).header and hear is not None:
            hear(frame)
        return frame

    async def _interrupt(self, answer: "asyncio.Task[frames.Frame]", ended: CellEnd) -> Answered:
        """End a cell that went too far, gently first; but memory is to be had back at once."""
        if ended is CellEnd.TOO_MANY_FILES:  # nothing else is sure to remove them
            await self.close()
            raise SandboxGone("the container wrote too many files, and was ended")
        if ended not in (CellEnd.TOO_MUCH_MEMORY, CellEnd.TOO_MUCH_DISK):
            self._send({"do": "interrupt"})
            await asyncio.wait({answer}, timeout=GRACE_SECONDS)
            if answer.done():
                return await answer, ended
        self._send({"do": "restart", "clear": ended is CellEnd.TOO_MUCH_DISK})
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                # The answer of the cell itself may come before.
                while "restarted" not in (await answer).header:
                    answer = asyncio.create_task(self._next_frame())
        except TimeoutError:
            await self.close()
            raise SandboxGone("the container did not answer any more, and was ended") from None
        self._hear()
        return None, ended

    def _execution(self, answer: frames.Frame, ended: CellEnd) -> Execution:
        self._hear()
        header = answer.header
        if "died" in header:
            output = f"{self._output.text()}\n[the interpreter ended {clean(str(header['died']))[:40]}]\n"
            # The count only goes up: more than before means that the system has ended a process of this cell.
            killed, self._killed = self._killed, self._cgroup.killed_for_memory() if self._cgroup is not None else 0
            how = CellEnd.TOO_MUCH_MEMORY if self._killed > killed else CellEnd.DIED
            return Execution(output, how, files=files_in(header), variables_lost=True)
        error = header.get("error")
        name = clean(str(error.get("name", "SystemExit")))[:80] if isinstance(error, dict) else None
        return Execution(self._output.text(), ended, name, images_in(answer), files_in(header))

    async def _settled(self, cell: "asyncio.Future[Any]") -> None:
        """Wait until a cell that was stopped has ended, so that the next one finds a kernel that is free."""
        while not cell.done():
            # Cancelled again and again, it still waits: the warden is not free before.
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait({cell})
        if not cell.cancelled() and cell.exception() is not None:
            logger.info("a stopped cell ended with its container: %s", cell.exception())

    async def _keep_guard(self) -> None:
        """Watch the container as long as it lives."""
        while self.is_alive:
            await asyncio.sleep(WATCH_SECONDS if self._rest is None else REST_SECONDS)
            try:
                why = self._watch_rest(self._rest) if self._rest is not None else None
                if self._rest is None:
                    await self._watch_cell()
            except Exception:  # what cannot be watched is not to go on
                logger.exception("a container could not be watched")
                why = _UNSEEN
            if why is not None:
                logger.warning("a container is ended: %s", why)
                self.why_ended = why
                await self.close()

    async def _watch_cell(self) -> None:
        """Halt a cell once the container has more of something than it may."""
        halt = self._halt
        # Processes first: that is quick, and needs no thread.
        if halt is not None and (excess := self._excess.of_memory() or await self._excess.of_files()) is not None:
            _resolve(halt, excess)

    def _watch_rest(self, rest: ContainerRest) -> str | None:
        """Return why the container must end, if it must."""
        if rest.cgroup is not None and self._lock.locked():  # it is awake, for its files
            return _TOO_LARGE if self._excess.of_memory() is not None else None
        # Looked at once when it comes to rest: it cannot grow while it stands still.
        was_settled = rest.is_settled
        if not rest.is_kept():
            return _RAN_ON
        if rest.is_settled and not was_settled and self._excess.of_memory() is not None:
            return _TOO_LARGE
        return None

    def _listen(self) -> None:
        """Hear the output, also where it was no longer listened to."""
        asyncio.get_running_loop().add_reader(self._pipe, self._hear)

    def _hear(self) -> None:
        """Read the output, as much as is there, but some and no more at once: others want to work as well."""
        if not self.is_alive:  # the number of the closed pipe may be another file's by now
            return
        # Sixteen times 64 KB: then others have their turn, and the loop calls again.
        for _ in range(16):
            try:
                content = os.read(self._pipe, _READ)
            # Nothing more now, or the pipe is broken.
            except (BlockingIOError, OSError):
                return
            if not content:
                asyncio.get_running_loop().remove_reader(self._pipe)
                return
            self._output.add(content)
            if self._output.size > MAX_PRINTED:
                if self._halt is None:  # between cells nothing has a reason to print
                    # No longer listened to: the pipe fills up, and who prints waits.
                    asyncio.get_running_loop().remove_reader(self._pipe)
                    return
                _resolve(self._halt, CellEnd.TOO_MUCH_OUTPUT)

    # The warden.

    async def _ask(self, header: Mapping[str, Any], payload: bytes = b"", *, max_payload: int = 0) -> frames.Frame:
        """Ask the warden. Whoever is cancelled does not wait for the answer, which is read all the same."""
        # A task of its own: an answer that is not read would be taken for the next question's.
        asking = asyncio.create_task(self._answered(header, payload, max_payload))
        self._asking.add(asking)
        asking.add_done_callback(self._has_asked)
        return await asyncio.shield(asking)

    def _has_asked(self, asking: "asyncio.Task[frames.Frame]") -> None:
        self._asking.discard(asking)
        if not asking.cancelled():
            asking.exception()  # where nobody waits any more, nobody is told

    async def _answered(self, header: Mapping[str, Any], payload: bytes, max_payload: int) -> frames.Frame:
        async with self._awake(runs=header["do"] == "restart"):
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    self._send(header, payload)
                    answer = await self._next_frame(max_payload)
            except TimeoutError:
                await self.close()
                raise SandboxGone("the container did not answer any more, and was ended") from None
        if "problem" in answer.header:
            raise SandboxError(clean(str(answer.header["problem"]))[:200])
        return answer

    def _send(self, header: Mapping[str, Any], payload: bytes = b"") -> None:
        assert self._writer is not None, "it was started"
        self._writer.write(frames.packed(dict(header), payload))

    # Images are the largest that a cell may say; any other answer has its own bound.
    async def _next_frame(self, max_payload: int = MAX_IMAGE_BYTES) -> frames.Frame:
        try:
            head = await self._reader.readexactly(frames.LENGTHS.size)
            header, payload = frames.lengths(head, max_payload)
            content = frames.header_of(await self._reader.readexactly(header))
            return frames.Frame(content, await self._reader.readexactly(payload))
        except (asyncio.IncompleteReadError, OSError, frames.FrameError):
            if self.is_alive:
                # Not what it printed last, which would say why: code in it has printed that, too.
                logger.warning("a sandbox ended by itself")
            await self.close()
            raise SandboxGone(_ENDED) from None

    def _check(self) -> None:
        if not self.is_alive:
            raise SandboxGone(f"the container was ended: {self.why_ended}" if self.why_ended else _ENDED)


def _resolve(halt: "asyncio.Future[CellEnd]", ended: CellEnd) -> None:
    if not halt.done():
        halt.set_result(ended)
