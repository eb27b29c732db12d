"""`PageReader`: has processes that read documents (`extraction`), and ends one that takes too long.

A PDF or DOCX file is read as file search reads one: by a process for it alone.
"""

import asyncio
import logging
from typing import Any
from urllib.parse import unquote, urlsplit

from responses_app.tools.fetching import Fetched, FetchFailed
from responses_app.tools.reading.document_reader import DocumentReader, ReadFailed
from responses_app.tools.reading.extraction import MAX_LINES
from responses_app.tools.reading.pages import MAX_TITLE, WIDTH, Page, domain_of, escaped, lines_of, one_line
from responses_app.tools.reading_process import ReadingProcess

logger = logging.getLogger("respsite.tools")

MAX_PROCESSES = 2  # so one page that takes long does not hold up all others
READ_SECONDS = 8.0  # for one document, on a busy machine; a usual one takes 0.1
START_SECONDS = 15.0  # and so much more for the first one of a process
MAX_ANSWER = 32 * 1024 * 1024  # bytes: 20,000 lines as JSON have some 2 MB
DOCUMENT_SECONDS = 20.0  # for a PDF or DOCX file, with the start of its process; one of a hundred pages takes 2
_DOCUMENTS = ("application/pdf", "application/vnd.openxmlformats-officedocument.wordprocessingml.document")
_PDF = b"%PDF-"  # which some servers send as nothing in particular
MODULE = "responses_app.tools.reading.extraction"


class PageReader:
    """Reads documents, as many at once as it has processes; these begin when they are needed, and are kept."""

    def __init__(self, *, seconds: float = READ_SECONDS, processes: int = MAX_PROCESSES) -> None:
        self._seconds = seconds
        self._places = asyncio.Semaphore(processes)
        self._idle: list[ReadingProcess] = []
        self._running: set[ReadingProcess] = set()
        self._documents = DocumentReader(seconds=DOCUMENT_SECONDS, at_once=processes)

    @property
    def pids(self) -> list[int]:
        """Its processes."""
        return [process.pid for process in self._running]

    async def read(self, fetched: Fetched) -> Page:
        """Return a page. Raises `FetchFailed` for what is not text, or cannot be read in time."""
        if fetched.content_type in _DOCUMENTS or (_is_unnamed(fetched) and fetched.body.startswith(_PDF)):
            return await self._document(fetched)
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

    async def _document(self, fetched: Fetched) -> Page:
        if fetched.truncated:  # what tells where its parts are stands at its end
            raise FetchFailed(f"The page cannot be shown. It is a document of more than {len(fetched.body)} bytes.")
        most = MAX_LINES * WIDTH
        try:
            text = await self._documents.text(_name(fetched.url), fetched.body, most=most)
        except ReadFailed as problem:
            raise FetchFailed(f"The page cannot be shown. {problem}") from None
        lines, truncated = await asyncio.to_thread(lines_of, escaped(text), max_lines=MAX_LINES)
        title = escaped(one_line(_name(fetched.url)))[:MAX_TITLE] or domain_of(fetched.url)
        return Page(url=fetched.url, title=title, lines=lines, truncated=truncated or len(text) == most)

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


def _is_unnamed(fetched: Fetched) -> bool:
    return fetched.content_type in ("", "application/octet-stream")


def _name(url: str) -> str:
    """Return what a document is called, by its address."""
    return unquote(urlsplit(url).path.rpartition("/")[2])
