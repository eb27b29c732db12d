"""Rows of vector stores as records, and which rows clients see."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

from django.db.models import Count, Exists, OuterRef, Q, QuerySet, Sum

from responses_app.models import StoredFile
from responses_app.models.vector_stores import REMOVED, VectorStore, VectorStoreBatch, VectorStoreFile
from responses_app.protocol.files.chunking import Chunking
from responses_app.stores.vector_stores import (
    BatchRecord,
    FileCounts,
    NewStoreFile,
    StoreFileRecord,
    VectorStoreRecord,
)


def time_of(seconds: float) -> datetime:
    """Return a time in Unix seconds as columns have it."""
    return datetime.fromtimestamp(seconds, UTC)


def kept_stores(using: str, project: str) -> "QuerySet[VectorStore]":
    """Return a project's stores."""
    return VectorStore.objects.using(using).filter(project=project, removed=False)


def kept_files(using: str, project: str, store_id: str, *, now: float) -> "QuerySet[VectorStoreFile]":
    """Return the files of a store, as long as they are kept as files too."""
    rows = VectorStoreFile.objects.using(using).filter(store_id=store_id, store__project=project, store__removed=False)
    return rows.exclude(status=REMOVED).filter(Exists(_sources(project, now)))


def _sources(project: str, now: float) -> "QuerySet[StoredFile]":
    unexpired = Q(expires_at=None) | Q(expires_at__gt=time_of(now))
    return StoredFile.objects.filter(unexpired, pk=OuterRef("file_id"), project=project, is_whole=True)


def counts_of(rows: "QuerySet[VectorStoreFile]") -> tuple[FileCounts, int]:
    """Return how many files have which status, and the bytes of all."""
    found = list(rows.order_by().values_list("status").annotate(Count("pk"), Sum("usage_bytes")))
    counts: Mapping[str, int] = {status: count for status, count, _ in found}
    return FileCounts(**counts), sum(size or 0 for _, _, size in found)


def store_record(row: VectorStore, counted: tuple[FileCounts, int]) -> VectorStoreRecord:
    """Return a store."""
    counts, size = counted
    return VectorStoreRecord(
        id=row.pk,
        name=row.name,
        description=row.description,
        metadata=row.metadata,
        created_at=int(row.created_at.timestamp()),
        last_active_at=int(row.last_active_at.timestamp()),
        expires_days=row.expires_days,
        counts=counts,
        usage_bytes=size,
    )


def file_record(row: VectorStoreFile) -> StoreFileRecord:
    """Return a file of a store."""
    return StoreFileRecord(
        store_id=row.store_id,
        file_id=row.file_id,
        filename=row.filename,
        created_at=int(row.created_at.timestamp()),
        status=row.status,
        attributes=row.attributes,
        chunking=Chunking(row.chunk_size, row.chunk_overlap),
        usage_bytes=row.usage_bytes,
        error=(row.error_code, row.error_message) if row.error_code else None,
    )


def batch_record(row: VectorStoreBatch, files: "QuerySet[VectorStoreFile]") -> BatchRecord:
    """Return a batch."""
    return BatchRecord(
        id=row.pk,
        store_id=row.store_id,
        created_at=int(row.created_at.timestamp()),
        cancelled=row.cancelled,
        counts=counts_of(files.filter(batch_id=row.pk))[0],
    )


def file_rows(store_id: str, files: Iterable[NewStoreFile], *, batch_id: str, at: datetime) -> "list[VectorStoreFile]":
    """Return the rows of files that are put into a store."""
    return [
        VectorStoreFile(
            store_id=store_id,
            file_id=file.file_id,
            batch_id=batch_id,
            filename=file.filename,
            created_at=at,
            attributes=dict(file.attributes),
            chunk_size=file.chunking.size,
            chunk_overlap=file.chunking.overlap,
        )
        for file in files
    ]
