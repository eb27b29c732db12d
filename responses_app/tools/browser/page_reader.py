"""`PageReader`: has a process that reads documents (`extraction`), and ends it where one takes too long."""

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

READ_SECONDS = 20.0  # for one document, the start of the process included: a busy machine needs some for that
MAX_ANSWER = 32 * 1024 * 1024  # bytes: 20,000 lines as JSON have some 2 MB
MODULE = "responses_app.tools.browser.extraction"
_ROOT = str(Path(__file__).parents[3])


class PageReader:
    """Reads one document at a time. Its process begins with the first, and is replaced where it was ended."""

    def __init__(self, *, seconds: float = READ_SECONDS) -> None:
        self._seconds = seconds
        self._turn = asyncio.Lock()
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int | None:
        """The process, None where there is none."""
        return self._process.pid if self._process is not None else None

    async def read(self, fetched: Fetched) -> Page:
        """Return a page. Raises `FetchFailed` for what is not text, or cannot be read in time."""
        header = {"url": fetched.url, "content_type": fetched.content_type, "charset": fetched.charset}
        async with self._turn:
            try:
                async with asyncio.timeout(self._seconds):
                    said = await self._ask({**header, "size": len(fetched.body)}, fetched.body)
            except TimeoutError:
                await self._end()
                logger.warning("a page of %s was not read within %g s", domain_of(fetched.url), self._seconds)
                raise FetchFailed("The page could not be read in time.") from None
            except (OSError, asyncio.IncompleteReadError):
                await self._end()
                logger.warning("the process that reads pages ended at one of %s", domain_of(fetched.url))
                raise FetchFailed("The page could not be read.") from None
            except asyncio.CancelledError:  # what it would answer is nobody's any more
                await self._end()
                raise
        if "error" in said:
            raise FetchFailed(f"The page cannot be shown. {said['error']}")
        truncated = said.pop("truncated") or fetched.truncated
        return Page(url=fetched.url, truncated=truncated, **said)

    async def aclose(self) -> None:
        """End the process."""
        await self._end()

    async def _ask(self, header: Mapping[str, object], body: bytes) -> dict[str, Any]:
        process = await self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        written = json.dumps(header).encode()
        process.stdin.write(len(written).to_bytes(LENGTH_BYTES) + written + body)
        await process.stdin.drain()
        size = int.from_bytes(await process.stdout.readexactly(LENGTH_BYTES))
        if size > MAX_ANSWER:
            raise OSError("the answer is too long")
        answer: dict[str, Any] = json.loads(await process.stdout.readexactly(size))
        return answer

    async def _running(self) -> asyncio.subprocess.Process:
        if self._process is None or self._process.returncode is not None:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", MODULE),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                cwd=_ROOT,
                env={"LANG": "C.UTF-8"},  # nothing of the server's: it needs none of its secrets
                start_new_session=True,  # a Ctrl-C is for the server, which ends it
            )
        return self._process

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
