"""Vector stores, their files and what is found in them, as clients read them."""

from collections.abc import Sequence
from typing import Literal

from typing_extensions import TypedDict

from responses_app.protocol.files.vector_stores import FileStatus
from responses_app.stores.vector_stores import BatchRecord, Hit, StoreFileCounts, StoreFileRecord, VectorStoreRecord


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


def store_object(record: VectorStoreRecord, *, now: float) -> VectorStore:
    """Return a vector store."""
    expired = record.expires_at is not None and record.expires_at <= now
    busy = record.counts.in_progress > 0
    days = record.expires_days
    return {
        "id": record.id,
        "object": "vector_store",
        "created_at": record.created_at,
        "name": record.name,
        "description": record.description or None,
        "usage_bytes": record.usage_bytes,
        "file_counts": _counts(record.counts),
        "status": "expired" if expired else "in_progress" if busy else "completed",
        "expires_after": None if days is None else {"anchor": "last_active_at", "days": days},
        "expires_at": record.expires_at,
        "last_active_at": record.last_active_at,
        "metadata": dict(record.metadata),
    }


def file_object(record: StoreFileRecord) -> VectorStoreFile:
    """Return a file of a store."""
    error, chunking = record.error, record.chunking
    return {
        "id": record.file_id,
        "object": "vector_store.file",
        "usage_bytes": record.usage_bytes,
        "created_at": record.created_at,
        "vector_store_id": record.store_id,
        "status": record.status,
        "last_error": None if error is None else {"code": error[0], "message": error[1]},
        "chunking_strategy": {
            "type": "static",
            "static": {"max_chunk_size_tokens": chunking.size, "chunk_overlap_tokens": chunking.overlap},
        },
        "attributes": dict(record.attributes),
    }


def batch_object(record: BatchRecord) -> VectorStoreBatch:
    """Return files that were put into a store together."""
    counts = record.counts
    status: FileStatus
    if record.cancelled:
        status = "cancelled"
    elif counts.in_progress:
        status = "in_progress"
    else:
        status = "failed" if counts.failed and counts.failed == counts.total else "completed"
    return {
        "id": record.id,
        "object": "vector_store.files_batch",
        "created_at": record.created_at,
        "vector_store_id": record.store_id,
        "status": status,
        "file_counts": _counts(counts),
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


def content_page(record: StoreFileRecord, chunks: Sequence[str]) -> VectorStoreContent:
    """Return the chunks of a file."""
    return {
        "object": "vector_store.file_content.page",
        "file_id": record.file_id,
        "filename": record.filename,
        "attributes": dict(record.attributes),
        "data": [{"type": "text", "text": chunk} for chunk in chunks],
        "has_more": False,
        "next_page": None,
    }


def _counts(counts: StoreFileCounts) -> FileCounts:
    return {
        "in_progress": counts.in_progress,
        "completed": counts.completed,
        "failed": counts.failed,
        "cancelled": counts.cancelled,
        "total": counts.total,
    }
