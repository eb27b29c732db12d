"""The fields of requests and answers of `/v1/vector_stores`, what is searched, and the errors that are theirs alone."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, NamedTuple, get_args

from pydantic import Field
from typing_extensions import TypedDict

from responses_app.kit.clock import unix
from responses_app.protocol.errors import ApiError, JsonObject, invalid_request, invalid_value, not_found, rate_limited
from responses_app.protocol.fields import ClientModel, Metadata, Text, check_metadata, missing, validate
from responses_app.protocol.files.searches import (
    DEFAULT_RESULTS,
    MAX_QUERY,
    MAX_RESULTS,
    Attributes,
    Chunking,
    Filter,
    RankingOptions,
    Value,
    Weights,
)
from responses_app.protocol.requests.pages import Query

if TYPE_CHECKING:
    from responses_app.resources.vector_stores import model

FileStatus = Literal["in_progress", "completed", "failed", "cancelled"]
STATUSES: tuple[FileStatus, ...] = get_args(FileStatus)
MIN_SIZE, MAX_SIZE = 100, 4096  # tokens of a chunk
MAX_DAYS = 365  # until a store expires that nobody searches
MAX_BATCH = 2000  # files in one request
MAX_QUERIES = 10  # of one search
_MAX_NAME, _MAX_DESCRIPTION, _MAX_ID = 256, 4096, 64  # characters
_CLEARED: JsonObject = {"name": "", "description": "", "metadata": {}}  # columns, as they are without a value


class ExpiresAfterDays(ClientModel):
    """How long nobody may search a store before it expires."""

    anchor: Literal["last_active_at"]
    days: int = Field(ge=1, le=MAX_DAYS)


class StaticChunking(ClientModel):
    """The size of chunks and what they share, in tokens."""

    max_chunk_size_tokens: int = Field(ge=MIN_SIZE, le=MAX_SIZE)
    chunk_overlap_tokens: int = Field(ge=0, le=MAX_SIZE // 2)


class StaticStrategy(ClientModel):
    """Chunks as the client wants them."""

    type: Literal["static"]
    static: StaticChunking


class AutoStrategy(ClientModel):
    """Chunks as the server likes them."""

    type: Literal["auto"]


Strategy = Annotated[AutoStrategy | StaticStrategy, Field(discriminator="type")]
FileId = Annotated[Text, Field(min_length=1, max_length=_MAX_ID)]
Name = Annotated[Text, Field(max_length=_MAX_NAME)]


class NewVectorStore(ClientModel):
    """The body of a create."""

    name: Name | None = None
    description: Annotated[Text, Field(max_length=_MAX_DESCRIPTION)] | None = None
    file_ids: list[FileId] | None = Field(default=None, max_length=MAX_BATCH)
    chunking_strategy: Strategy | None = None
    expires_after: ExpiresAfterDays | None = None
    metadata: Metadata | None = None


class VectorStoreChanges(ClientModel):
    """The body of an update; null clears a field."""

    name: Name | None = None
    expires_after: ExpiresAfterDays | None = None
    metadata: Metadata | None = None


class NewVectorStoreFile(ClientModel):
    """A file that is to be put into a store."""

    file_id: FileId
    attributes: Attributes | None = None
    chunking_strategy: Strategy | None = None


class NewVectorStoreBatch(ClientModel):
    """Files that are to be put into a store together: `file_ids` with all the same fields, or `files`."""

    file_ids: list[FileId] | None = Field(default=None, min_length=1, max_length=MAX_BATCH)
    files: list[NewVectorStoreFile] | None = Field(default=None, min_length=1, max_length=MAX_BATCH)
    attributes: Attributes | None = None
    chunking_strategy: Strategy | None = None


class VectorStoreFileChanges(ClientModel):
    """The body of an update of a file in a store."""

    attributes: Attributes | None

    beside: ClassVar = ("vector_store_id",)  # stands in the path


class VectorStoreSearch(ClientModel):
    """The body of a search."""

    query: (
        Annotated[str, Field(min_length=1, max_length=MAX_QUERY)]
        | Annotated[list[Annotated[str, Field(max_length=MAX_QUERY)]], Field(min_length=1, max_length=MAX_QUERIES)]
    )
    filters: JsonObject | None = None
    max_num_results: int = Field(default=DEFAULT_RESULTS, ge=1, le=MAX_RESULTS)
    ranking_options: RankingOptions | None = None
    rewrite_query: bool | None = None

    idle: ClassVar = {"rewrite_query": "The query is searched as it is."}
    told: ClassVar = ("rewrite_query",)


class FileCounts(TypedDict):
    """How many files have which status."""

    in_progress: int
    completed: int
    failed: int
    cancelled: int
    total: int


class VectorStoreExpiry(TypedDict):
    """How long nobody may search a store before it expires."""

    anchor: Literal["last_active_at"]
    days: int


class VectorStore(TypedDict):
    """Files that are searched together."""

    id: str
    object: Literal["vector_store"]
    created_at: int
    name: str
    description: str | None
    usage_bytes: int  # of the chunks of all its files
    file_counts: FileCounts
    status: Literal["expired", "in_progress", "completed"]
    expires_after: VectorStoreExpiry | None
    expires_at: int | None
    last_active_at: int
    metadata: dict[str, str]


class ChunkSizes(TypedDict):
    """The size of chunks and what they share, in tokens."""

    max_chunk_size_tokens: int
    chunk_overlap_tokens: int


class ChunkingStrategy(TypedDict):
    """How a file is cut."""

    type: Literal["static"]
    static: ChunkSizes


class LastError(TypedDict):
    """Why a file could not be read."""

    code: Literal["server_error", "unsupported_file", "invalid_file"]
    message: str


class VectorStoreFile(TypedDict):
    """A file in a vector store; `usage_bytes` are those of its chunks."""

    id: str
    object: Literal["vector_store.file"]
    usage_bytes: int  # of its chunks
    created_at: int
    vector_store_id: str
    status: Literal["in_progress", "completed", "cancelled", "failed"]
    last_error: LastError | None
    chunking_strategy: ChunkingStrategy
    attributes: dict[str, str | bool | int | float]


class VectorStoreBatch(TypedDict):
    """Files that were put into a store together."""

    id: str
    object: Literal["vector_store.files_batch"]
    created_at: int
    vector_store_id: str
    status: Literal["in_progress", "completed", "cancelled", "failed"]
    file_counts: FileCounts


class FoundText(TypedDict):
    """A chunk of a file."""

    type: Literal["text"]
    text: str


class VectorStoreResult(TypedDict):
    """A chunk that was found; `score` is from 0 to 1."""

    file_id: str
    filename: str
    score: float  # from 0 to 1
    attributes: dict[str, str | bool | int | float]
    content: list[FoundText]


class VectorStoreResults(TypedDict):
    """What a search has found, the best first."""

    object: Literal["vector_store.search_results.page"]
    search_query: list[str]
    data: list[VectorStoreResult]
    has_more: bool
    next_page: str | None  # always null: there is one page


class VectorStoreContent(TypedDict):
    """The text of a file, as it is searched."""

    object: Literal["vector_store.file_content.page"]
    file_id: str
    filename: str
    attributes: dict[str, str | bool | int | float]
    data: list[FoundText]
    has_more: bool
    next_page: str | None


class VectorStoreList(TypedDict):
    """A part of a list of vector stores. The ids of an empty one are empty texts."""

    object: Literal["list"]
    data: list[VectorStore]
    first_id: str
    last_id: str
    has_more: bool


class VectorStoreFileList(TypedDict):
    """A part of a list of files in a store. The ids of an empty one are empty texts."""

    object: Literal["list"]
    data: list[VectorStoreFile]
    first_id: str
    last_id: str
    has_more: bool


class DeletedVectorStore(TypedDict):
    """A store is gone, or a file is no longer in one."""

    id: str
    object: Literal["vector_store.deleted", "vector_store.file.deleted"]
    deleted: Literal[True]


class CountedStore(NamedTuple):
    """A store, and what is in it."""

    row: "model.VectorStore"
    file_counts: FileCounts
    usage_bytes: int  # of the chunks of all its files


class CountedBatch(NamedTuple):
    """Files that were put into a store together, and what became of them."""

    row: "model.VectorStoreBatch"
    file_counts: FileCounts


@dataclass(frozen=True, slots=True, kw_only=True)
class NewStoreFile:
    """A file that is to be put into a store."""

    file_id: str
    filename: str = ""  # known once the file is found
    at: str = "file_id"  # where the request names it, for errors
    attributes: Mapping[str, Value] = field(default_factory=dict)
    chunking: Chunking = Chunking()  # noqa: RUF009 - it is frozen

    def columns(self) -> JsonObject:
        """Return the columns of its row."""
        return {
            "file_id": self.file_id,
            "filename": self.filename,
            "attributes": dict(self.attributes),
            "chunk_size": self.chunking.size,
            "chunk_overlap": self.chunking.overlap,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Meaning:
    """The vectors of the queries of a search, and how they count."""

    model: str  # that made them, with their length; vectors of others are not compared with them
    vectors: Sequence[Sequence[float]]  # one for each query, of length 1
    weights: Weights = Weights()  # noqa: RUF009 - it is frozen


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """What is looked for in a store."""

    queries: Sequence[str]  # a chunk that fits any of them is found
    limit: int = DEFAULT_RESULTS  # chunks, of all queries together
    threshold: float = 0.0  # the lowest score of a chunk, from 0 to 1
    matches: Callable[[Mapping[str, Value]], bool] | None = None  # whether a file's attributes fit; None: all do
    meaning: Meaning | None = None  # None: words alone are searched


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """A chunk that was found."""

    key: int  # of its row
    file_id: str
    filename: str
    attributes: Mapping[str, Value]
    text: str
    score: float  # from 0 to 1, see `search`


def parse_store(data: Mapping[str, object]) -> tuple[NewVectorStore, Sequence[NewStoreFile]]:
    """Read the body of a create. Raises `ApiError` that names the field and says what it takes."""
    store = validate(NewVectorStore, data)
    check_metadata(store.metadata)
    return store, _files(store.file_ids or (), {}, chunking_of(store.chunking_strategy))


def parse_store_changes(data: Mapping[str, object]) -> VectorStoreChanges:
    """Read the body of an update. Raises `ApiError`."""
    body = validate(VectorStoreChanges, data)
    check_metadata(body.metadata)
    return body


def store_columns(body: NewVectorStore | VectorStoreChanges) -> JsonObject:
    """Return the columns of a store that a body names; null clears one."""
    named = body.model_fields_set
    columns = {name: getattr(body, name) or empty for name, empty in _CLEARED.items() if name in named}
    if "expires_after" in named:
        columns["expires_days"] = body.expires_after.days if body.expires_after else None
    return columns


def parse_store_file(data: Mapping[str, object]) -> NewStoreFile:
    """Read the body that puts a file into a store. Raises `ApiError`."""
    file = validate(NewVectorStoreFile, data)
    return NewStoreFile(
        file_id=file.file_id, attributes=file.attributes or {}, chunking=chunking_of(file.chunking_strategy)
    )


def parse_batch(data: Mapping[str, object]) -> Sequence[NewStoreFile]:
    """Read the body that puts several files into a store. Raises `ApiError`."""
    batch = validate(NewVectorStoreBatch, data)
    if batch.file_ids is None and batch.files is None:
        raise missing("file_ids")
    if batch.file_ids is not None and batch.files is not None:
        raise invalid_request("Give 'file_ids' or 'files', not both.", param="files", code="invalid_value")
    if batch.file_ids is not None:
        return _files(batch.file_ids, batch.attributes or {}, chunking_of(batch.chunking_strategy))
    entries = [
        NewStoreFile(
            file_id=file.file_id,
            at=f"files[{index}].file_id",
            attributes=file.attributes or {},
            chunking=chunking_of(file.chunking_strategy, at=f"files[{index}].chunking_strategy"),
        )
        for index, file in enumerate(batch.files or ())
    ]
    # Of a file that is named twice the last entry counts, at the place of the first.
    return list({file.file_id: file for file in entries}.values())


def parse_attributes(data: Mapping[str, object]) -> Mapping[str, Value]:
    """Read the body of an update of a file. Raises `ApiError`."""
    return validate(VectorStoreFileChanges, data).attributes or {}


def parse_search(data: Mapping[str, object]) -> Search:
    """Read the body of a search. Raises `ApiError`."""
    search = validate(VectorStoreSearch, data)
    options = search.ranking_options
    return Search(
        queries=[search.query] if isinstance(search.query, str) else search.query,
        limit=search.max_num_results,
        threshold=(options.score_threshold if options else None) or 0.0,
        matches=None if search.filters is None else Filter(search.filters).matches,
    )


def chunking_of(strategy: Strategy | None, *, at: str = "chunking_strategy") -> Chunking:
    """Return what a request's strategy means; none is `auto`. Raises `ApiError` for too much overlap."""
    if not isinstance(strategy, StaticStrategy):
        return Chunking()
    static = strategy.static
    if static.chunk_overlap_tokens > static.max_chunk_size_tokens // 2:
        param = f"{at}.static.chunk_overlap_tokens"
        raise invalid_value(param, "it is at most half of 'max_chunk_size_tokens'.")
    return Chunking(static.max_chunk_size_tokens, static.chunk_overlap_tokens)


