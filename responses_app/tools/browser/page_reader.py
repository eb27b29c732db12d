"""`PageReader`: has processes that read documents (`extraction`), and ends one that takes too long."""

import asyncio
import logging
from typing import Any

from responses_app.tools.browser.pages import Page, domain_of
from responses_app.tools.fetching import Fetched, FetchFailed
from responses_app.tools.reading_process import ReadingProcess

logger = logging.getLogger("respsite.tools")

MAX_PROCESSES = 2  # so one page that takes long does not hold up all others
READ_SECONDS = 8.0  # for one document, on a busy machine; a usual one takes 0.1
START_SECONDS = 15.0  # and so much more for the first one of a process
MAX_ANSWER = 32 * 1024 * 1024  # bytes: 20,000 lines as JSON have some 2 MB
MODULE = "responses_app.tools.browser.extraction"


class PageReader:
    """Reads documents, as many at once as it has processes; these begin when they are needed, and are kept."""

    def __init__(self, *, seconds: float = READ_SECONDS, processes: int = MAX_PROCESSES) -> None:
        self._seconds = seconds
        self._places = asyncio.Semaphore(processes)
        self._idle: list[ReadingProcess] = []
        self._running: set[ReadingProcess] = set()

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

    async def _take(self) -> ReadingProcess:
        while self._idle:
            process = self._idle.pop()
            if process.is_running:
                return process
            self._running.discard(process)
        process = await ReadingProcess.start(MODULE, max_answer=MAX_ANSWER)
        self._running.add(process)
        return process

    async def _said(self, process: ReadingProcess, fetched: Fetched) -> dict[str, Any]:
        header = {"url": fetched.url, "content_type": fetched.content_type, "charset": fetched.charset}
        seconds = self._seconds if process.is_warm else self._seconds + START_SECONDS
        try:
            async with asyncio.timeout(seconds):
                return await process.ask(header, fetched.body)
        except TimeoutError:
            logger.warning("a page of %s was not read within %g s", domain_of(fetched.url), seconds)
            raise FetchFailed("The page could not be read in time.") from None
        except (OSError, ValueError, asyncio.IncompleteReadError):
            logger.warning("the process that reads pages ended at one of %s", domain_of(fetched.url))
            raise FetchFailed("The page could not be read.") from None
