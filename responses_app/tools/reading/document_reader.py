"""`DocumentReader`: has files read, each by a process of its own that lives no longer, within time and memory."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from responses_app.protocol.files.chunking import Chunking
from responses_app.tools.reading_process import ReadingProcess

logger = logging.getLogger("respsite.tools")

MODULE = "responses_app.tools.reading.documents"
READ_SECONDS = 60.0  # for one file; a PDF of a hundred pages takes 2
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
        self._places = asyncio.Semaphore(at_once)

    async def chunks(self, name: str, body: bytes, chunking: Chunking, *, most: int) -> Sequence[str]:
        """Return the chunks of a file, from one to `most`. Raises `ReadFailed`."""
        header = {
            "name": name,
            "chunk_size": chunking.size,
            "chunk_overlap": chunking.overlap,
            "max_chunks": most,
        }
        found: Sequence[str] = (await self._said(header, body))["chunks"]
        return found

    async def text(self, name: str, body: bytes, *, most: int) -> str:
        """Return the text of a file, up to `most` characters. Raises `ReadFailed`."""
        text: str = (await self._said({"name": name, "max_text": most}, body))["text"]
        return text

    async def _said(self, header: Mapping[str, object], body: bytes) -> dict[str, Any]:
        async with self._places:
            process = await ReadingProcess.start(MODULE, max_answer=MAX_ANSWER)
            try:
                async with asyncio.timeout(self._seconds):
                    said = await process.ask(header, body)
            except TimeoutError:
                raise ReadFailed("invalid_file", f"It could not be read within {self._seconds:g} s.") from None
            except (OSError, ValueError, asyncio.IncompleteReadError):
                logger.warning("the process that read a file of %d bytes ended", len(body))
                raise ReadFailed("invalid_file", "It broke the program that reads it.") from None
            finally:
                await process.end()
        if "code" in said:
            raise ReadFailed(said["code"], said["message"])
        return said
