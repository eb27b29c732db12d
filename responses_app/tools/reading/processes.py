"""Processes that read what strangers have written, apart from the server: one half of each is on each side of a pipe.

`ReadingProcess` is such a process, and `ReadingPool` a few of them that are kept. `DocumentReader` has files read, each
by a process that lives no longer than that; `PictureReader` has pictures read by a pool.

    in   the length of a header (4 bytes, big-endian), the header (JSON, with the `size` of what follows), and the body
    out  the length of the answer (4 bytes), and the answer (JSON, with the `size` of what follows, if anything does)

Whoever writes a document can make it costly to read (a parser that walks in circles, one that fills memory, a crash):
so it is read where that harms no response. The server ends a process that takes too long; should the server be gone,
the limits of CPU time and memory end it. It has nothing of the server's environment, and so none of its secrets.
"""

import asyncio
import json
import logging
import resource
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from responses_app.protocol.files.searches import Chunking
from responses_app.protocol.pictures import PictureUnreadable, ReadPicture

logger = logging.getLogger("respsite.tools")

LENGTH_BYTES = 4  # of a length, big-endian
_ROOT = str(Path(__file__).parents[3])  # the project's own folder, from which the module is found


class ReadingProcess:
    """One process, seen by the server, which has given so many `answers`, each of at most `max_answer` bytes."""

    def __init__(self, process: asyncio.subprocess.Process, max_answer: int) -> None:
        self._process = process
        self._max_answer = max_answer
        self.answers = 0

    @classmethod
    async def start(cls, module: str, *, max_answer: int) -> "ReadingProcess":
        """Run a module that calls `serve`."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", module),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            cwd=_ROOT,
            env={"LANG": "C.UTF-8"},  # nothing of the server's, and so none of its secrets
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
        source.write(len(written).to_bytes(LENGTH_BYTES) + written)
        source.write(body)
        # Waits where the process does not read: its pipe is full then.
        await source.drain()
        size = int.from_bytes(await target.readexactly(LENGTH_BYTES))
        # Before it is read: the process has read what strangers wrote.
        if size > self._max_answer:
            raise OSError("the answer is too long")
        content = await target.readexactly(size)
        # A long answer is parsed on a thread; a short one takes less than that.
        answer: dict[str, Any] = await asyncio.to_thread(json.loads, content) if size > 2**20 else json.loads(content)
        if (size := answer.pop("size", None)) is not None:
            if not 0 <= int(size) <= self._max_answer:
                raise OSError("what follows the answer is too long")
            answer["content"] = await target.readexactly(int(size))
        self.answers += 1
        return answer

    async def end(self) -> None:
        """Kill it."""
        with suppress(ProcessLookupError):
            self._process.kill()
        # Waited for: a process that has ended stays in the table until then.
        await self._process.wait()


START_SECONDS = 15.0  # that the first answer of a process may take longer: it waits for the imports
MAX_ANSWERS = 200  # of one process: what the next ones read, earlier ones have not touched for ever
NO_ANSWER = (OSError, ValueError, asyncio.IncompleteReadError)  # a process has ended, or says what is none


class ReadingPool:
    """Up to `processes` of a module; they begin when they are needed, and are kept for others.

    `seconds` bounds one answer, which has at most `max_answer` bytes.
    """

    def __init__(self, module: str, *, seconds: float, max_answer: int, processes: int) -> None:
        self._module = module
        self._seconds = seconds
        self._max_answer = max_answer
        self._places = asyncio.Semaphore(processes)  # as many at once as there are processes
        self._idle: list[ReadingProcess] = []  # that live, and have nothing to do
        self._running: set[ReadingProcess] = set()  # all that were started

    @property
    def pids(self) -> list[int]:
        """Its processes."""
        return [process.pid for process in self._running]

    async def ask(self, header: Mapping[str, object], body: bytes) -> dict[str, Any]:
        """Return what a process says of a body. Raises `TimeoutError`, and one of `NO_ANSWER`."""
        async with self._places:
            process = await self._take()
            try:
                seconds = self._seconds if process.answers else self._seconds + START_SECONDS
                async with asyncio.timeout(seconds):
                    answer = await process.ask(header, body)
            except BaseException:  # it may still answer, which would be taken for the next answer
                await self._end(process)
                raise
            if process.answers < MAX_ANSWERS and process in self._running:
                self._idle.append(process)
            else:
                await self._end(process)
        return answer

    async def aclose(self) -> None:
        """End the processes."""
        # Taken away first: one that ends while it reads is not used again.
        running, self._running = self._running, set()
        self._idle.clear()
        await asyncio.gather(*(process.end() for process in running))

    async def _end(self, process: ReadingProcess) -> None:
        self._running.discard(process)
        await process.end()

    async def _take(self) -> ReadingProcess:
        while self._idle:
            process = self._idle.pop()
            if process.is_running:
                return process
            self._running.discard(process)
        process = await ReadingProcess.start(self._module, max_answer=self._max_answer)
        self._running.add(process)
        return process


Answer = Callable[[dict[str, Any], bytes], dict[str, Any]]


def serve(answer: Answer, *, cpu_seconds: int, memory: int) -> None:
    """In the process: answer to headers and bodies until there are no more, each within this CPU time.

    `memory` is what all of them may take, in bytes of address space.
    """
    limit(resource.RLIMIT_AS, memory)
    # It writes no files, and leaves no core behind.
    limit(resource.RLIMIT_FSIZE, 0)
    limit(resource.RLIMIT_CORE, 0)
    _serve(answer, sys.stdin.buffer, sys.stdout.buffer, cpu_seconds)


def _serve(answer: Answer, source: BinaryIO, target: BinaryIO, cpu_seconds: int) -> None:
    while length := source.read(LENGTH_BYTES):
        header = json.loads(source.read(int.from_bytes(length)))
        used = resource.getrusage(resource.RUSAGE_SELF)
        # Used so far, and this much more: the limit counts from the start of the process.
        limit(resource.RLIMIT_CPU, int(used.ru_utime + used.ru_stime) + cpu_seconds)
        answered = answer(header, source.read(header.pop("size")))
        content = answered.pop("content", None)
        if content is not None:
            answered["size"] = len(content)
        written = json.dumps(answered).encode()
        target.write(len(written).to_bytes(LENGTH_BYTES) + written)
        target.write(content or b"")
        target.flush()


def limit(what: int, bound: int) -> None:
    """Bound what this process may take of a resource, no higher than it is bounded already."""
    _, most = resource.getrlimit(what)
    # The soft limit alone: only root could raise the hard one again.
    resource.setrlimit(what, (bound if most == resource.RLIM_INFINITY else min(bound, most), most))


MODULE = "responses_app.tools.reading.documents"
READ_SECONDS = 60.0  # for one file; a PDF of a hundred pages takes 2
PICTURES = "responses_app.tools.reading.pictures"
MAX_PICTURE_ANSWER = 32 * 1024 * 1024  # bytes: the largest picture
MAX_ANSWER = 256 * 1024 * 1024  # bytes: the longest text, all of it twice, with what JSON adds


class ReadFailed(Exception):
    """A file gives no text. `code` is OpenAI's for `last_error`, the message is for its owner."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class DocumentReader:
    """Reads files: up to `at_once`, the others wait."""

    def __init__(self, *, seconds: float = READ_SECONDS, at_once: int = 1) -> None:
        self._seconds = seconds
        self._places = asyncio.Semaphore(at_once)  # how many files are read at once

    async def chunks(self, name: str, body: bytes, chunking: Chunking, *, most: int) -> Sequence[str]:
        """Return the chunks of a file, from one to `most`. Raises `ReadFailed`."""
        header = {
            "name": name,
            "chunk_size": chunking.size,
            "chunk_overlap": chunking.overlap,
            "max_chunks": most,
        }
        chunks: Sequence[str] = (await self._answer(header, body))["chunks"]
        return chunks

    async def text(self, name: str, body: bytes, *, most: int) -> str:
        """Return the text of a file, up to `most` characters. Raises `ReadFailed`."""
        text: str = (await self._answer({"name": name, "max_text": most}, body))["text"]
        return text

    async def _answer(self, header: Mapping[str, object], body: bytes) -> dict[str, Any]:
        async with self._places:
            process = await ReadingProcess.start(MODULE, max_answer=MAX_ANSWER)
            try:
                async with asyncio.timeout(self._seconds):
                    answer = await process.ask(header, body)
            except TimeoutError:
                raise ReadFailed("invalid_file", f"It could not be read within {self._seconds:g} s.") from None
            except (OSError, ValueError, asyncio.IncompleteReadError):
                logger.warning("the process that read a file of %d bytes ended", len(body))
                raise ReadFailed("invalid_file", "It broke the program that reads it.") from None
            # A process for one file alone: what a file has done to it harms no other one.
            finally:
                await process.end()
        if "code" in answer:
            raise ReadFailed(answer["code"], answer["message"])
        return answer


