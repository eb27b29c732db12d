"""File search: the `file_search` tool of requests, and what reads the files of the vector stores that it searches.

`FileSearchTool` searches, and owns what keeps and fills the vector stores. `Indexer` reads the files that were put into
them, one at a time, and removes what was deleted.

What is to be done stands in the database, so it survives every worker: whichever worker is free claims a file for
`LEASE_SECONDS`; where it dies, another one begins anew then. A file that ended several workers fails. Projects take
turns, so that one with a thousand files holds nobody up.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from engine import orjson
from engine.formats.base import FunctionTool, ToolNamespace
from engine.types import JsonSchema
from responses_app.kit.duty import end_tasks, keep_looking
from responses_app.kit.errors import StoreError
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.files.searches import MAX_QUERY, Chunking, Filter, Weights
from responses_app.protocol.items.offers import Offer, OfferedTool
from responses_app.protocol.requests.server_tools import FOUND, FoundFiles
from responses_app.resources.files.fields import FileGone
from responses_app.resources.vector_stores.fields import MAX_QUERIES, Hit, Search, store_expired, store_not_found
from responses_app.tools.base import BaseTool, Finish, ToolCall, ToolFailed, ToolResult, ToolUse, json_object
from responses_app.tools.meaning import ChunkEmbedder, QueryVectors
from responses_app.tools.reading.processes import READ_SECONDS, DocumentReader, ReadFailed

if TYPE_CHECKING:
    from responses_app.resources.files.store import Files
    from responses_app.resources.vector_stores.store import VectorStores
    from responses_app.resources.vector_stores.work import FileToRead

logger = logging.getLogger("respsite.tools")

LEASE_SECONDS = READ_SECONDS + 120.0  # to read a file, and to write its chunks
POLL_SECONDS = 3.0  # between looks for what other workers have left
SWEEP_SECONDS = 60.0  # between looks for what is to be removed: those go over all files
MAX_CHUNKS = 20_000  # of one file
MAX_FILE_BYTES = 64 * 1024 * 1024  # of one file; larger ones fail
_PAUSE_SECONDS = 0.02  # between steps of sweeping, so that others write, too


class Indexer:
    """Has files read into vector stores, for one worker, which is called `worker`."""

    def __init__(
        self,
        stores: "VectorStores",
        files: "Files",
        reader: DocumentReader,
        *,
        worker: str,
        poll_seconds: float = POLL_SECONDS,
    ) -> None:
        self._stores = stores
        self._files = files
        self._reader = reader
        self.worker = worker
        self._poll_seconds = poll_seconds
        self.when_kept: Callable[[], None] | None = None  # called when the chunks of a file have been kept
        self._rung = asyncio.Event()  # set when something has come, or has gone
        self._project = ""  # whose file was read last
        self._sweeps = False  # it was rung: a sweep is due with the next look
        self._sweep_at = 0.0  # by the loop's clock
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to look for files."""
        # Other workers cannot ring here, so it looks by itself as well.
        self._task = keep_looking(
            self._do_all,
            self._rung,
            seconds=self._poll_seconds,
            what="putting files into vector stores",
            logger=logger,
        )

    def ring(self) -> None:
        """Look now: something has come, or has gone."""
        self._sweeps = True
        self._rung.set()

    async def aclose(self) -> None:
        """Stop; the file that is read is for others. Safe to call twice."""
        await end_tasks([self._task])

    async def _do_all(self) -> None:
        if self._sweeps:
            self._sweeps, self._sweep_at = False, 0.0
        while True:
            file = await self._stores.claim(self.worker, lease_seconds=LEASE_SECONDS, after=self._project)
            if file is None:
                break
            # The next claim begins behind this project, so that projects take turns.
            self._project = file.row.store.project
            try:
                await self._index(file)
            except asyncio.CancelledError:
                # `shield`: given back also while the server stops; else it would wait for the end of its lease.
                await asyncio.shield(self._give_back(file))
                raise
        if asyncio.get_running_loop().time() >= self._sweep_at:
            has_more = True
            while has_more:
                # In steps: each is a transaction, and between them others write.
                has_more = await self._stores.sweep()
                await asyncio.sleep(_PAUSE_SECONDS)
            self._sweep_at = asyncio.get_running_loop().time() + SWEEP_SECONDS

    async def _index(self, file: "FileToRead") -> None:
        row = file.row
        try:
            content = await self._files.content(row.store.project, row.file_id, max_bytes=MAX_FILE_BYTES)
            if content is None:
                raise ReadFailed("invalid_file", f"It has more than {MAX_FILE_BYTES:,} bytes: cut it into several.")
            if not file.room:
                raise ReadFailed("invalid_file", "The vector store has as many chunks as it may have.")
            chunking, most = Chunking(row.chunk_size, row.chunk_overlap), min(MAX_CHUNKS, file.room)
            chunks = await self._reader.chunks(row.filename, content, chunking, most=most)
            del content
        except ReadFailed as problem:
            await self._stores.fail(file, problem.code, str(problem))
        except FileGone:
            await self._stores.fail(file, "invalid_file", "The file was deleted.")
        else:
            if not await self._stores.keep(file, chunks):
                logger.info("%s was taken out of %s while it was read", row.file_id, row.store.pk)
            elif self.when_kept is not None:
                self.when_kept()

    async def _give_back(self, file: "FileToRead") -> None:
        with suppress(StoreError):
            await self._stores.release(file)


