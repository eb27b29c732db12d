"""`Indexer`: reads the files that were put into vector stores, one at a time, and removes what was deleted.

What is to be done stands in the database, so it survives every worker: whichever worker is free claims a file for
`LEASE_SECONDS`; where it dies, another one begins anew then. A file that ended several workers fails. Projects take
turns, so that one with a thousand files holds nobody up.
"""

import asyncio
import logging
from contextlib import suppress

from responses_app.stores.base import NotMigrated, StoreError
from responses_app.stores.files import BaseFileStore, FileGone
from responses_app.stores.vector_stores import BaseVectorStores, PendingFile
from responses_app.tools.reading.document_reader import READ_SECONDS, DocumentReader, ReadFailed

logger = logging.getLogger("respsite.tools")

LEASE_SECONDS = READ_SECONDS + 120.0  # to read a file, and to write its chunks
POLL_SECONDS = 3.0  # between looks for what other workers have left
SWEEP_SECONDS = 60.0  # between looks for what is to be removed: those go over all files
MAX_CHUNKS = 20_000  # of one file
MAX_FILE_BYTES = 64 * 1024 * 1024
_PAUSE_SECONDS = 0.02  # between steps of sweeping, so that others write, too


class Indexer:
    """Of one worker, which is called `worker`."""

    def __init__(
        self,
        stores: BaseVectorStores,
        files: BaseFileStore,
        reader: DocumentReader,
        *,
        worker: str,
        poll_seconds: float = POLL_SECONDS,
    ) -> None:
        self._stores = stores
        self._files = files
        self._reader = reader
        self._worker = worker
        self._poll_seconds = poll_seconds
        self._rung = asyncio.Event()
        self._project = ""  # whose file was read last
        self._sweep_at = 0.0  # by the loop's clock
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to look for files."""
        self._task = asyncio.create_task(self._keep_looking(), name="indexer")

    def ring(self) -> None:
        """Look now: something has come, or has gone."""
        self._rung.set()

    async def aclose(self) -> None:
        """Stop; the file that is read is for others. Safe to call twice."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _keep_looking(self) -> None:
        while True:
            if self._rung.is_set():
                self._sweep_at = 0.0
            self._rung.clear()
            try:
                await self._do_all()
            except NotMigrated:  # which is told once, not with every look
                pass
            except StoreError as problem:
                logger.warning("files cannot be put into vector stores now: %s", problem)
            except Exception:
                logger.exception("putting files into vector stores broke")
            with suppress(TimeoutError):
                async with asyncio.timeout(self._poll_seconds):
                    await self._rung.wait()

    async def _do_all(self) -> None:
        while (pending := await self._claim()) is not None:
            self._project = pending.project
            try:
                await self._index(pending)
            except asyncio.CancelledError:
                await asyncio.shield(self._give_back(pending))
                raise
        if asyncio.get_running_loop().time() >= self._sweep_at:
            await self._sweep()
            self._sweep_at = asyncio.get_running_loop().time() + SWEEP_SECONDS

    async def _claim(self) -> PendingFile | None:
        return await self._stores.claim(self._worker, lease_seconds=LEASE_SECONDS, after=self._project)

    async def _sweep(self) -> None:
        has_more = True
        while has_more:
            has_more = await self._stores.sweep()
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _index(self, pending: PendingFile) -> None:
        try:
            content = await self._files.content(pending.project, pending.file_id, max_bytes=MAX_FILE_BYTES)
            if content is None:
                raise ReadFailed("invalid_file", f"It has more than {MAX_FILE_BYTES:,} bytes: cut it into several.")
            if not pending.room:
                raise ReadFailed("invalid_file", "The vector store has as many chunks as it may have.")
            most = min(MAX_CHUNKS, pending.room)
            chunks = await self._reader.chunks(pending.filename, content, pending.chunking, most=most)
            del content
        except ReadFailed as problem:
            await self._stores.fail(pending, problem.code, str(problem))
        except FileGone:
            await self._stores.fail(pending, "invalid_file", "The file was deleted.")
        else:
            if not await self._stores.keep(pending, chunks):
                logger.info("%s was taken out of %s while it was read", pending.file_id, pending.store_id)

    async def _give_back(self, pending: PendingFile) -> None:
        with suppress(StoreError):
            await self._stores.release(pending)
