"""`WorkerProcess`: one worker as a process: started, heard, measured, ended."""

import asyncio
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple

ACCEPTS, READY = b"a", b"r"  # what a worker writes into its pipe
LINE_BYTES = 64 * 1024  # a longer line of a worker is handed on in parts
LAST_LINES_SECONDS = 1.0  # how long a dead worker's pipes are read: what it started may hold them open


class Inherited(NamedTuple):
    """Descriptors that all workers get: the listening socket, a pipe's end that tells when this process is gone, and
    the file of `Shares`.
    """

    listener: int
    lifeline: int
    shares: int


class WorkerProcess:
    """Worker `number`. `accepts` and `ready` are called when it says so, `ended` with its exit status."""

    def __init__(
        self,
        number: int,
        *,
        accepts: Callable[[int], None],
        ready: Callable[[int], None],
        ended: Callable[[int, int], None],
    ) -> None:
        self.number = number
        self._news = {ACCEPTS: accepts, READY: ready}
        self._ended = ended
        self._process: asyncio.subprocess.Process | None = None
        self._life: asyncio.Task[None] | None = None
        self._owed = 0  # a signal that came before there was a process

    def start(self, inherited: "Inherited", *, at_once: bool) -> None:
        """Start it."""
        self._life = asyncio.get_running_loop().create_task(self._live(inherited, at_once))

    def send(self, number: int) -> None:
        """Send a signal, if it lives."""
        if self._process is None:
            self._owed = number
            return
        with suppress(ProcessLookupError):
            self._process.send_signal(number)

    def resident_bytes(self) -> int:
        """Return the memory that it holds, 0 where that is not known."""
        return resident_bytes(self._process.pid) if self._process is not None else 0

    async def _live(self, inherited: "Inherited", at_once: bool) -> None:
        reading, writing = os.pipe()
        loop = asyncio.get_running_loop()
        status = 1
        try:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, sys.argv[0], "serve_worker", "--number", str(self.number)),
                *(word for name, descriptor in inherited._asdict().items() for word in (f"--{name}", str(descriptor))),
                *("--says", str(writing), *(["--at-once"] if at_once else [])),
                pass_fds=(*inherited, writing),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                process_group=0,  # Ctrl-C in a terminal is for the supervisor, who passes it on
            )
            os.close(writing)
            writing = -1
            if self._owed:
                self.send(self._owed)
            loop.add_reader(reading, self._hear, reading)
            status = await self._heard_to_its_end(self._process)
        finally:
            loop.remove_reader(reading)
            for descriptor in (reading, writing):
                if descriptor >= 0:
                    os.close(descriptor)
            self._ended(self.number, status)

    async def _heard_to_its_end(self, process: asyncio.subprocess.Process) -> int:
        assert process.stdout is not None
        assert process.stderr is not None
        prefix = b"[%d] " % self.number
        outputs = [
            asyncio.create_task(hand_on(process.stdout, sys.stdout.buffer, prefix)),
            asyncio.create_task(hand_on(process.stderr, sys.stderr.buffer, prefix)),
        ]
        status = await process.wait()
        await asyncio.wait(outputs, timeout=LAST_LINES_SECONDS)
        for output in outputs:
            output.cancel()
        return status

    def _hear(self, reading: int) -> None:
        said = os.read(reading, 64)
        if not said:  # it is gone, or closed its end
            asyncio.get_running_loop().remove_reader(reading)
        for word in said:
            self._news[bytes([word])](self.number)


async def hand_on(source: asyncio.StreamReader, sink: BinaryIO, prefix: bytes) -> None:
    """Write what comes to `sink`, whole lines at a time, each behind `prefix`; JSON objects stay what they are."""
    rest = b""
    while data := await source.read(LINE_BYTES):
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
    """Return the memory that a process holds (its resident set), 0 where that cannot be known."""
    with suppress(OSError, IndexError, ValueError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0