def status_of(query: Query) -> FileStatus | None:
    """Return the status by which files are listed; None for any. Raises `ApiError` for one that files do not have."""
    status = (query.get("filter") or [""])[-1]
    for known in STATUSES:
        if status == known:
            return known
    if status:
        raise invalid_value("filter", f"{status[:80]!r}. Supported values are: {', '.join(map(repr, STATUSES))}.")
    return None


def shown_store(store: CountedStore, *, now: float) -> VectorStore:
    """Return a vector store as clients see it."""
    row, counts, usage_bytes = store
    expires_at = None if row.expires_at is None else unix(row.expires_at)
    expired, days = expires_at is not None and expires_at <= now, row.expires_days
    return {
        "id": row.pk,
        "object": "vector_store",
        "created_at": unix(row.created_at),
        "name": row.name,
        "description": row.description or None,
        "usage_bytes": usage_bytes,
        "file_counts": counts,
        "status": "expired" if expired else "in_progress" if counts["in_progress"] else "completed",
        "expires_after": None if days is None else {"anchor": "last_active_at", "days": days},
        "expires_at": expires_at,
        "last_active_at": unix(row.last_active_at),
        "metadata": row.metadata,
    }


def shown_file(row: "model.VectorStoreFile") -> VectorStoreFile:
    """Return a file of a store as clients see it."""
    return {
        "id": row.file_id,
        "object": "vector_store.file",
        "usage_bytes": row.usage_bytes,
        "created_at": unix(row.created_at),
        "vector_store_id": row.store_id,
        "status": row.status,
        "last_error": {"code": row.error_code, "message": row.error_message} if row.error_code else None,
        "chunking_strategy": {
            "type": "static",
            "static": {"max_chunk_size_tokens": row.chunk_size, "chunk_overlap_tokens": row.chunk_overlap},
        },
        "attributes": row.attributes,
    }


