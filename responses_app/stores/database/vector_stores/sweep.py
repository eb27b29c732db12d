"""Removes, in small steps, what clients have deleted, what has expired, and what belongs to nothing any more."""

from collections.abc import Collection
from datetime import timedelta

from django.db import transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Exists, OuterRef

from responses_app.models import StoredFile
from responses_app.models.vector_stores import (
    IN_WORK,
    PENDING,
    REMOVED,
    VectorStore,
    VectorStoreBatch,
    VectorStoreChunk,
    VectorStoreFile,
)
from responses_app.stores.database.vector_stores.rows import time_of

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


def erase_stores(using: str, project: str) -> None:
    """Remove all stores of a project, in small transactions."""
    stores = VectorStore.objects.using(using).filter(project=project)
    while keys := list(stores.values_list("pk", flat=True)[:STORES_AT_ONCE]):
        stores.filter(pk__in=keys).update(removed=True)
        files = VectorStoreFile.objects.using(using).filter(store_id__in=keys)
        while some := list(files.values_list("pk", flat=True)[:FILES_AT_ONCE]):
            with transaction.atomic(using=using):
                files.filter(pk__in=some).update(status=REMOVED)
                _remove_files(using, some)
        with transaction.atomic(using=using):
            remove_stores(using, keys)


def _remove_files(using: str, keys: Collection[int]) -> None:
    chunks = VectorStoreChunk.objects.using(using)
    some = list(chunks.filter(file_id__in=keys).values_list("pk", flat=True)[: CHUNKS_AT_ONCE + 1])
    chunks.filter(pk__in=some[:CHUNKS_AT_ONCE]).delete()
    if len(some) <= CHUNKS_AT_ONCE:
        VectorStoreFile.objects.using(using).filter(pk__in=keys).delete()


def _remove_stores(using: str, store_ids: Collection[str]) -> None:
    files = VectorStoreFile.objects.using(using).filter(store_id__in=store_ids)
    if not files.exclude(status=REMOVED).update(status=REMOVED):
        remove_stores(using, store_ids)


def _let_expire(using: str, *, now: float) -> int:
    """Take the files out of stores that have expired; the stores stay, to say so."""
    filled = VectorStoreFile.objects.using(using).filter(store_id=OuterRef("pk")).exclude(status=REMOVED)
    rows = VectorStore.objects.using(using).filter(Exists(filled), expires_days__isnull=False)
    rows = rows.filter(last_active_at__lte=time_of(now) - timedelta(days=1))  # none expires sooner
    every = rows.values_list("pk", "last_active_at", "expires_days").iterator()
    expired = [pk for pk, active, days in every if active + timedelta(days=days) <= time_of(now)][:STORES_AT_ONCE]
    files = VectorStoreFile.objects.using(using).filter(store_id__in=expired)
    return files.exclude(status=REMOVED).update(status=REMOVED) if expired else 0


def _let_go(using: str) -> int:
    """Take files out of their stores that are not kept as files any more."""
    kept = StoredFile.objects.using(using).filter(pk=OuterRef("file_id"), is_whole=True)
    rows = VectorStoreFile.objects.using(using).exclude(status__in=(REMOVED, PENDING)).filter(~Exists(kept))
    keys = list(rows.values_list("pk", flat=True)[:FILES_AT_ONCE])
    return VectorStoreFile.objects.using(using).filter(pk__in=keys).update(status=REMOVED) if keys else 0
