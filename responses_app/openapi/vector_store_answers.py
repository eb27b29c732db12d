"""What the Vector Stores API answers with, as types."""

from typing import Literal

from pydantic import BaseModel


class FileCounts(BaseModel):
    """How many files have which status."""

    in_progress: int
    completed: int
    failed: int
    cancelled: int
    total: int


class VectorStoreExpiry(BaseModel):
    """How long nobody may search a store before it expires."""

    anchor: Literal["last_active_at"]
    days: int


class VectorStore(BaseModel):
    """Files that are searched together."""

    id: str
    object: Literal["vector_store"]
    created_at: int
    name: str
    description: str | None
    usage_bytes: int
    file_counts: FileCounts
    status: Literal["expired", "in_progress", "completed"]
    expires_after: VectorStoreExpiry | None
    expires_at: int | None
    last_active_at: int
    metadata: dict[str, str]


class ChunkSizes(BaseModel):
    """The size of chunks and what they share, in tokens."""

    max_chunk_size_tokens: int
    chunk_overlap_tokens: int


class ChunkingStrategy(BaseModel):
    """How a file is cut."""

    type: Literal["static"]
    static: ChunkSizes


class LastError(BaseModel):
    """Why a file could not be read."""

    code: Literal["server_error", "unsupported_file", "invalid_file"]
    message: str


class VectorStoreFile(BaseModel):
    """A file in a vector store; `usage_bytes` are those of its chunks."""

    id: str
    object: Literal["vector_store.file"]
    usage_bytes: int
    created_at: int
    vector_store_id: str
    status: Literal["in_progress", "completed", "cancelled", "failed"]
    last_error: LastError | None
    chunking_strategy: ChunkingStrategy
    attributes: dict[str, str | bool | int | float]


class VectorStoreBatch(BaseModel):
    """Files that were put into a store together."""

    id: str
    object: Literal["vector_store.files_batch"]
    created_at: int
    vector_store_id: str
    status: Literal["in_progress", "completed", "cancelled", "failed"]
    file_counts: FileCounts


class FoundText(BaseModel):
    """A chunk of a file."""

    type: Literal["text"]
    text: str


class VectorStoreResult(BaseModel):
    """A chunk that was found; `score` is from 0 to 1."""

    file_id: str
    filename: str
    score: float
    attributes: dict[str, str | bool | int | float]
    content: list[FoundText]


class VectorStoreResults(BaseModel):
    """What a search has found, the best first."""

    object: Literal["vector_store.search_results.page"]
    search_query: list[str]
    data: list[VectorStoreResult]
    has_more: bool
    next_page: str | None


class VectorStoreContent(BaseModel):
    """The text of a file, as it is searched."""

    object: Literal["vector_store.file_content.page"]
    file_id: str
    filename: str
    attributes: dict[str, str | bool | int | float]
    data: list[FoundText]
    has_more: bool
    next_page: str | None


class VectorStoreList(BaseModel):
    """A part of a list of vector stores. The ids of an empty one are empty texts."""

    object: Literal["list"]
    data: list[VectorStore]
    first_id: str
    last_id: str
    has_more: bool


class VectorStoreFileList(BaseModel):
    """A part of a list of files in a store. The ids of an empty one are empty texts."""

    object: Literal["list"]
    data: list[VectorStoreFile]
    first_id: str
    last_id: str
    has_more: bool


class DeletedVectorStore(BaseModel):
    """A store is gone, or a file is no longer in one."""

    id: str
    object: Literal["vector_store.deleted", "vector_store.file.deleted"]
    deleted: Literal[True]


VECTOR_STORES = (
    *(VectorStore, VectorStoreFile, VectorStoreBatch, VectorStoreResults, VectorStoreContent),
    *(VectorStoreList, VectorStoreFileList, DeletedVectorStore),
)
