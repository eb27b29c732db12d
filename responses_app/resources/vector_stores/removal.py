"""How what was deleted of vector stores, or has expired, is removed: in small steps, each a transaction."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import Exists, OuterRef, QuerySet

from responses_app.kit.columns import json_text
from responses_app.kit.kept import removes, writes_lines
from responses_app.kit.places import leave
from responses_app.resources.files.model import StoredFile
from responses_app.resources.vector_stores.model import (
    IN_WORK,
    PENDING,
    REMOVED,
    VectorStore,
    VectorStoreBatch,
    VectorStoreChunk,
    VectorStoreFile,
)

# What one transaction removes: together with the index of words, some 10 ms of a SQLite file's one writer.
CHUNKS_AT_ONCE = 200
FILES_AT_ONCE = 200
STORES_AT_ONCE = 20


def hide(files: "QuerySet[VectorStoreFile]") -> int:
    """Let nobody find these files any more, and `sweep` remove them; return how many there were."""
    return files.exclude(status=REMOVED).update(status=REMOVED, leased_until=None)


def sweep(using: str, *, now: datetime) -> bool:
    """Do one step; return whether there was something to do. Where there is not, nothing is locked."""
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
            # First its files are hidden, and the next steps remove them; a step that finds none left removes the store.
            if not hide(rows.filter(store_id__in=gone)):
                _remove_stores(using, gone)
        return True
    return bool(_let_expire(using, now=now) or _let_go(using))


def _remove_stores(using: str, store_ids: Collection[str]) -> None:
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
            _remove_stores(rows.db, ids)
            return
        hide(files.filter(pk__in=some))
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


def _let_expire(using: str, *, now: datetime) -> int:
    """Take the files out of stores that have expired; the stores stay, to say so."""
    filled = VectorStoreFile.objects.using(using).filter(store_id=OuterRef("pk")).exclude(status=REMOVED)
    rows = VectorStore.objects.using(using).filter(Exists(filled), expires_days__isnull=False)
    rows = rows.filter(last_active_at__lte=now - timedelta(days=1))  # none expires sooner
    every = rows.only("last_active_at", "expires_days").iterator()
    expired = [row.pk for row in every if row.expires_at is not None and row.expires_at <= now][:STORES_AT_ONCE]
    return hide(VectorStoreFile.objects.using(using).filter(store_id__in=expired)) if expired else 0


def _let_go(using: str) -> int:
    """Take files out of their stores that are not kept as files any more."""
    kept = StoredFile.objects.using(using).filter(pk=OuterRef("file_id"), is_whole=True)
    # Who reads a pending file finds out by itself that it is gone.
    rows = VectorStoreFile.objects.using(using).exclude(status__in=(REMOVED, PENDING)).filter(~Exists(kept))
    keys = list(rows.values_list("pk", flat=True)[:FILES_AT_ONCE])
    return hide(VectorStoreFile.objects.using(using).filter(pk__in=keys)) if keys else 0
