"""`DatabaseVectorStores`: vector stores in Django's database, SQLite or PostgreSQL.

Everything that may be large goes in small transactions, since a SQLite file has one writer at a time, and responses are
written to it too: chunks are inserted a few at a time, and found once their file is `completed`; what is deleted is
hidden at once, and removed by `sweep`. Every step may be executed twice, where a connection broke in between.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import TypeVar

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import F, Q, QuerySet

from responses_app.kit.clock import utc
from responses_app.kit.places import place_of
from responses_app.kit.polling import any_of
from responses_app.kit.sql import in_parts, one_at_a_time
from responses_app.kit.table import can_be_known, part_of
from responses_app.protocol.files.searches import Chunking
from responses_app.resources.vector_stores.model import (
    PENDING,
    REMOVED,
    VectorStore,
    VectorStoreBatch,
    VectorStoreChunk,
    VectorStoreFile,
)
from responses_app.resources.vector_stores.records import (
    MAX_TRIES,
    BatchRecord,
    FileQuery,
    Hit,
    NewStoreFile,
    PendingFile,
    Search,
    StoreFileRecord,
    Value,
    VectorStoreRecord,
    VectorStoresFull,
)
from responses_app.resources.vector_stores.removal import (
    batch_record,
    counts_of,
    file_record,
    file_rows,
    kept_files,
    kept_stores,
    store_record,
    sweep,
)
from responses_app.resources.vector_stores.search import found, insert_words
from responses_app.resources.vector_stores.settings import VectorStoreSettings
from responses_app.resources.vector_stores.vectors import KeptVectors
from responses_app.resources.webhooks.messages import event_of, message
from responses_app.resources.webhooks.outbox import Told, tell

Result = TypeVar("Result")

CREATION_LOCK = 0x76656373  # the space of the locks of projects
CHUNKS_AT_ONCE = 64  # that one transaction inserts
ACTIVE_SECONDS = 60.0  # how exactly it is known when a store was searched last: that is a write, too
_ANY_PENDING = any_of(f"{VectorStoreFile._meta.db_table} WHERE status = '{PENDING}'")
GAVE_UP = ("server_error", f"The server stopped {MAX_TRIES} times while it read the file.")


class DatabaseVectorStores(KeptVectors):
    """Keeps them in the database `using`; `timeout` bounds, in seconds, whatever waits for it. `now` is Unix time.

    A file is in its stores as long as it is kept (`BaseFileStore`). Every method raises `StoreError` where the store is
    away.
    """

    unlimited = VectorStoreSettings(vector_stores_max_entries=0, vector_store_max_files=0, vector_store_max_chunks=0)

    async def create(self, project: str, record: VectorStoreRecord, files: Sequence[NewStoreFile]) -> None:
        """Keep a new store. Raises `VectorStoresFull`."""

        def act() -> None:
            stores = VectorStore.objects.using(self._using)
            if stores.filter(pk=record.id).exists():
                return  # an earlier attempt was committed after all
            self._lock(project)
            most = self._settings.vector_stores_max_entries
            if 0 < most <= self._stores(project).count():
                raise VectorStoresFull(f"This project has {most} vector stores already (VECTOR_STORES_MAX_ENTRIES)")
            stores.create(
                id=record.id,
                project=project,
                name=record.name,
                description=record.description,
                metadata=dict(record.metadata),
                created_at=utc(record.created_at),
                last_active_at=utc(record.last_active_at),
                expires_days=record.expires_days,
            )
            self._put(project, record.id, files, batch_id="")

        await self._write(act)

    async def get(self, project: str, store_id: str) -> VectorStoreRecord | None:
        """Return a store."""
        return await self._read(lambda: self._record(project, store_id), store_id)

    async def listed(
        self, project: str, *, after: str | None, descending: bool, limit: int, before: str | None = None
    ) -> Sequence[VectorStoreRecord]:
        """Return up to `limit` stores behind the store `after` and before the store `before`, which may be gone."""

        def act(_: BaseDatabaseWrapper) -> Sequence[VectorStoreRecord]:
            page = part_of(self._stores(project), after=after, before=before, descending=descending, limit=limit)
            return [store_record(row, counts_of(self._files(project, row.pk))) for row in page]

        return await self._threads.run(act)

    async def update(self, project: str, store_id: str, changes: Mapping[str, object]) -> VectorStoreRecord | None:
        """Change fields of a store's record."""

        def act() -> VectorStoreRecord | None:
            row = self._stores(project).select_for_update().filter(pk=store_id).first()
            if row is None:
                return None
            for name, value in changes.items():
                setattr(row, name, value)
            row.last_active_at = self._time()
            row.save(using=self._using, update_fields=[*changes, "last_active_at"])
            return self._record(project, store_id)

        return await self._write(act, store_id)

    async def delete(self, project: str, store_id: str) -> bool:
        """Forget a store; the files stay."""

        def act() -> bool:
            return bool(self._stores(project).filter(pk=store_id).update(removed=True))

        return bool(await self._write(act, store_id))

    async def add(
        self, project: str, store_id: str, files: Sequence[NewStoreFile], *, batch_id: str = ""
    ) -> Sequence[StoreFileRecord] | None:
        """Put files into a store, where they are read; one that is there is read again. Raises `VectorStoresFull`."""

        def act() -> Sequence[StoreFileRecord] | None:
            if self._expired_or_none(project, store_id):
                return None
            self._lock(project)
            if batch_id:
                batches = VectorStoreBatch.objects.using(self._using)
                batches.update_or_create(
                    pk=batch_id, defaults={"store_id": store_id, "created_at": self._time(), "cancelled": False}
                )
            rows = self._put(project, store_id, files, batch_id=batch_id)
            self._stores(project).filter(pk=store_id).update(last_active_at=self._time())
            return [file_record(row) for row in rows]

        return await self._write(act, store_id)

    async def files(self, project: str, store_id: str, query: FileQuery) -> Sequence[StoreFileRecord]:
        """Return files of a store; `after` and `before` may be gone."""

        def act() -> Sequence[StoreFileRecord]:
            rows = self._files(project, store_id)
            rows = rows if query.batch_id is None else rows.filter(batch_id=query.batch_id)
            rows = rows if query.status is None else rows.filter(status=query.status)
            page = part_of(
                rows,
                after=self._place(project, store_id, query.after),
                before=self._place(project, store_id, query.before),
                descending=query.descending,
                limit=query.limit,
            )
            return [file_record(row) for row in page]

        listed = await self._read(act, store_id)
        return () if listed is None else listed

    async def file(self, project: str, store_id: str, file_id: str) -> StoreFileRecord | None:
        """Return a file of a store."""

        def act() -> StoreFileRecord | None:
            row = self._files(project, store_id).filter(file_id=file_id).first()
            return None if row is None else file_record(row)

        return await self._read(act, store_id, file_id)

    async def set_attributes(
        self, project: str, store_id: str, file_id: str, attributes: Mapping[str, Value]
    ) -> StoreFileRecord | None:
        """Give a file of a store other attributes."""

        def act() -> StoreFileRecord | None:
            row = self._files(project, store_id).filter(file_id=file_id).first()
            if row is None:
                return None
            row.attributes = dict(attributes)
            row.save(using=self._using, update_fields=["attributes"])
            return file_record(row)

        return await self._write(act, store_id, file_id)

    async def remove(self, project: str, store_id: str, file_id: str) -> bool:
        """Take a file out of a store."""

        def act() -> bool:
            keys = list(self._files(project, store_id).filter(file_id=file_id).values_list("pk", flat=True))
            return bool(self._removed(VectorStoreFile.objects.using(self._using).filter(pk__in=keys)))

        return bool(await self._write(act, store_id, file_id))

    async def forget_file(self, project: str, file_id: str) -> None:
        """Take a file out of all stores."""

        def act() -> None:
            rows = VectorStoreFile.objects.using(self._using).filter(file_id=file_id)
            stores = VectorStore.objects.using(self._using).filter(project=project).values("pk")
            self._removed(rows.filter(store_id__in=stores))

        await self._write(act, file_id)

    async def content(self, project: str, store_id: str, file_id: str) -> Sequence[str] | None:
        """Return the chunks of a file."""

        def act() -> Sequence[str] | None:
            row = self._files(project, store_id).filter(file_id=file_id).first()
            if row is None:
                return None
            chunks = VectorStoreChunk.objects.using(self._using).filter(file=row, file__status="completed")
            return list(chunks.order_by("position").values_list("text", flat=True))

        return await self._read(act, store_id, file_id)

    async def batch(self, project: str, store_id: str, batch_id: str) -> BatchRecord | None:
        """Return a batch."""
        return await self._read(lambda: self._batch(project, store_id, batch_id), store_id, batch_id)

    async def cancel_batch(self, project: str, store_id: str, batch_id: str) -> BatchRecord | None:
        """Leave those files of a batch out that were not read yet."""

        def act() -> BatchRecord | None:
            if self._batch(project, store_id, batch_id) is None:
                return None
            left = VectorStoreFile.objects.using(self._using).filter(batch_id=batch_id, status=PENDING)
            if left.filter(store_id=store_id).update(status="cancelled"):
                VectorStoreBatch.objects.using(self._using).filter(pk=batch_id).update(cancelled=True)
            return self._batch(project, store_id, batch_id)

        return await self._write(act, store_id, batch_id)

    async def search(self, project: str, store_id: str, search: Search) -> Sequence[Hit] | None:
        """Return what was found, the best first; None where there is no such store, or it has expired."""

        def act() -> Sequence[Hit] | None:
            row = self._stores(project).filter(pk=store_id).first()
            if row is None or self._has_expired(row):
                return None
            if self._now() - row.last_active_at.timestamp() > ACTIVE_SECONDS:
                self._stores(project).filter(pk=store_id).update(last_active_at=self._time())
            return found(
                self._using, project, store_id, search, kept=self._codes, now=self._now(), since=self._since(project)
            )

        return await self._read(act, store_id)

    async def claim(self, worker: str, *, lease_seconds: float, after: str = "") -> PendingFile | None:
        """Return a file that is to be read, for so long; what it had is gone. None for nothing.

        It is the oldest of one project: of the one that follows `after`, so that projects take turns.
        """

        def act() -> VectorStoreFile | None:
            free = self._free(worker).select_for_update(skip_locked=True, of=("self",)).order_by("store__project", "pk")
            # The next project in the order of names, or from the beginning again.
            row = free.filter(store__project__gt=after).first() or free.first()
            if row is None:
                return None
            row.worker, row.attempts = worker, row.attempts + 1
            row.leased_until = self._time() + timedelta(seconds=lease_seconds)
            # Counted when it is claimed: a worker that the file kills cannot count any more.
            if row.attempts > MAX_TRIES:
                row.status, (row.error_code, row.error_message) = "failed", GAVE_UP
                self._tell(row.store.project, row.store_id, row.file_id, "failed", key=row.pk)
            row.save(using=self._using)
            return row

        if not await self._polls.poll(_ANY_PENDING):  # nearly always
            return None
        while await self._threads.run(lambda _: self._free(worker).exists()):  # nothing is locked
            row = await self._write(act)
            if row is None:
                return None
            if row.status == PENDING:
                # What a worker before has inserted: its chunks may have been cut otherwise.
                await self._drop_chunks(row.pk)
                return await self._threads.run(lambda _, row=row: self._pending(row))
        return None

    async def keep(self, pending: PendingFile, chunks: Sequence[str]) -> bool:
        """Keep the chunks of a file, which is then found; False where it is nobody's any more, or another worker's."""
        for start in range(0, len(chunks), CHUNKS_AT_ONCE):
            part = chunks[start : start + CHUNKS_AT_ONCE]
            if not await self._write(lambda start=start, part=part: self._insert(pending, start, part)):
                return False
        # In UTF-8, as the database has them.
        size = sum(len(chunk.encode()) for chunk in chunks)
        done = self._write(lambda: self._end(pending, status="completed", usage_bytes=size))
        return bool(await done)

    async def fail(self, pending: PendingFile, code: str, message: str) -> None:
        """Note that a file cannot be read, and why."""
        await self._drop_chunks(pending.key)
        await self._write(lambda: self._end(pending, status="failed", error_code=code, error_message=message))

    async def release(self, pending: PendingFile) -> None:
        """Leave a file that was not read to the worker that looks first."""
        # A stop is not the file's fault, so the attempt does not count.
        await self._write(lambda: self._end(pending, attempts=F("attempts") - 1))

    async def sweep(self) -> bool:
        """Remove a part of what was deleted or has expired; return whether there may be more."""
        return await self._threads.run(lambda db: sweep(db, now=self._now()))

    async def _read(self, act: Callable[[], Result | None], *ids: str) -> Result | None:
        return await self._threads.run(lambda _: act()) if all(map(can_be_known, ids)) else None

    async def _drop_chunks(self, key: int) -> None:
        def act() -> int:
            chunks = VectorStoreChunk.objects.using(self._using)
            some = list(chunks.filter(file_id=key).values_list("pk", flat=True)[:CHUNKS_AT_ONCE])
            return int(chunks.filter(pk__in=some).delete()[0])

        while await self._write(act):
            pass

    # What follows runs on a thread.

    def _stores(self, project: str) -> "QuerySet[VectorStore]":
        return kept_stores(self._using, project, since=self._since(project))

    def _files(self, project: str, store_id: str) -> "QuerySet[VectorStoreFile]":
        return kept_files(self._using, project, store_id, now=self._now(), since=self._since(project))

    def _place(self, project: str, store_id: str, file_id: str | None) -> float | None:
        """Return where a file stands in a store, also one that is removed."""
        rows = VectorStoreFile.objects.using(self._using).filter(store_id=store_id, store__project=project)
        return place_of(rows, file_id, named="file_id", key="pk", left_in=(project, store_id))

    def _record(self, project: str, store_id: str) -> VectorStoreRecord | None:
        row = self._stores(project).filter(pk=store_id).first()
        return None if row is None else store_record(row, counts_of(self._files(project, store_id)))

    def _has_expired(self, row: VectorStore) -> bool:
        return row.expires_days is not None and row.last_active_at + timedelta(days=row.expires_days) <= self._time()

    def _expired_or_none(self, project: str, store_id: str) -> bool:
        row = self._stores(project).filter(pk=store_id).first()
        return row is None or self._has_expired(row)

    def _batch(self, project: str, store_id: str, batch_id: str) -> BatchRecord | None:
        rows = VectorStoreBatch.objects.using(self._using).filter(pk=batch_id, store_id=store_id)
        row = rows.filter(store__in=self._stores(project)).first()
        return None if row is None else batch_record(row, self._files(project, store_id))

    def _lock(self, project: str) -> None:
        """Let nobody else count and add in this project."""
        one_at_a_time(connections[self._using], CREATION_LOCK, project)

    def _put(
        self, project: str, store_id: str, files: Sequence[NewStoreFile], *, batch_id: str
    ) -> Sequence[VectorStoreFile]:
        rows = VectorStoreFile.objects.using(self._using).filter(store_id=store_id).exclude(status=REMOVED)
        for ids in in_parts([file.file_id for file in files]):
            self._removed(rows.filter(file_id__in=ids))
        most = self._settings.vector_store_max_files
        if 0 < most < rows.count() + len(files):
            raise VectorStoresFull(f"A vector store has at most {most} files here (VECTOR_STORE_MAX_FILES)")
        return VectorStoreFile.objects.using(self._using).bulk_create(
            file_rows(store_id, files, batch_id=batch_id, at=self._time())
        )

    def _removed(self, rows: "QuerySet[VectorStoreFile]") -> int:
        return rows.exclude(status=REMOVED).update(status=REMOVED, leased_until=None)

    def _pending(self, row: VectorStoreFile) -> PendingFile | None:
        store = VectorStore.objects.using(self._using).filter(pk=row.store_id).first()
        chunks = VectorStoreChunk.objects.using(self._using).filter(store_id=row.store_id).count()
        most = self._settings.vector_store_max_chunks
        return PendingFile(
            key=row.pk,
            project=store.project if store else "",
            store_id=row.store_id,
            file_id=row.file_id,
            filename=row.filename,
            chunking=Chunking(row.chunk_size, row.chunk_overlap),
            worker=row.worker,
            # Without a limit: more than any file has.
            room=max(0, most - chunks) if most else 2**31,
        )

    def _free(self, worker: str) -> "QuerySet[VectorStoreFile]":
        rows = VectorStoreFile.objects.using(self._using).filter(status=PENDING)
        return rows.filter(Q(leased_until=None) | Q(leased_until__lte=self._time()) | Q(worker=worker))

    def _own(self, pending: PendingFile) -> "QuerySet[VectorStoreFile]":
        rows = VectorStoreFile.objects.using(self._using).filter(pk=pending.key, status=PENDING)
        return rows.filter(worker=pending.worker, store__removed=False)

    def _insert(self, pending: PendingFile, start: int, texts: Sequence[str]) -> bool:
        if self._own(pending).select_for_update(of=("self",)).first() is None:
            return False
        chunks = VectorStoreChunk.objects.using(self._using)
        # An earlier attempt at this very step may have been committed.
        chunks.filter(file_id=pending.key, position__range=(start, start + len(texts) - 1)).delete()
        rows = chunks.bulk_create(
            VectorStoreChunk(store_id=pending.store_id, file_id=pending.key, position=start + place, text=text)
            for place, text in enumerate(texts)
        )
        insert_words(connections[self._using], rows)
        return True

    def _end(self, pending: PendingFile, **changes: object) -> bool:
        rows = VectorStoreFile.objects.using(self._using)
        own = rows.filter(pk=pending.key, status=PENDING, worker=pending.worker)
        ended = bool(own.update(leased_until=None, worker="", **changes))
        if ended and "status" in changes:
            self._tell(pending.project, pending.store_id, pending.file_id, str(changes["status"]), key=pending.key)
        return ended

    def _tell(self, project: str, store_id: str, file_id: str, status: str, *, key: int) -> None:
        """Tell what a file has come to. One that was put in again has another `key`, and another event."""
        if (name := event_of("vector_store.file", status)) is None:
            return
        told = message(name, file_id, mark=f"{store_id} {key}", vector_store_id=store_id)
        with connections[self._using].cursor() as cursor:
            tell(cursor, [Told(project, [told])], now=self._now())
