"""`PageReader`: has processes that read documents (`extraction`), and ends one that takes too long."""

import asyncio
import json
import logging
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from responses_app.tools.browser.extraction import LENGTH_BYTES
from responses_app.tools.browser.pages import Page, domain_of
from responses_app.tools.fetching import Fetched, FetchFailed

logger = logging.getLogger("respsite.tools")

MAX_PROCESSES = 2  # so one page that takes long does not hold up all others
READ_SECONDS = 8.0  # for one document, on a busy machine; a usual one takes 0.1
START_SECONDS = 15.0  # and so much more for the first one of a process
MAX_ANSWER = 32 * 1024 * 1024  # bytes: 20,000 lines as JSON have some 2 MB
MODULE = "responses_app.tools.browser.extraction"
_ROOT = str(Path(__file__).parents[3])


class PageReader:
    """Reads documents, as many at once as it has processes; these begin when they are needed, and are kept."""

    def __init__(self, *, seconds: float = READ_SECONDS, processes: int = MAX_PROCESSES) -> None:
        self._seconds = seconds
        self._places = asyncio.Semaphore(processes)
        self._idle: list[_Process] = []
        self._running: set[_Process] = set()

    @property
    def pids(self) -> list[int]:
        """Its processes."""
        return [process.pid for process in self._running]

    async def read(self, fetched: Fetched) -> Page:
        """Return a page. Raises `FetchFailed` for what is not text, or cannot be read in time."""
        async with self._places:
            process = await self._take()
            try:
                said = await self._said(process, fetched)
            except BaseException:  # it may still answer, which would be taken for the next answer
                self._running.discard(process)
                await process.end()
                raise
            self._idle.append(process)
        if "error" in said:
            raise FetchFailed(f"The page cannot be shown. {said['error']}")
        truncated = said.pop("truncated") or fetched.truncated
        return Page(url=fetched.url, truncated=truncated, **said)

    async def aclose(self) -> None:
        """End the processes."""
        running, self._running = self._running, set()
        self._idle.clear()
        await asyncio.gather(*(process.end() for process in running))

    async def _take(self) -> "_Process":
        while self._idle:
            process = self._idle.pop()
            if process.is_running:
                return process
            self._running.discard(process)
        process = await _Process.start()
        self._running.add(process)
        return process

    async def _said(self, process: "_Process", fetched: Fetched) -> dict[str, Any]:
        header = {"url": fetched.url, "content_type": fetched.content_type, "charset": fetched.charset}
        seconds = self._seconds if process.is_warm else self._seconds + START_SECONDS
        try:
            async with asyncio.timeout(seconds):
                return await process.ask({**header, "size": len(fetched.body)}, fetched.body)
        except TimeoutError:
            logger.warning("a page of %s was not read within %g s", domain_of(fetched.url), seconds)
            raise FetchFailed("The page could not be read in time.") from None
        except (OSError, ValueError, asyncio.IncompleteReadError):
            logger.warning("the process that reads pages ended at one of %s", domain_of(fetched.url))
            raise FetchFailed("The page could not be read.") from None


class _Process:
    """One process; `is_warm`: it has read a document."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.is_warm = False

    @classmethod
    async def start(cls) -> "_Process":
        return cls(
            await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", MODULE),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                cwd=_ROOT,
                env={"LANG": "C.UTF-8"},  # nothing of the server's: it needs none of its secrets
                start_new_session=True,  # a Ctrl-C is for the server, which ends it
            )
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.returncode is None

    async def ask(self, header: Mapping[str, object], body: bytes) -> dict[str, Any]:
        source, target = self._process.stdin, self._process.stdout
        assert source is not None
        assert target is not None
        written = json.dumps(header).encode()
        source.write(len(written).to_bytes(LENGTH_BYTES) + written + body)
        await source.drain()
        size = int.from_bytes(await target.readexactly(LENGTH_BYTES))
        if size > MAX_ANSWER:
            raise OSError("the answer is too long")
        answer: dict[str, Any] = json.loads(await target.readexactly(size))
        self.is_warm = True
        return answer

    async def end(self) -> None:
        with suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
