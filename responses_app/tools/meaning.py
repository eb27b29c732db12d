"""File search by meaning: the vectors of queries and of chunks, made by an embedding model of the server.

`QueryVectors` has those of queries. A search waits for them at most FILE_SEARCH_QUERY_SECONDS. Where the model fails,
words alone are searched, and so they are by the searches that follow, until it is asked again: an outage costs one
search its wait, and not all of them.

`ChunkEmbedder`: has the chunks of files embedded in the background, for one worker.

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
from abc import ABC, abstractmethod
from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from responses_app.kit.duty import end_tasks, keep_looking
from responses_app.kit.errors import StoreError
from responses_app.protocol.files.searches import Weights
from responses_app.resources.vector_stores.fields import Meaning
from responses_app.tools.settings import MeaningSettings

if TYPE_CHECKING:
    from responses_app.resources.vector_stores.store import VectorStores
    from responses_app.resources.vector_stores.work import FileToEmbed

logger = logging.getLogger("respsite.tools")

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0  # seconds between attempts, while the model does not answer


class EmbedderFailed(Exception):
    """The model does not answer, or with nothing that can be used; the message says why, for the log."""


class TextRefused(Exception):
    """The model does not take a text: it is too long for it."""


class BaseEmbedder(ABC):
    """One embedding model, as file search uses it."""

    @property
    @abstractmethod
    def model(self) -> str | None:
        """The key of its vectors: its name and how long they are; None until it has started."""

    @property
    @abstractmethod
    def dimensions(self) -> int:
        """How long its vectors are; known once it has started."""

    @abstractmethod
    async def embed(
        self, texts: Sequence[str], project: str, *, behind_all: bool, seconds: float
    ) -> Sequence[Sequence[float]]:
        """Return a vector of `dimensions` numbers for each text.

        It waits for a turn of the engine at most `seconds`, and as long for the answer. `behind_all`: as the lines of
        batches do. Raises `EmbedderFailed`, and `TextRefused` for a text that is too long.
        """


class Outage:
    """When the model is not asked, since it failed; each outage is logged once, each failure counted."""

    def __init__(self, purpose: str, count: Callable[[], None], *, now: Callable[[], float]) -> None:
        """Begin without one. `purpose` says in the log what is not possible meanwhile."""
        self._purpose = purpose
        self._count = count
        self._now = now
        self._until = 0.0  # by `now`
        self.pause = 0.0  # seconds, until the next attempt; 0 without an outage

    @property
    def holds(self) -> bool:
        """Whether it is too early to try again."""
        return self.pause > 0 and self._now() < self._until

    def failed(self, reason: str) -> None:
        """Note a failure: the pause until the next attempt grows."""
        self._count()
        if not self.pause:
            logger.warning("%s: the embedding model failed: %s", self._purpose, reason)
        self.pause = min(LONGEST_PAUSE, 2 * self.pause) or FIRST_PAUSE
        self._until = self._now() + self.pause

    def worked(self) -> None:
        """Note that it answers."""
        if self.pause:
            self.pause = 0.0
            logger.info("%s: the embedding model answers again", self._purpose)


MAX_KNOWN = 1000  # vectors of queries that are remembered: 4 MB, with 1,024 numbers each


class QueryVectors:
    """Has queries embedded."""

    def __init__(
        self,
        embedder: BaseEmbedder,
        settings: MeaningSettings,
        *,
        failed: Callable[[], None],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Remember nothing yet. `failed` is called for each failure; `now` is a clock, in seconds."""
        self._embedder = embedder
        self._seconds = settings.file_search_query_seconds
        self._outage = Outage("files are searched by words alone", failed, now=now)
        self._known: OrderedDict[tuple[str, str], array[float]] = OrderedDict()  # by model and query

    async def of(self, project: str, queries: Sequence[str], weights: Weights) -> Meaning | None:
        """Return the vectors and weights of a search; None where it is to search words alone."""
        model = self._embedder.model
        if not queries or not weights.embedding:
            return None
        if model is None:
            if not self._outage.holds:
                self._outage.failed("it has not started")
            return None
        lacking = [query for query in dict.fromkeys(queries) if (model, query) not in self._known]
        vectors = {query: self._known[model, query] for query in queries if (model, query) in self._known}
        if lacking:
            made = await self._embed(project, lacking)
            if made is None:
                return None
            vectors |= dict(zip(lacking, made, strict=True))
        for query, vector in vectors.items():
            self._known[model, query] = vector
            self._known.move_to_end((model, query))
        while len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)
        return Meaning(model=model, vectors=[vectors[query] for query in queries], weights=weights)

    async def _embed(self, project: str, queries: Sequence[str]) -> "Sequence[array[float]] | None":
        if self._outage.holds:
            return None
        try:
            async with asyncio.timeout(self._seconds):
                made = await self._embedder.embed(queries, project, behind_all=False, seconds=self._seconds)
        except TextRefused:  # a query longer than the model takes is no outage
            logger.info("a query is too long for the embedding model: words alone are searched")
            return None
        except TimeoutError:
            self._outage.failed(f"no answer within {self._seconds:g} s (FILE_SEARCH_QUERY_SECONDS)")
            return None
        except EmbedderFailed as problem:
            self._outage.failed(str(problem))
            return None
        self._outage.worked()
        return [array("f", vector) for vector in made]