def shown_batch(batch: CountedBatch) -> VectorStoreBatch:
    """Return files that were put into a store together, as clients see them."""
    row, counts = batch
    status: FileStatus = "in_progress" if counts["in_progress"] else "completed"
    if row.cancelled:
        status = "cancelled"
    elif counts["failed"] and counts["failed"] == counts["total"]:
        status = "failed"
    return {
        "id": row.pk,
        "object": "vector_store.files_batch",
        "created_at": unix(row.created_at),
        "vector_store_id": row.store_id,
        "status": status,
        "file_counts": counts,
    }


def search_page(queries: Sequence[str], hits: Sequence[Hit]) -> VectorStoreResults:
    """Return what a search has found: each chunk by itself."""
    data: list[VectorStoreResult] = [
        {
            "file_id": hit.file_id,
            "filename": hit.filename,
            "score": hit.score,
            "attributes": dict(hit.attributes),
            "content": [{"type": "text", "text": hit.text}],
        }
        for hit in hits
    ]
    return {
        "object": "vector_store.search_results.page",
        "search_query": list(queries),
        "data": data,
        "has_more": False,
        "next_page": None,
    }


def content_page(row: "model.VectorStoreFile", chunks: Sequence[str]) -> VectorStoreContent:
    """Return the chunks of a file."""
    return {
        "object": "vector_store.file_content.page",
        "file_id": row.file_id,
        "filename": row.filename,
        "attributes": row.attributes,
        "data": [{"type": "text", "text": chunk} for chunk in chunks],
        "has_more": False,
        "next_page": None,
    }


