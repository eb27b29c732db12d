"""`ChunkEmbedder`: has the chunks of files embedded in the background, for one worker.

A file is `completed` when its words are searched; its vectors come after that. What lacks vectors of the present model
stands in the database, so it survives every worker, and a model that changes is noticed as new files are:

    claim a file of the next project  ->  embed up to `MAX_CHUNKS` chunks  ->  keep their vectors, lease again  ->  …

Each step is kept at once. A worker that dies has embedded at most one step for nothing; another one goes on behind what
it kept, when its lease is over. After `MAX_AT_A_TIME` chunks of a file the next project has its turn. The model is
asked behind all requests that somebody waits for, as by the lines of batches.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from responses_app.stores.base import StoreError
from responses_app.stores.looking import keep_looking
from responses_app.stores.vector_stores import PendingVectors
from responses_app.tools.meaning.base import BaseEmbedder, EmbedderFailed, MeaningSettings, Outage, TextRefused

if TYPE_CHECKING:
    from responses_app.stores.database.vector_stores.vector_stores import DatabaseVectorStores

logger = logging.getLogger("respsite.tools")

POLL_SECONDS = 3.0  # between looks for what other workers have left, and for another model
MAX_CHUNKS = 64  # that the model gets at once: 50,000 tokens, with chunks of the usual size
MAX_AT_A_TIME = 1024  # chunks of one file, before the next project has its turn
SPARE_SECONDS = 10.0  # of a lease, for the database
MIN_TEXT = 64  # characters of a text that is not cut any more, though the model refuses it


class ChunkEmbedder:
    """Has chunks embedded, for the worker that is called `worker`."""

    def __init__(
        self,
        stores: "DatabaseVectorStores",
        embedder: BaseEmbedder,
        settings: MeaningSettings,
        *,
        worker: str,
        failed: Callable[[], None],
        poll_seconds: float = POLL_SECONDS,
    ) -> None:
        """Begin nothing yet. `failed` is called for each failure of the model."""
        self._stores = stores
        self._embedder = embedder
        self._seconds = settings.file_search_embedding_seconds
        self._lease_seconds = 2 * self._seconds + SPARE_SECONDS
        self._names = [f"{worker}.{number}" for number in range(settings.file_search_embedding_at_once)]
        self._outage = Outage("files get no vectors", failed, now=time.monotonic)
        self._poll_seconds = poll_seconds
        self._rung = asyncio.Event()  # set when a file has been read
        self._size = MAX_CHUNKS  # chunks that the model gets at once: fewer while it is too slow
        self._project = ""  # whose file was embedded last
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin to look for files."""
        self._tasks = [asyncio.create_task(self._keep_looking(name), name=f"embedding {name}") for name in self._names]

    def ring(self) -> None:
        """Look now: a file has been read."""
        self._rung.set()

    async def aclose(self) -> None:
        """Stop; what is not embedded yet is for others. Safe to call twice."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _keep_looking(self, name: str) -> None:
        # Other workers cannot ring here, so it looks by itself as well.
        await keep_looking(
            lambda: self._look(name),
            self._rung,
            seconds=self._poll_seconds,
            what="embedding the chunks of files",
            logger=logger,
        )

    async def _look(self, name: str) -> None:
        """Embed what there is, as often as it takes while the model fails."""
        while True:
            try:
                await self._do_all(name)
                return
            except EmbedderFailed as problem:
                self._outage.failed(str(problem))
                await asyncio.sleep(self._outage.pause)

    async def _do_all(self, name: str) -> None:
        while (model := self._embedder.model) is not None:
            pending = await self._stores.claim_vectors(
                name, model, lease_seconds=self._lease_seconds, after=self._project
            )
            if pending is None:
                return
            # The next claim begins behind this project, so that projects take turns.
            self._project = pending.project
            whole = False
            try:
                whole = await self._embed(pending)
            finally:
                # `shield`: given back also while the server stops; else it would wait for the end of its lease.
                await asyncio.shield(self._end(pending, whole=whole))

    async def _embed(self, pending: PendingVectors) -> bool:
        """Embed chunks of a file; return whether every one has its vector."""
        position = pending.start
        while position - pending.start < MAX_AT_A_TIME and self._embedder.model == pending.model:
            chunks = await self._stores.chunks_of(pending, position, self._size)
            if not chunks:
                return True
            vectors = await self._vectors(pending.project, [text for _, text in chunks])
            keys = [key for key, _ in chunks]
            if not await self._stores.keep_vectors(pending, position, keys, vectors, lease_seconds=self._lease_seconds):
                return False  # the file is gone, or another worker's
            position += len(chunks)
        return False

    async def _end(self, pending: PendingVectors, *, whole: bool) -> None:
        with suppress(StoreError):  # then its lease ends by itself
            await self._stores.end_vectors(pending, whole=whole)

    async def _vectors(self, project: str, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        try:
            vectors = await self._asked(project, texts)
        except TextRefused:
            # One by one: so only what is too long is cut.
            vectors = [await self._vector(project, text) for text in texts]
        except EmbedderFailed:
            # It may be too slow for so many: fewer are asked for next.
            self._size = max(1, self._size // 2)
            raise
        self._size = min(MAX_CHUNKS, 2 * self._size)
        self._outage.worked()
        return vectors

    async def _vector(self, project: str, text: str) -> Sequence[float]:
        """Return the vector of a chunk: of its beginning, where the model does not take the whole."""
        while True:
            try:
                (vector,) = await self._asked(project, [text])
            except TextRefused:
                if len(text) < MIN_TEXT:
                    # Near nothing: such a chunk is found by its words.
                    return [0.0] * self._embedder.dimensions
                text = text[: len(text) // 2]
            else:
                return vector

    async def _asked(self, project: str, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        return await self._embedder.embed(texts, project, behind_all=True, seconds=self._seconds)
