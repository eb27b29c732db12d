"""`KeptVectors`: which files lack vectors, who makes them, and how they are kept: a part of `DatabaseVectorStores`.

A file is leased, and its chunks are embedded in the order of their positions, some at a time. What has been kept stays:
whoever leases the file next goes on behind it. Every step looks whether the lease still holds, so of two workers only
one keeps anything, and nothing is kept of a file that was deleted meanwhile.
"""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import cached_property
from typing import TypeVar

from django.db import transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Q, QuerySet, Sum

from responses_app.kit.clock import utc
from responses_app.kit.table import Store, can_be_known
from responses_app.resources.vector_stores.model import (
    COMPLETED,
    VectorStoreChunk,
    VectorStoreCodes,
    VectorStoreFile,
    VectorStoreVector,
)
from responses_app.resources.vector_stores.nearest import KeptCodes, packed, packed_keys
from responses_app.resources.vector_stores.records import PendingVectors
from responses_app.resources.vector_stores.settings import VectorStoreSettings

Result = TypeVar("Result")

CODES_AT_ONCE = 20  # rows of another model's that one transaction removes, with the vectors of their chunks


class KeptVectors(Store[VectorStoreSettings]):
    """The vectors of chunks, in the database `using`."""

    # Two threads may make one each, the first time: then the one that is kept has nothing yet.
    @cached_property
    def _codes(self) -> KeptCodes:
        return KeptCodes(self._settings.file_search_cache_bytes)

    async def _write(self, act: Callable[[], Result], *ids: str) -> Result | None:
        """Do something in a transaction, on a thread; nothing, and return None, where nobody made one of the ids."""

        def within_transaction(connection: BaseDatabaseWrapper) -> Result:
            with transaction.atomic(using=connection.alias):
                return act()

        return await self._threads.run(within_transaction) if all(map(can_be_known, ids)) else None

    def _time(self) -> datetime:
        return utc(self._now())

    async def claim_vectors(
        self, worker: str, model: str, *, lease_seconds: float, after: str = ""
    ) -> PendingVectors | None:
        """Return a file that has been read and lacks vectors of this model, for so long; None for nothing.

        Those of other models are gone then. Projects take turns, as with `claim`.
        """

        def act() -> VectorStoreFile | None:
            lacking = self._lacking(worker, model).select_for_update(skip_locked=True, of=("self",))
            free = lacking.select_related("store").order_by("store__project", "pk")
            # The next project in the order of names, or from the beginning again.
            row = free.filter(store__project__gt=after).first() or free.first()
            if row is None:
                return None
            # What another model has made goes, so that it would not be whole if that model came back.
            row.embedded_by, row.embedding_worker = "", worker
            row.embedding_until = self._time() + timedelta(seconds=lease_seconds)
            row.save(using=self._using, update_fields=["embedded_by", "embedding_worker", "embedding_until"])
            return row

        # Nearly always there is nothing: then nothing is locked.
        if not await self._threads.run(lambda _: self._lacking(worker, model).exists()):
            return None
        row = await self._write(act)
        if row is None:
            return None
        while await self._write(lambda: self._drop_others(row.pk, worker, model)):
            pass
        return PendingVectors(
            key=row.pk,
            project=row.store.project,
            store_id=row.store_id,
            file_id=row.file_id,
            model=model,
            start=await self._threads.run(lambda _: self._next(row.pk)),
            worker=worker,
        )

    async def chunks_of(self, pending: PendingVectors, start: int, limit: int) -> Sequence[tuple[int, str]]:
        """Return the keys and texts of some of a file's chunks, from the position `start` on."""

        def act() -> Sequence[tuple[int, str]]:
            chunks = VectorStoreChunk.objects.using(self._using).filter(file_id=pending.key, position__gte=start)
            return list(chunks.order_by("position").values_list("pk", "text")[:limit])

        return await self._threads.run(lambda _: act())

    async def keep_vectors(
        self,
        pending: PendingVectors,
        start: int,
        keys: Sequence[int],
        vectors: Sequence[Sequence[float]],
        *,
        lease_seconds: float,
    ) -> bool:
        """Keep the vectors of chunks, which are found by them from now on, and lease the file for so long again.

        False where the file is gone, or another worker's.
        """

        def act() -> bool:
            row = self._leased(pending).select_for_update(of=("self",)).first()
            if row is None:
                return False
            # An earlier attempt at this very step may have been committed.
            self._drop(VectorStoreCodes.objects.using(self._using).filter(file_id=row.pk, start=start))
            codes, numbers = packed(vectors)
            VectorStoreCodes.objects.using(self._using).create(
                store_id=row.store_id,
                file_id=row.pk,
                model=pending.model,
                start=start,
                count=len(keys),
                keys=packed_keys(keys),
                codes=codes,
            )
            VectorStoreVector.objects.using(self._using).bulk_create(
                VectorStoreVector(chunk_id=key, vector=vector) for key, vector in zip(keys, numbers, strict=True)
            )
            self._leased(pending).update(embedding_until=self._time() + timedelta(seconds=lease_seconds))
            return True

        return bool(await self._write(act))

    async def end_vectors(self, pending: PendingVectors, *, whole: bool) -> None:
        """Let go of a file: `whole` where every chunk has its vector; else another worker goes on at once."""
        changes = {"embedded_by": pending.model} if whole else {}
        await self._write(lambda: self._leased(pending).update(embedding_worker="", embedding_until=None, **changes))

    # What follows runs on a thread.

    def _lacking(self, worker: str, model: str) -> "QuerySet[VectorStoreFile]":
        """Return the files that have been read and lack vectors, and that no other worker has leased."""
        rows = VectorStoreFile.objects.using(self._using).filter(status=COMPLETED, store__removed=False)
        # Not `exclude`: both parts use the index, in which nothing is found where nothing is to be done.
        rows = rows.filter(Q(embedded_by__lt=model) | Q(embedded_by__gt=model))
        free = Q(embedding_until=None) | Q(embedding_until__lte=self._time()) | Q(embedding_worker=worker)
        return rows.filter(free)

    def _leased(self, pending: PendingVectors) -> "QuerySet[VectorStoreFile]":
        rows = VectorStoreFile.objects.using(self._using).filter(pk=pending.key, status=COMPLETED)
        return rows.filter(embedding_worker=pending.worker)

    def _next(self, key: int) -> int:
        kept = VectorStoreCodes.objects.using(self._using).filter(file_id=key)
        return int(kept.aggregate(every=Sum("count"))["every"] or 0)

    def _drop_others(self, key: int, worker: str, model: str) -> bool:
        """Remove some of what other models have made of a file; return whether there may be more."""
        own = VectorStoreFile.objects.using(self._using).filter(pk=key, embedding_worker=worker)
        if not own.select_for_update().exists():
            return False
        others = VectorStoreCodes.objects.using(self._using).filter(file_id=key).exclude(model=model)
        some = list(others.order_by("start").values_list("pk", flat=True)[:CODES_AT_ONCE])
        return self._drop(VectorStoreCodes.objects.using(self._using).filter(pk__in=some))

    def _drop(self, rows: "QuerySet[VectorStoreCodes]") -> bool:
        """Remove codes, and the vectors of their chunks; return whether there were any."""
        found = list(rows.values_list("pk", "file_id", "start", "count"))
        for _, file_id, start, count in found:
            chunks = VectorStoreChunk.objects.using(self._using).filter(file_id=file_id)
            chunks = chunks.filter(position__range=(start, start + count - 1))
            VectorStoreVector.objects.using(self._using).filter(chunk_id__in=chunks.values("pk")).delete()
        VectorStoreCodes.objects.using(self._using).filter(pk__in=[pk for pk, *_ in found]).delete()
        return bool(found)