def store_not_found(store_id: str, *, param: str = "vector_store_id") -> ApiError:
    """There is no such vector store (404)."""
    return not_found(f"Vector store with id '{store_id[:80]}' not found.", param=param)


def store_expired(store_id: str, *, param: str = "vector_store_id") -> ApiError:
    """Nobody has searched it for so long that nothing is left in it (400)."""
    return invalid_request(f"The vector store '{store_id[:80]}' has expired.", param=param, code="vector_store_expired")


def store_file_not_found(store_id: str, file_id: str) -> ApiError:
    """The store has no such file, or not any more (404)."""
    return not_found(f"File with id '{file_id[:80]}' not found in vector store '{store_id[:80]}'.", param="file_id")


def batch_not_found(store_id: str, batch_id: str) -> ApiError:
    """The store has no such batch (404)."""
    return not_found(
        f"File batch with id '{batch_id[:80]}' not found in vector store '{store_id[:80]}'.", param="batch_id"
    )


def stores_full(message: str) -> ApiError:
    """There are as many as there may be (429)."""
    return rate_limited(f"{message}. Delete what is not needed any more.", retry_after=60)


def _files(file_ids: Sequence[str], attributes: Mapping[str, Value], chunking: Chunking) -> Sequence[NewStoreFile]:
    """Return files, each once."""
    # Reversed, so that the first place of each id stays.
    places = {file_id: index for index, file_id in reversed(list(enumerate(file_ids)))}
    return [
        NewStoreFile(file_id=file_id, at=f"file_ids[{places[file_id]}]", attributes=attributes, chunking=chunking)
        for file_id in dict.fromkeys(file_ids)
    ]
