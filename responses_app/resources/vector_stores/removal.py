"""Rows of vector stores: as records, which of them clients see, and how the others are removed in small steps."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Count, Exists, OuterRef, Q, QuerySet, Sum

from responses_app.kit.clock import unix, utc
from responses_app.kit.columns import json_text
from responses_app.kit.kept import removes, writes_lines
from responses_app.kit.places import leave
from responses_app.models import StoredFile
from responses_app.protocol.files.searches import Chunking
from responses_app.resources.vector_stores.model import (
    IN_WORK,
    PENDING,
    REMOVED,
    VectorStore,
    VectorStoreBatch,
    VectorStoreChunk,
    VectorStoreFile,
)
from responses_app.resources.vector_stores.records import (
    BatchRecord,
    NewStoreFile,
    StoreFileCounts,
    StoreFileRecord,
    VectorStoreRecord,
)


def kept_stores(using: str, project: str, *, since: float) -> "QuerySet[VectorStore]":
    """Return a project's stores that were made after `since` (Unix seconds; below 0 for all)."""
    rows = VectorStore.objects.using(using).filter(project=project, removed=False)
    return rows if since < 0 else rows.filter(created_at__gt=utc(since))


def kept_files(using: str, project: str, store_id: str, *, now: float, since: float) -> "QuerySet[VectorStoreFile]":
    """Return the files of a store, as long as they are kept as files too; all are younger than `since`."""
    rows = VectorStoreFile.objects.using(using).filter(store_id=store_id, store__project=project, store__removed=False)
    rows = rows if since < 0 else rows.filter(store__created_at__gt=utc(since))
    return rows.exclude(status=REMOVED).filter(Exists(_sources(project, now, since)))


def _sources(project: str, now: float, since: float) -> "QuerySet[StoredFile]":
    unexpired = Q(expires_at=None) | Q(expires_at__gt=utc(now))
    rows = StoredFile.objects.filter(unexpired, pk=OuterRef("file_id"), project=project, is_whole=True)
    return rows if since < 0 else rows.filter(created_at__gt=utc(since))


def counts_of(rows: "QuerySet[VectorStoreFile]") -> tuple[StoreFileCounts, int]:
    """Return how many files have which status, and the bytes of all."""
    by_status = list(rows.order_by().values_list("status").annotate(Count("pk"), Sum("usage_bytes")))
    counts: Mapping[str, int] = {status: count for status, count, _ in by_status}
    # Statuses have the names of the fields.
    return StoreFileCounts(**counts), sum(size or 0 for _, _, size in by_status)


