"""A process that reads what strangers have written, apart from the server: one half of it on each side of a pipe.

    in   the length of a header (4 bytes, big-endian), the header (JSON, with the `size` of what follows), and the body
    out  the length of the answer (4 bytes), and the answer (JSON)

Whoever writes a document can make it costly to read (a parser that walks in circles, one that fills memory, a crash):
so it is read where that harms no response. The server ends a process that takes too long; should the server be gone,
the limits of CPU time and memory end it. It has nothing of the server's environment, and so none of its secrets.
"""

import asyncio
import json
import resource
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

LENGTH_BYTES = 4
_ROOT = str(Path(__file__).parents[2])


class ReadingProcess:
    """One process, seen by the server; `is_warm`: it has answered once. An answer has at most `max_answer` bytes."""

    def __init__(self, process: asyncio.subprocess.Process, max_answer: int) -> None:
        self._process = process
        self._max_answer = max_answer
        self.is_warm = False

    @classmethod
    async def start(cls, module: str, *, max_answer: int) -> "ReadingProcess":
        """Run a module that calls `serve`."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", module),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            cwd=_ROOT,
            env={"LANG": "C.UTF-8"},
            start_new_session=True,  # a Ctrl-C is for the server, which ends it
        )
        return cls(process, max_answer)

    @property
    def pid(self) -> int:
        """Its number."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self._process.returncode is None

    async def ask(self, header: Mapping[str, object], body: bytes) -> dict[str, Any]:
        """Return what it says of a body. Raises `OSError`, `ValueError` or `IncompleteReadError` where it says nothing.

        Whoever stops waiting ends the process: what it would answer is nobody's any more.
        """
        source, target = self._process.stdin, self._process.stdout
        assert source is not None
        assert target is not None
        written = json.dumps({**header, "size": len(body)}).encode()
        source.write(len(written).to_bytes(LENGTH_BYTES) + written + body)
        await source.drain()
        size = int.from_bytes(await target.readexactly(LENGTH_BYTES))
        if size > self._max_answer:
            raise OSError("the answer is too long")
        said = await target.readexactly(size)
        answer: dict[str, Any] = await asyncio.to_thread(json.loads, said) if size > 2**20 else json.loads(said)
        self.is_warm = True
        return answer

    async def end(self) -> None:
        """Kill it."""
        with suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()


Answer = Callable[[dict[str, Any], bytes], dict[str, Any]]


def serve(answer: Answer, *, cpu_seconds: int, memory: int) -> None:
    """In the process: answer to headers and bodies until there are no more, each within this CPU time.

    `memory` is what all of them may take, in bytes of address space.
    """
    limit(resource.RLIMIT_AS, memory)
    limit(resource.RLIMIT_FSIZE, 0)
    limit(resource.RLIMIT_CORE, 0)
    _serve(answer, sys.stdin.buffer, sys.stdout.buffer, cpu_seconds)


def _serve(answer: Answer, source: BinaryIO, target: BinaryIO, cpu_seconds: int) -> None:
    while length := source.read(LENGTH_BYTES):
        header = json.loads(source.read(int.from_bytes(length)))
        used = resource.getrusage(resource.RUSAGE_SELF)
        limit(resource.RLIMIT_CPU, int(used.ru_utime + used.ru_stime) + cpu_seconds)
        written = json.dumps(answer(header, source.read(header.pop("size")))).encode()
        target.write(len(written).to_bytes(LENGTH_BYTES) + written)
        target.flush()


def limit(what: int, wanted: int) -> None:
    """Bound what this process may take of a resource, no higher than it is bounded already."""
    _, most = resource.getrlimit(what)
    resource.setrlimit(what, (wanted if most == resource.RLIM_INFINITY else min(wanted, most), most))