PICTURE_SECONDS = 20.0  # for one picture, on a busy machine; one of 50 million pixels takes 5
PICTURE_PROCESSES = 2  # so one picture that takes long does not hold up all others


class PictureReader(ReadingPool):
    """Reads pictures of up to `max_pixels`, a few at once; the others wait."""

    def __init__(self, *, max_pixels: int, seconds: float = PICTURE_SECONDS) -> None:
        super().__init__(PICTURES, seconds=seconds, max_answer=MAX_PICTURE_ANSWER, processes=PICTURE_PROCESSES)
        self._max_pixels = max_pixels

    async def read(self, body: bytes, *, low: bool) -> ReadPicture:
        """Return a picture, with `low` a small one. Raises `PictureUnreadable`."""
        try:
            answer = await self._answer({"low": low, "max_pixels": self._max_pixels}, body)
        except TimeoutError:
            logger.warning("a picture of %d bytes was not read in time", len(body))
            raise PictureUnreadable("It could not be read in time: scale it down.") from None
        except NO_ANSWER:
            logger.warning("two processes that read a picture of %d bytes ended", len(body))
            raise PictureUnreadable("It broke the program that reads it.") from None
        if "message" in answer:
            raise PictureUnreadable(answer["message"])
        return ReadPicture(answer["media_type"], answer["width"], answer["height"], answer["content"])

    async def _answer(self, header: Mapping[str, object], body: bytes) -> dict[str, Any]:
        try:
            return await self.ask(header, body)
        # It may have ended for another reason: while it had nothing to do, or for want of this machine's memory.
        except NO_ANSWER:
            logger.warning("the process that read a picture of %d bytes ended: another one reads it", len(body))
            return await self.ask(header, body)