def store_record(row: VectorStore, counted: tuple[StoreFileCounts, int]) -> VectorStoreRecord:
    """Return a store."""
    counts, size = counted
    return VectorStoreRecord(
        id=row.pk,
        name=row.name,
        description=row.description,
        metadata=row.metadata,
        created_at=unix(row.created_at),
        last_active_at=unix(row.last_active_at),
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
        created_at=unix(row.created_at),
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
        created_at=unix(row.created_at),
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


# What one transaction removes: together with the index of words, some 10 ms of a SQLite file's one writer.
CHUNKS_AT_ONCE = 200
FILES_AT_ONCE = 200
STORES_AT_ONCE = 20


def sweep(connection: BaseDatabaseWrapper, *, now: float) -> bool:
    """Do one step; return whether there was something to do. Where there is not, nothing is locked."""
    using = connection.alias
    rows = VectorStoreFile.objects.using(using)
    # The second condition is that of the index.
    keys = list(rows.filter(status=REMOVED, status__in=IN_WORK).values_list("pk", flat=True)[:FILES_AT_ONCE])
    if keys:
        with transaction.atomic(using=using):
            _remove_files(using, keys)
        return True
    stores = VectorStore.objects.using(using)
    gone = list(stores.filter(removed=True).values_list("pk", flat=True)[:STORES_AT_ONCE])
    if gone:
        with transaction.atomic(using=using):
            _remove_stores(using, gone)
        return True
    return bool(_let_expire(using, now=now) or _let_go(using))


def remove_stores(using: str, store_ids: Collection[str]) -> None:
    """Remove stores at once, with all that is in them; in one transaction, where the caller has one."""
    for model in (VectorStoreChunk, VectorStoreFile, VectorStoreBatch):
        model.objects.using(using).filter(store_id__in=store_ids).delete()
    VectorStore.objects.using(using).filter(pk__in=store_ids).delete()


@removes(VectorStore)
def _remove_some_of(rows: "QuerySet[VectorStore]", ids: Sequence[str]) -> None:
    rows.update(removed=True)  # nobody finds it any more
    files = VectorStoreFile.objects.using(rows.db).filter(store_id__in=ids)
    some = list(files.values_list("pk", flat=True)[:FILES_AT_ONCE])
    with transaction.atomic(using=rows.db):
        if not some:
            remove_stores(rows.db, ids)
            return
        files.filter(pk__in=some).update(status=REMOVED)
        _remove_files(rows.db, some)


@writes_lines(VectorStore)
def _lines(row: VectorStore, head: Mapping[str, Any], using: str) -> Iterator[str]:
    files = VectorStoreFile.objects.using(using).filter(store=row).values("file_id", "attributes")
    yield json_text({**head, "files": list(files)})


def _remove_files(using: str, keys: Collection[int]) -> None:
    chunks = VectorStoreChunk.objects.using(using)
    some = list(chunks.filter(file_id__in=keys).values_list("pk", flat=True)[: CHUNKS_AT_ONCE + 1])
    chunks.filter(pk__in=some[:CHUNKS_AT_ONCE]).delete()
    # The files' rows go with their last chunks.
    if len(some) <= CHUNKS_AT_ONCE:
        files = VectorStoreFile.objects.using(using).filter(pk__in=keys)
        _leave_places(using, files.filter(store__removed=False))
        files.delete()


def _leave_places(using: str, files: "QuerySet[VectorStoreFile]") -> None:
    stores: dict[tuple[str, str], dict[str, int]] = {}
    for project, store_id, file_id, key in files.order_by("pk").values_list(
        "store__project", "store_id", "file_id", "pk"
    ):
        stores.setdefault((project, store_id), {})[file_id] = key
    for (project, store_id), places in sorted(stores.items()):
        leave(using, project, store_id, places, at=datetime.now(UTC))


def _remove_stores(using: str, store_ids: Collection[str]) -> None:
    files = VectorStoreFile.objects.using(using).filter(store_id__in=store_ids)
    # First its files are hidden, and the next steps remove them; a step that finds none left removes the store.
    if not files.exclude(status=REMOVED).update(status=REMOVED):
        remove_stores(using, store_ids)


def _let_expire(using: str, *, now: float) -> int:
    """Take the files out of stores that have expired; the stores stay, to say so."""
    filled = VectorStoreFile.objects.using(using).filter(store_id=OuterRef("pk")).exclude(status=REMOVED)
    rows = VectorStore.objects.using(using).filter(Exists(filled), expires_days__isnull=False)
    rows = rows.filter(last_active_at__lte=utc(now) - timedelta(days=1))  # none expires sooner
    every = rows.values_list("pk", "last_active_at", "expires_days").iterator()
    expired = [pk for pk, active, days in every if active + timedelta(days=days) <= utc(now)][:STORES_AT_ONCE]
    files = VectorStoreFile.objects.using(using).filter(store_id__in=expired)
    return files.exclude(status=REMOVED).update(status=REMOVED) if expired else 0


def _let_go(using: str) -> int:
    """Take files out of their stores that are not kept as files any more."""
    kept = StoredFile.objects.using(using).filter(pk=OuterRef("file_id"), is_whole=True)
    # Who reads a pending file finds out by itself that it is gone.
    rows = VectorStoreFile.objects.using(using).exclude(status__in=(REMOVED, PENDING)).filter(~Exists(kept))
    keys = list(rows.values_list("pk", flat=True)[:FILES_AT_ONCE])
    return VectorStoreFile.objects.using(using).filter(pk__in=keys).update(status=REMOVED) if keys else 0
