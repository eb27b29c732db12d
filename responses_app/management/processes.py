"""The processes that the supervisor starts: how they are started, heard, measured and ended.

`WorkerProcess` is a worker. `EngineKeeper` keeps the process that owns the engine core which all workers share
(`respsite manage serve_engine`: the supervisor itself never imports vLLM), and starts it again whenever it ends. How
the workers and that process find each other is their affair (`engine/backends/vllm/shared_core.py`).
"""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import BinaryIO, NamedTuple, Protocol

from engine.backends.base import restart_pause

logger = logging.getLogger("respsite.supervisor")

ACCEPTS, READY, LIVES = b"a", b"r", b"l"  # what a process writes into its pipe
# In the environment of workers: the descriptor of the table of `limits.suspects`, which they inherit. A worker of an
# older version leaves it alone, and an older supervisor has none.
SHARED_SUSPECTS = "RESPSITE_SUSPECTS"
LINE_BYTES = 64 * 1024  # a longer line of a process is handed on in parts
LAST_LINES_SECONDS = 1.0  # how long a dead process's pipes are read: what it started may hold them open
REFUSED = os.EX_CONFIG  # the exit status of an engine core's process that its settings keep from starting
ENGINE_STOP_SECONDS = 15.0  # an engine core takes 4 to 5 s to stop, and is killed after 8


class Ends(NamedTuple):
    """A process's ends of three pipes: of its words, its output and its errors."""

    says: int
    output: int
    errors: int


class Process(Protocol):
    """A process that was started, as asyncio has it."""

    @property
    def pid(self) -> int:
        """Its process id; 0 before it has one."""

    async def wait(self) -> int | None:
        """Return its exit status once it has ended, None where that is not known."""

    def send_signal(self, number: int, /) -> None:
        """Send it a signal."""


Start = Callable[[Ends], Awaitable[Process]]


async def run_program(command: Sequence[str], descriptors: Sequence[int], ends: Ends) -> asyncio.subprocess.Process:
    """Start a command of this program that inherits `descriptors`."""
    return await asyncio.create_subprocess_exec(
        *(sys.executable, sys.argv[0], *command, "--says", str(ends.says)),
        pass_fds=(*descriptors, ends.says),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=ends.output,
        stderr=ends.errors,
        # Ctrl-C in a terminal is for the supervisor, who passes it on. And where Linux shares the CPU between sessions
        # (autogroup), one that starts does not get a part of what the busy ones have together.
        start_new_session=True,
    )


class ChildProcess:
    """A process of its own session. Its lines are handed on behind `[name]`; `hears` gets each byte it says."""

    def __init__(self, name: str, *, hears: Callable[[bytes], None]) -> None:
        self._name = name
        self._hears = hears
        self._process: Process | None = None
        self._owed = 0  # a signal that came before there was a process

    @property
    def pid(self) -> int:
        """Its process id, and its group's; 0 before it has one."""
        return self._process.pid if self._process is not None else 0

    def send(self, number: int) -> None:
        """Send a signal, if it lives."""
        if self._process is None:
            self._owed = number
            return
        with suppress(ProcessLookupError):
            self._process.send_signal(number)

    async def live(self, start: Start) -> int | None:
        """Start it, and hear it to its end; return its exit status, None where that is not known."""
        loop = asyncio.get_running_loop()
        self._process, self._silenced = None, asyncio.Event()
        with ExitStack() as ours:
            with ExitStack() as theirs:
                words, output, errors = (_pipe(ours, theirs) for _ in Ends._fields)
                self._process = await start(Ends(words[1], output[1], errors[1]))
                # The child has its own ends. While this process held some, the pipes would never end.
            if self._owed:
                # It was told to stop while it was being started.
                self.send(self._owed)
            loop.add_reader(words[0], self._hear, words[0].fileno())
            ours.callback(loop.remove_reader, words[0].fileno())
            prefix = f"[{self._name}] ".encode()
            lasts = [
                asyncio.create_task(_hand_on_pipe(output[0], sys.stdout.buffer, prefix)),
                asyncio.create_task(_hand_on_pipe(errors[0], sys.stderr.buffer, prefix)),
                asyncio.create_task(self._silenced.wait()),
            ]
            status = await self._process.wait()
            # One that never was has said nothing; and what it has started may hold its pipes open.
            await asyncio.wait(lasts, timeout=LAST_LINES_SECONDS if self.pid else 0)
            for last in lasts:
                last.cancel()
            await asyncio.wait(lasts)
            return status

    def _hear(self, reading: int) -> None:
        words = os.read(reading, 64)
        if not words:  # its end of the pipe, which nobody else has, is closed: it is gone, or just going
            asyncio.get_running_loop().remove_reader(reading)
            self._silenced.set()
        for word in words:
            self._hears(bytes([word]))


def _pipe(ours: ExitStack, theirs: ExitStack) -> tuple[BinaryIO, int]:
    """Return a pipe, whose ends these stacks close."""
    reading, writing = os.pipe()
    theirs.callback(os.close, writing)
    return ours.enter_context(os.fdopen(reading, "rb", buffering=0)), writing


async def _hand_on_pipe(pipe: BinaryIO, sink: BinaryIO, prefix: bytes) -> None:
    source = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(source)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, pipe)
    try:
        await hand_on(source, sink, prefix)
    finally:
        transport.close()