NAMESPACE, FUNCTION = "file_search", "msearch"
NAME = f"{NAMESPACE}.{FUNCTION}"
RESULTS = "file_search_call.results"  # of `include`
DESCRIPTION = """Tool for searching the files that the user has uploaded.
Results are parts of files, each after its mark and the file's name: `[{search}:{result}] {name}`.
Cite them in your answer by `【{search}:{result}†{name}】`, for example: `【0:2†report.pdf】`."""
_SEARCH = "Searches the files for parts that have words of one of the `queries`. Give several queries, in other words."
SCHEMA: JsonObject = {
    "type": "object",
    "properties": {"queries": {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": MAX_QUERIES}},
    "required": ["queries"],
}
_NOTHING = "Nothing was found. Other words may find something."
_MAX_NAME = 200  # characters of a file's name that the model reads


class FileSearchTool(BaseTool):
    """Searches vector stores, and owns the reader of their files."""

    kinds: ClassVar = ("file_search",)

    def __init__(self, stores: "VectorStores", indexer: Indexer) -> None:
        self.stores = stores
        self.indexer = indexer
        self._queries: QueryVectors | None = None
        self._chunks: ChunkEmbedder | None = None

    def use(self, queries: QueryVectors, chunks: ChunkEmbedder) -> None:
        """Search by meaning too, from the start on."""
        self._queries, self._chunks = queries, chunks
        self.indexer.when_kept = chunks.ring

    async def start(self) -> None:
        self.indexer.start()
        if self._chunks is not None:
            self._chunks.start()

    async def aclose(self) -> None:
        await self.indexer.aclose()
        if self._chunks is not None:
            await self._chunks.aclose()
        await self.stores.aclose()

    async def forget(self, project: str, file_id: str) -> None:
        """Take a file that was deleted out of all stores. Where that fails, it is found no more, and goes later."""
        try:
            await self.stores.forget_file(project, file_id)
        except StoreError as problem:
            logger.warning("%s is taken out of its vector stores later: %s", file_id, problem)
        self.indexer.ring()

    async def offer(self, use: ToolUse) -> Offer:
        declared: dict[str, Any] = use.declared
        await asyncio.gather(*(self._check(use, store_id) for store_id in declared["vector_store_ids"]))
        function = FunctionTool(FUNCTION, _SEARCH, orjson.dumps(SCHEMA).decode())
        tool = OfferedTool(name=NAME, item=FOUND, repeatable=True, reads=True)
        return Offer(ToolNamespace(NAMESPACE, DESCRIPTION, (function,)), [tool], {NAME: JsonSchema(function.schema)})

    async def call(self, call: ToolCall) -> ToolResult:
        return await (await self.begin(call))(call)

    async def begin(self, call: ToolCall) -> Finish:
        queries = queries_of(call.arguments)
        try:
            hits = await self._hits(call.use, queries)
        except StoreError:
            raise ToolFailed("the files cannot be searched now.", shown={"queries": queries}) from None

        async def finish(later: ToolCall) -> ToolResult:
            """Number the results behind those that the chain has found before."""
            cited = FoundFiles(later.state)
            number = cited.next_search
            cited.add([(hit.file_id, hit.filename) for hit in hits])
            shown: JsonObject = {"queries": queries}
            if RESULTS in later.use.include:
                shown["results"] = [_result(hit) for hit in hits]
            return ToolResult(results_text(number, hits), shown, state=cited.as_json())

        return finish

    async def search(
        self, project: str, store_ids: Sequence[str], search: Search, weights: Weights | None = None
    ) -> Sequence[Sequence[Hit] | None]:
        """Return the results of each store, by words and, where there is a model for it, by meaning.

        None stands for a store that is gone or has expired.
        """
        if self._queries is not None:
            search = replace(search, meaning=await self._queries.of(project, search.queries, weights or Weights()))
        return await asyncio.gather(*(self.stores.search(project, store_id, search) for store_id in store_ids))

    async def _check(self, use: ToolUse, store_id: str) -> None:
        """Raise `ApiError` for a store that cannot be searched."""
        record = await self.stores.get(use.project, store_id)
        if record is None:
            raise store_not_found(store_id, param=f"{use.at}.vector_store_ids")
        # A search for nothing costs little, and says whether the store has expired.
        if await self.stores.search(use.project, store_id, Search(queries=())) is None:
            raise store_expired(store_id, param=f"{use.at}.vector_store_ids")

    async def _hits(self, use: ToolUse, queries: Sequence[str]) -> Sequence[Hit]:
        """Return the best results of all stores. Raises `ToolFailed` where there is none left."""
        declared: dict[str, Any] = use.declared
        search = Search(
            queries=queries,
            limit=declared["max_num_results"],
            threshold=declared["ranking_options"]["score_threshold"],
            matches=None if declared["filters"] is None else Filter(declared["filters"]).matches,
        )
        hybrid: dict[str, float] = declared["ranking_options"].get("hybrid_search") or {}
        weights = Weights(hybrid["embedding_weight"], hybrid["text_weight"]) if hybrid else Weights()
        every = await self.search(use.project, declared["vector_store_ids"], search, weights)
        there = [hits for hits in every if hits is not None]
        if not there:
            raise ToolFailed("the files are gone.", shown={"queries": queries})
        # A part that lies in several stores counts once.
        best = {hit.key: hit for hits in there for hit in hits}
        # By their keys where scores are equal, so that the order is always the same.
        return sorted(best.values(), key=lambda hit: (-hit.score, hit.key))[: search.limit]


def queries_of(arguments: str) -> list[str]:
    """Return the queries of the model. Raises `ToolFailed` for arguments that have none."""
    values = json_object(arguments) or {}
    value = values.get("queries", values.get("query"))
    every = value if isinstance(value, list) else [value]
    queries = [query[:MAX_QUERY] for query in every if isinstance(query, str) and query.strip()]
    if not queries:
        raise ToolFailed("Invalid arguments: they should be a JSON object with 'queries', an array of strings.")
    return queries[:MAX_QUERIES]


def results_text(number: int, hits: Sequence[Hit]) -> str:
    """Return the results as the model reads them."""
    parts = []
    for place, hit in enumerate(hits):
        name = _without_marks(" ".join(hit.filename.split()))[:_MAX_NAME]
        parts.append(f"[{number}:{place}] {name}\n{_without_marks(hit.text)}")
    return "\n\n".join(parts) or _NOTHING


def _without_marks(text: str) -> str:
    """Return a text without brackets that could be taken for a citation of ours."""
    return text.replace("【", "[").replace("】", "]")


def _result(hit: Hit) -> JsonObject:
    return {
        "file_id": hit.file_id,
        "filename": hit.filename,
        "score": hit.score,
        "attributes": dict(hit.attributes),
        "text": hit.text,
    }