POLL_SECONDS = 3.0  # between looks for what other workers have left, and for another model
MAX_CHUNKS = 64  # that the model gets at once: 50,000 tokens, with chunks of the usual size
MAX_AT_A_TIME = 1024  # chunks of one file, before the next project has its turn
SPARE_SECONDS = 10.0  # of a lease, for the database
MIN_TEXT = 64  # characters of a text that is not cut any more, though the model refuses it


class ChunkEmbedder:
    """Has chunks embedded, for the worker that is called `worker`."""

    def __init__(
        self,
        stores: "VectorStores",
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
        # Other workers cannot ring here, so it looks by itself as well.
        self._tasks = [
            keep_looking(
                partial(self._look, name),
                self._rung,
                seconds=self._poll_seconds,
                what="embedding the chunks of files",
                logger=logger,
            )
            for name in self._names
        ]

    def ring(self) -> None:
        """Look now: a file has been read."""
        self._rung.set()

    async def aclose(self) -> None:
        """Stop; chunks that are not embedded yet are for others. Safe to call twice."""
        await end_tasks(self._tasks)

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
            file = await self._stores.claim_vectors(name, model, lease_seconds=self._lease_seconds, after=self._project)
            if file is None:
                return
            # The next claim begins behind this project, so that projects take turns.
            self._project = file.row.store.project
            whole = False
            try:
                whole = await self._embed(file)
            finally:
                # `shield`: given back also while the server stops; else it would wait for the end of its lease.
                await asyncio.shield(self._end(file, whole=whole))

    async def _embed(self, file: "FileToEmbed") -> bool:
        """Embed chunks of a file; return whether every one has its vector."""
        position = file.start
        while position - file.start < MAX_AT_A_TIME and self._embedder.model == file.model:
            chunks = await self._stores.chunks_of(file, position, self._size)
            if not chunks:
                return True
            made = await self._vectors(file.row.store.project, [text for _, text in chunks])
            vectors = [(key, vector) for (key, _), vector in zip(chunks, made, strict=True)]
            if not await self._stores.keep_vectors(file, position, vectors, lease_seconds=self._lease_seconds):
                return False  # the file is gone, or another worker's
            position += len(chunks)
        return False

    async def _end(self, file: "FileToEmbed", *, whole: bool) -> None:
        with suppress(StoreError):  # then its lease ends by itself
            await self._stores.end_vectors(file, whole=whole)

    async def _vectors(self, project: str, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        try:
            vectors = await self._embedded(project, texts)
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
                (vector,) = await self._embedded(project, [text])
            except TextRefused:
                if len(text) < MIN_TEXT:
                    # Near nothing: such a chunk is found by its words.
                    return [0.0] * self._embedder.dimensions
                text = text[: len(text) // 2]
            else:
                return vector

    async def _embedded(self, project: str, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        return await self._embedder.embed(texts, project, behind_all=True, seconds=self._seconds)