class WorkerProcess(ChildProcess):
    """Worker `number`. `hears` is called with each of its words, `ended` with its exit status, None if unknown."""

    def __init__(
        self, number: int, *, hears: Callable[[int, bytes], None], ended: Callable[[int, int | None], None]
    ) -> None:
        super().__init__(str(number), hears=partial(hears, number))
        self.number = number
        self._ended = ended
        self._life: asyncio.Task[None] | None = None

    def start(self, *ways: Start) -> None:
        """Start it: in the first way that does not refuse."""
        self._life = asyncio.get_running_loop().create_task(self._live(ways))

    async def _live(self, ways: Sequence[Start]) -> None:
        status: int | None = 1
        try:
            for start in ways:
                status = await self.live(start)
                if status != REFUSED or self.pid:
                    break
        finally:
            self._ended(self.number, status)


async def hand_on(source: asyncio.StreamReader, sink: BinaryIO, prefix: bytes) -> None:
    """Write what comes to `sink`, whole lines at a time, each behind `prefix`; JSON objects stay what they are."""
    rest = b""
    while data := await source.read(LINE_BYTES):
        # The last part is a line that has not ended.
        *lines, rest = (rest + data).split(b"\n")
        if len(rest) > LINE_BYTES:
            lines, rest = [*lines, rest], b""
        _write(sink, prefix, lines)
    _write(sink, prefix, [rest] if rest else [])


def _write(sink: BinaryIO, prefix: bytes, lines: list[bytes]) -> None:
    with suppress(OSError):  # nobody reads it any more: that is no reason to stop serving
        sink.write(b"".join(b"%b%b\n" % (b"" if line.startswith(b"{") else prefix, line) for line in lines))
        sink.flush()


def resident_bytes(pid: int) -> int:
    """Return the memory that a process holds (its resident set), 0 where that cannot be known, or there is none."""
    with suppress(OSError, IndexError, ValueError):
        # The second number is the resident set, in pages.
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


class EngineKeeper:
    """Keeps the process running, from `start` to `stop`.

    `loads` is called when one is started, `up` when its engine core is there, and `refused` where it cannot be started:
    an engine that was there once is tried again for ever.
    """

    def __init__(
        self, lifeline: int, *, loads: Callable[[], None], up: Callable[[], None], refused: Callable[[], None]
    ) -> None:
        self._lifeline = lifeline
        self._loads = loads
        self._up = up
        self._refused = refused
        self._child: ChildProcess | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._failed = 0  # in a row
        self._was_up = False
        self._stopping = False

    def start(self) -> None:
        """Start it."""
        self._keeping = asyncio.get_running_loop().create_task(self._keep())

    async def stop(self) -> None:
        """End it, with all that it has started."""
        self._stopping = True
        if self._keeping is None:
            return
        if self._child is None:
            self._keeping.cancel()
        else:
            self._child.send(signal.SIGTERM)
        await asyncio.wait([self._keeping], timeout=ENGINE_STOP_SECONDS)
        # It has not ended in its time.
        if self._child is not None:
            _kill_group(self._child.pid)
            await asyncio.wait([self._keeping])

    async def _keep(self) -> None:
        while True:
            self._loads()
            status = await self._live()
            if self._stopping:
                return
            if status == REFUSED and not self._was_up:
                self._refused()
                return
            pause = restart_pause(self._failed)
            self._failed += 1
            logger.error("the engine core is gone (status %d); it is started again in %d s", status, pause)
            await asyncio.sleep(pause)

    async def _live(self) -> int:
        self._child = ChildProcess("engine", hears=self._hear)
        try:
            command = ["serve_engine", "--lifeline", str(self._lifeline)]
            status = await self._child.live(partial(run_program, command, [self._lifeline]))
            assert status is not None, "asyncio knows how its own processes end"
            return status
        except OSError as problem:  # no memory, no process, no descriptor is left, for now
            logger.error("the engine core's process cannot be started: %s", problem)
            return os.EX_OSERR
        finally:
            _kill_group(self._child.pid)  # one that was killed has left its engine core behind
            self._child = None

    def _hear(self, word: bytes) -> None:
        if word == READY:
            self._was_up, self._failed = True, 0
            logger.info("the engine core is there")
            self._up()


def oom_kills(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """Return how many processes the kernel has ended since it had no memory left; 0 where that cannot be known.

    They are those of this process's control group, or of the whole machine where there is no such count.
    """
    group = ""
    with suppress(OSError, StopIteration):
        lines = (proc / "self/cgroup").read_text().splitlines()
        group = next(line.removeprefix("0::/") for line in lines if line.startswith("0::/"))
    for counts in (cgroups / group / "memory.events", proc / "vmstat"):
        with suppress(OSError, StopIteration):
            return next(
                int(line.split()[1]) for line in counts.read_text().splitlines() if line.startswith("oom_kill ")
            )
    return 0


def how_ended(status: int | None, *, lacked_memory: bool = False) -> str:
    """Say how a process ended. `lacked_memory`: the kernel has ended one for memory meanwhile, most likely this one."""
    if status == -signal.SIGKILL and lacked_memory:
        return "was ended by SIGKILL, by the kernel: no memory was left (the OOM killer)"
    if status is None:
        return "has ended, and how is not known"
    if status >= 0:
        return f"ended with status {status}"
    try:
        return f"was ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"was ended by signal {-status}"


def _kill_group(pid: int) -> None:
    if pid:
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
