"""`FileWork`: the work on files of vector stores, which workers share: to read them, and to embed their chunks.

A file is leased for a while. Where its worker dies another one takes it then, and projects take turns: whoever claims
names the project whose file he had last. Every step looks whether the lease still holds, so of two workers only one
keeps anything, and nothing is kept of a file that was deleted meanwhile.

To read a file begins anew each time. Its chunks are inserted a few at a time, since a SQLite file has one writer at a
time, and found once the file is `completed`. Then they are embedded in the order of their positions, some at a time.
What has been kept of that stays: whoever leases the file next goes on behind it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from django.db.models import F, Model, Q, QuerySet, Sum

from responses_app.kit.table import Table, reads, writes
from responses_app.kit.threads import any_of
from responses_app.resources.vector_stores.model import (
    COMPLETED,
    PENDING,
    VectorStore,
    VectorStoreChunk,
    VectorStoreCodes,
    VectorStoreFile,
    VectorStoreVector,
)
from responses_app.resources.vector_stores.nearest import KeptCodes, packed, packed_keys
from responses_app.resources.vector_stores.search import insert_words
from responses_app.resources.vector_stores.settings import VectorStoreSettings
from responses_app.resources.webhooks.messages import event_of, message
from responses_app.resources.webhooks.outbox import Told, tell

Row = TypeVar("Row", bound=Model)

MAX_TRIES = 3  # to read a file: after that, it is the file that ends workers
GAVE_UP = ("server_error", f"The server stopped {MAX_TRIES} times while it read the file.")
CHUNKS_AT_ONCE = 64  # that one transaction inserts
CODES_AT_ONCE = 20  # rows of another model's that one transaction removes, with the vectors of their chunks
_ANY_PENDING = any_of(f"{VectorStoreFile._meta.db_table} WHERE status = '{PENDING}'")


@dataclass(frozen=True, slots=True)
class FileToRead:
    """A file that a worker is to read."""

    row: VectorStoreFile  # with its store; it names the worker
    room: int  # chunks that the store still takes


@dataclass(frozen=True, slots=True)
class FileToEmbed:
    """A file whose chunks a worker is to embed."""

    row: VectorStoreFile  # with its store; it names the worker
    model: str  # whose vectors it is to have, with their length
    start: int  # the first position without one


class FileWork(Table[VectorStore, VectorStoreSettings]):
    """The work on files. Every method raises `StoreError`."""

    model = VectorStore

    # Two threads may make one each, the first time: then the one that is kept has nothing yet.
    @cached_property
    def _codes(self) -> KeptCodes:
        return KeptCodes(self._settings.file_search_cache_bytes)

    def _all(self, model: type[Row]) -> "QuerySet[Row]":
        return model._default_manager.using(self._using)

    async def claim(self, worker: str, *, lease_seconds: float, after: str = "") -> FileToRead | None:
        """Return a file that is to be read, for so long; what it had is gone. None for nothing.

        It is the oldest of one project: of the one that follows `after`, so that projects take turns.
        """
        if not await self._polls.poll(_ANY_PENDING):  # nearly always
            return None
        while await self._threads.run(lambda _: self._unread(worker).exists()):  # nothing is locked
            row = await self._lease(worker, lease_seconds, after)
            if row is None:
                return None
            if row.status == PENDING:
                # What a worker before has inserted: its chunks may have been cut otherwise.
                await self._drop_chunks(row)
                return FileToRead(row, await self._room(row.store_id))
        return None

    @writes
    def _lease(self, worker: str, seconds: float, after: str) -> VectorStoreFile | None:
        """Lease a file, or note that it has failed; None for nothing."""
        row = self._next_of(self._unread(worker), after)
        if row is None:
            return None
        row.worker, row.attempts, row.leased_until = worker, row.attempts + 1, self._at(seconds)
        # Counted when it is claimed: a worker that the file kills cannot count any more.
        if row.attempts > MAX_TRIES:
            row.status, (row.error_code, row.error_message) = "failed", GAVE_UP
            self._tell(row, "failed")
        row.save(using=self._using)
        return row

    @reads
    def _room(self, store_id: str) -> int:
        """Return how many chunks a store still takes; without a limit, more than any file has."""
        most = self._settings.vector_store_max_chunks
        return max(0, most - self._all(VectorStoreChunk).filter(store_id=store_id).count()) if most else 2**31

    async def keep(self, file: FileToRead, chunks: Sequence[str]) -> bool:
        """Keep the chunks of a file, which is then found; False where it is nobody's any more, or another worker's."""
        for start in range(0, len(chunks), CHUNKS_AT_ONCE):
            if not await self._insert(file.row, start, chunks[start : start + CHUNKS_AT_ONCE]):
                return False
        # In UTF-8, as the database has them.
        return await self._end(file.row, status="completed", usage_bytes=sum(len(chunk.encode()) for chunk in chunks))

    @writes
    def _insert(self, file: VectorStoreFile, start: int, texts: Sequence[str]) -> bool:
        if self._being_read(file).filter(store__removed=False).select_for_update(of=("self",)).first() is None:
            return False
        chunks = self._all(VectorStoreChunk)
        # An earlier attempt at this very step may have been committed.
        chunks.filter(file_id=file.pk, position__range=(start, start + len(texts) - 1)).delete()
        rows = chunks.bulk_create(
            VectorStoreChunk(store_id=file.store_id, file_id=file.pk, position=start + place, text=text)
            for place, text in enumerate(texts)
        )
        insert_words(self._db, rows)
        return True

    async def fail(self, file: FileToRead, code: str, message: str) -> None:
        """Note that a file cannot be read, and why."""
        await self._drop_chunks(file.row)
        await self._end(file.row, status="failed", error_code=code, error_message=message)

    async def release(self, file: FileToRead) -> None:
        """Leave a file that was not read to the worker that looks first."""
        # A stop is not the file's fault, so the attempt does not count.
        await self._end(file.row, attempts=F("attempts") - 1)

    @writes
    def _end(self, file: VectorStoreFile, **changes: object) -> bool:
        ended = bool(self._being_read(file).update(leased_until=None, worker="", **changes))
        if ended and "status" in changes:
            self._tell(file, str(changes["status"]))
        return ended

    async def _drop_chunks(self, file: VectorStoreFile) -> None:
        while await self._drop_some_chunks(file):
            pass

    @writes
    def _drop_some_chunks(self, file: VectorStoreFile) -> int:
        chunks = self._all(VectorStoreChunk)
        some = list(chunks.filter(file_id=file.pk).values_list("pk", flat=True)[:CHUNKS_AT_ONCE])
        return int(chunks.filter(pk__in=some).delete()[0])

    async def claim_vectors(
        self, worker: str, model: str, *, lease_seconds: float, after: str = ""
    ) -> FileToEmbed | None:
        """Return a file that has been read and lacks vectors of this model, for so long; None for nothing.

        Those of other models are gone then. Projects take turns, as with `claim`.
        """
        # Nearly always there is nothing: then nothing is locked.
        if not await self._threads.run(lambda _: self._lacking(worker, model).exists()):
            return None
        row = await self._lease_to_embed(worker, model, lease_seconds, after)
        if row is None:
            return None
        while await self._drop_others(row, model):
            pass
        return FileToEmbed(row, model, await self._embedded_of(row))

    @writes
    def _lease_to_embed(self, worker: str, model: str, seconds: float, after: str) -> VectorStoreFile | None:
        row = self._next_of(self._lacking(worker, model), after)
        if row is not None:
            # What another model has made goes, so that it would not be whole if that model came back.
            row.embedded_by, row.embedding_worker, row.embedding_until = "", worker, self._at(seconds)
            row.save(using=self._using, update_fields=["embedded_by", "embedding_worker", "embedding_until"])
        return row

    @writes
    def _drop_others(self, file: VectorStoreFile, model: str) -> bool:
        """Remove some of what other models have made of a file; return whether there may be more."""
        own = self._all(VectorStoreFile).filter(pk=file.pk, embedding_worker=file.embedding_worker)
        if not own.select_for_update().exists():
            return False
        others = self._all(VectorStoreCodes).filter(file_id=file.pk).exclude(model=model)
        some = list(others.order_by("start").values_list("pk", flat=True)[:CODES_AT_ONCE])
        return self._drop(self._all(VectorStoreCodes).filter(pk__in=some))

    @reads
    def _embedded_of(self, file: VectorStoreFile) -> int:
        """Return how many chunks of a file have vectors."""
        kept = self._all(VectorStoreCodes).filter(file_id=file.pk)
        return int(kept.aggregate(every=Sum("count"))["every"] or 0)

    @reads
    def chunks_of(self, file: FileToEmbed, start: int, limit: int) -> Sequence[tuple[int, str]]:
        """Return the keys and texts of some of a file's chunks, from the position `start` on."""
        chunks = self._all(VectorStoreChunk).filter(file_id=file.row.pk, position__gte=start)
        return list(chunks.order_by("position").values_list("pk", "text")[:limit])

    @writes
    def keep_vectors(
        self, file: FileToEmbed, start: int, vectors: Sequence[tuple[int, Sequence[float]]], *, lease_seconds: float
    ) -> bool:
        """Keep the vectors of chunks, by their keys, and lease the file for so long again: they are found from now on.

        False where the file is gone, or another worker's.
        """
        row = self._being_embedded(file).select_for_update(of=("self",)).first()
        if row is None:
            return False
        # An earlier attempt at this very step may have been committed.
        self._drop(self._all(VectorStoreCodes).filter(file_id=row.pk, start=start))
        keys = [key for key, _ in vectors]
        codes, numbers = packed([vector for _, vector in vectors])
        self._all(VectorStoreCodes).create(
            store_id=row.store_id,
            file_id=row.pk,
            model=file.model,
            start=start,
            count=len(keys),
            keys=packed_keys(keys),
            codes=codes,
        )
        self._all(VectorStoreVector).bulk_create(
            VectorStoreVector(chunk_id=key, vector=vector) for key, vector in zip(keys, numbers, strict=True)
        )
        self._being_embedded(file).update(embedding_until=self._at(lease_seconds))
        return True

    @writes
    def end_vectors(self, file: FileToEmbed, *, whole: bool) -> None:
        """Let go of a file: `whole` where every chunk has its vector; else another worker goes on at once."""
        changes = {"embedded_by": file.model} if whole else {}
        self._being_embedded(file).update(embedding_worker="", embedding_until=None, **changes)

    # What follows runs on a thread.

    def _unread(self, worker: str) -> "QuerySet[VectorStoreFile]":
        """Return the files that are to be read, and that no other worker has leased."""
        free = Q(leased_until=None) | Q(leased_until__lte=self._at()) | Q(worker=worker)
        return self._all(VectorStoreFile).filter(free, status=PENDING)

    def _lacking(self, worker: str, model: str) -> "QuerySet[VectorStoreFile]":
        """Return the files that have been read and lack vectors, and that no other worker has leased."""
        # Not `exclude`: both parts use the index, in which nothing is found where nothing is to be done.
        lacks = Q(embedded_by__lt=model) | Q(embedded_by__gt=model)
        free = Q(embedding_until=None) | Q(embedding_until__lte=self._at()) | Q(embedding_worker=worker)
        return self._all(VectorStoreFile).filter(lacks, free, status=COMPLETED, store__removed=False)

    def _next_of(self, files: "QuerySet[VectorStoreFile]", after: str) -> VectorStoreFile | None:
        """Return the oldest file of the next project in the order of names, or from the beginning again."""
        locked = files.select_for_update(skip_locked=True, of=("self",)).select_related("store")
        ordered = locked.order_by("store__project", "pk")
        return ordered.filter(store__project__gt=after).first() or ordered.first()

    def _being_read(self, file: VectorStoreFile) -> "QuerySet[VectorStoreFile]":
        return self._all(VectorStoreFile).filter(pk=file.pk, status=PENDING, worker=file.worker)

    def _being_embedded(self, file: FileToEmbed) -> "QuerySet[VectorStoreFile]":
        rows = self._all(VectorStoreFile).filter(pk=file.row.pk, status=COMPLETED)
        return rows.filter(embedding_worker=file.row.embedding_worker)

    def _drop(self, rows: "QuerySet[VectorStoreCodes]") -> bool:
        """Remove codes, and the vectors of their chunks; return whether there were any."""
        found = list(rows.values_list("pk", "file_id", "start", "count"))
        for _, file_id, start, count in found:
            chunks = self._all(VectorStoreChunk).filter(file_id=file_id, position__range=(start, start + count - 1))
            self._all(VectorStoreVector).filter(chunk_id__in=chunks.values("pk")).delete()
        self._all(VectorStoreCodes).filter(pk__in=[pk for pk, *_ in found]).delete()
        return bool(found)

    def _tell(self, file: VectorStoreFile, status: str) -> None:
        """Tell what a file has come to. One that was put in again has another key, and another event."""
        if (name := event_of("vector_store.file", status)) is None:
            return
        told = message(name, file.file_id, mark=f"{file.store_id} {file.pk}", vector_store_id=file.store_id)
        with self._db.cursor() as cursor:
            tell(cursor, [Told(file.store.project, [told])], now=self._now())
