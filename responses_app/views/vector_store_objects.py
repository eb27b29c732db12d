"""Vector stores, their files and what is found in them, as clients read them."""

from collections.abc import Sequence

from responses_app.protocol.errors import JsonObject
from responses_app.protocol.vector_stores import chunking_object
from responses_app.stores.vector_stores import BatchRecord, FileCounts, Hit, StoreFileRecord, VectorStoreRecord


def store_object(record: VectorStoreRecord, *, now: float) -> JsonObject:
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


def file_object(record: StoreFileRecord) -> JsonObject:
    """Return a file of a store."""
    code, message = record.error or ("", "")
    return {
        "id": record.file_id,
        "object": "vector_store.file",
        "usage_bytes": record.usage_bytes,
        "created_at": record.created_at,
        "vector_store_id": record.store_id,
        "status": record.status,
        "last_error": {"code": code, "message": message} if record.error else None,
        "chunking_strategy": chunking_object(record.chunking),
        "attributes": dict(record.attributes),
    }


def batch_object(record: BatchRecord) -> JsonObject:
    """Return files that were put into a store together."""
    counts = record.counts
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


def search_page(queries: Sequence[str], hits: Sequence[Hit]) -> JsonObject:
    """Return what a search has found: each chunk by itself."""
    data = [
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


def content_page(record: StoreFileRecord, chunks: Sequence[str]) -> JsonObject:
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


def _counts(counts: FileCounts) -> JsonObject:
    return {
        "in_progress": counts.in_progress,
        "completed": counts.completed,
        "failed": counts.failed,
        "cancelled": counts.cancelled,
        "total": counts.total,
    }
