"""`VectorStores`: vector stores in Django's database, SQLite or PostgreSQL.

Everything that may be large goes in small transactions, since a SQLite file has one writer at a time, and responses are
written to it too: what is deleted is hidden at once, and removed by `sweep`. Every step may be executed twice, where a
connection broke in between.
"""

from collections.abc import Mapping, Sequence

from django.db.models import Count, Exists, OuterRef, Q, QuerySet, Sum

from responses_app.kit.places import place_of
from responses_app.kit.sql import in_parts, one_at_a_time
from responses_app.kit.table import assign, can_be_known, part_of, reads, writes
from responses_app.protocol.files.searches import Value
from responses_app.protocol.requests.pages import ListQuery
from responses_app.resources.files.model import StoredFile
from responses_app.resources.vector_stores.fields import (
    CountedBatch,
    CountedStore,
    FileCounts,
    Hit,
    NewStoreFile,
    Search,
)
from responses_app.resources.vector_stores.model import (
    COMPLETED,
    PENDING,
    REMOVED,
    VectorStore,
    VectorStoreBatch,
    VectorStoreChunk,
    VectorStoreFile,
)
from responses_app.resources.vector_stores.removal import hide, sweep
from responses_app.resources.vector_stores.search import find
from responses_app.resources.vector_stores.settings import VectorStoreSettings
from responses_app.resources.vector_stores.work import FileWork

CREATION_LOCK = 0x76656373  # the space of the locks of projects
ACTIVE_SECONDS = 60.0  # how exactly it is known when a store was searched last: that is a write, too


class VectorStoresFull(Exception):
    """There are as many as there may be; the message says of what."""


class VectorStores(FileWork):
    """The vector stores of projects. Every method raises `StoreError`.

    A file is in its stores as long as it is kept as a file.
    """

    unlimited = VectorStoreSettings(vector_stores_max_entries=0, vector_store_max_files=0, vector_store_max_chunks=0)

    @writes
    def create(self, row: VectorStore, files: Sequence[NewStoreFile] = ()) -> None:
        """Keep a new store. Raises `VectorStoresFull`."""
        if self._all(VectorStore).filter(pk=row.pk).exists():
            return  # an earlier attempt was committed after all
        one_at_a_time(self._db, CREATION_LOCK, row.project)
        most = self._settings.vector_stores_max_entries
        if 0 < most <= self.rows(row.project).count():
            raise VectorStoresFull(f"This project has {most} vector stores already (VECTOR_STORES_MAX_ENTRIES)")
        row.save(using=self._using, force_insert=True)
        self._put(row.pk, files)

    @reads
    def counted(self, project: str, store_id: str) -> CountedStore | None:
        """Return a store with what is in it."""
        row = self._store(project, store_id)
        return None if row is None else self._counted(row)

    @reads
    def listed(self, project: str, page: ListQuery) -> Sequence[CountedStore]:
        """Return a part of a project's stores, and one more; those that `after` and `before` name may be gone."""
        rows = part_of(
            self.rows(project), after=page.after, before=page.before, descending=page.descending, limit=page.limit + 1
        )
        return [self._counted(row) for row in rows]

    @writes
    def update(self, project: str, store_id: str, columns: Mapping[str, object]) -> CountedStore | None:
        """Change columns of a store."""
        row = self.locked(project, store_id)
        if row is None:
            return None
        row.save(using=self._using, update_fields=assign(row, {**columns, "last_active_at": self._at()}))
        return self._counted(row)

    @writes
    def add(
        self, project: str, store_id: str, files: Sequence[NewStoreFile], *, batch_id: str = ""
    ) -> Sequence[VectorStoreFile] | None:
        """Put files into a store, where they are read; one that is there is read again. Raises `VectorStoresFull`.

        None for a store that is not there, or has expired.
        """
        if self._unexpired(project, store_id) is None:
            return None
        one_at_a_time(self._db, CREATION_LOCK, project)
        if batch_id:
            self._all(VectorStoreBatch).update_or_create(
                pk=batch_id, defaults={"store_id": store_id, "created_at": self._at(), "cancelled": False}
            )
        rows = self._put(store_id, files, batch_id=batch_id)
        self.rows(project).filter(pk=store_id).update(last_active_at=self._at())
        return rows

    @reads
    def files(
        self, project: str, store_id: str, page: ListQuery, *, status: str | None = None, batch_id: str | None = None
    ) -> Sequence[VectorStoreFile]:
        """Return a part of a store's files, and one more; those that `after` and `before` name may be gone.

        Only those of a `status` or a batch, where one is given.
        """
        fits = {"status": status, "batch_id": batch_id}
        rows = self._files(project, store_id).filter(**{name: each for name, each in fits.items() if each is not None})

        # Also of a file that is removed.
        every = self._all(VectorStoreFile).filter(store_id=store_id, store__project=project)
        after, before = (
            place_of(every, cursor, named="file_id", key="pk", left_in=(project, store_id))
            for cursor in (page.after, page.before)
        )
        return part_of(rows, after=after, before=before, descending=page.descending, limit=page.limit + 1)

    @reads
    def file(self, project: str, store_id: str, file_id: str) -> VectorStoreFile | None:
        """Return a file of a store."""
        return self._file(project, store_id, file_id)

    @reads
    def content(self, project: str, store_id: str, file_id: str) -> Sequence[str] | None:
        """Return the chunks of a file."""
        row = self._file(project, store_id, file_id)
        if row is None:
            return None
        chunks = self._all(VectorStoreChunk).filter(file=row, file__status=COMPLETED)
        return list(chunks.order_by("position").values_list("text", flat=True))

    @writes
    def set_attributes(
        self, project: str, store_id: str, file_id: str, attributes: Mapping[str, Value]
    ) -> VectorStoreFile | None:
        """Give a file of a store other attributes."""
        row = self._file(project, store_id, file_id)
        if row is not None:
            row.attributes = dict(attributes)
            row.save(using=self._using, update_fields=["attributes"])
        return row

    @writes
    def remove_file(self, project: str, store_id: str, file_id: str) -> bool:
        """Take a file out of a store; return whether it was there."""
        row = self._file(project, store_id, file_id)
        return row is not None and bool(hide(self._all(VectorStoreFile).filter(pk=row.pk)))

    @writes
    def forget_file(self, project: str, file_id: str) -> None:
        """Take a file out of all stores."""
        stores = self._all(VectorStore).filter(project=project).values("pk")
        hide(self._all(VectorStoreFile).filter(file_id=file_id, store_id__in=stores))

    @reads
    def batch(self, project: str, store_id: str, batch_id: str) -> CountedBatch | None:
        """Return a batch."""
        return self._batch(project, store_id, batch_id)

    @writes
    def cancel_batch(self, project: str, store_id: str, batch_id: str) -> CountedBatch | None:
        """Leave those files of a batch out that were not read yet."""
        if self._batch(project, store_id, batch_id) is None:
            return None
        left = self._all(VectorStoreFile).filter(batch_id=batch_id, status=PENDING, store_id=store_id)
        if left.update(status="cancelled"):
            self._all(VectorStoreBatch).filter(pk=batch_id).update(cancelled=True)
        return self._batch(project, store_id, batch_id)

    @reads
    def search(self, project: str, store_id: str, search: Search) -> Sequence[Hit] | None:
        """Return what is found, the best first; None where there is no such store, or it has expired."""
        row = self._unexpired(project, store_id)
        if row is None:
            return None
        if self._now() - row.last_active_at.timestamp() > ACTIVE_SECONDS:
            self.rows(project).filter(pk=store_id).update(last_active_at=self._at())
        return find(store_id, self._files(project, store_id), search, self._codes)

    @reads
    def sweep(self) -> bool:
        """Remove a part of what was deleted or has expired; return whether there may be more."""
        return sweep(self._using, now=self._at())

    # What follows runs on a thread.

    def rows(self, project: str) -> "QuerySet[VectorStore]":
        return super().rows(project).filter(removed=False)

    def remove(self, row: VectorStore) -> None:
        """Hide a store, which is gone for clients; the files stay."""
        self._all(VectorStore).filter(pk=row.pk).update(removed=True)

    def _store(self, project: str, store_id: str) -> VectorStore | None:
        return self.rows(project).filter(pk=store_id).first() if can_be_known(store_id) else None

    def _unexpired(self, project: str, store_id: str) -> VectorStore | None:
        row = self._store(project, store_id)
        return None if row is None or (row.expires_at and row.expires_at <= self._at()) else row

    def _files(self, project: str, store_id: str) -> "QuerySet[VectorStoreFile]":
        """Return the files of a store, as long as they are kept as files too."""
        mine = self._mine(project)
        unexpired = Q(expires_at=None) | Q(expires_at__gt=self._at())
        sources = StoredFile.objects.filter(unexpired, pk=OuterRef("file_id"), is_whole=True, **mine)
        of_store = {f"store__{name}": value for name, value in mine.items()}
        rows = self._all(VectorStoreFile).filter(store_id=store_id, store__removed=False, **of_store)
        return rows.exclude(status=REMOVED).filter(Exists(sources)) if can_be_known(store_id) else rows.none()

    def _file(self, project: str, store_id: str, file_id: str) -> VectorStoreFile | None:
        return self._files(project, store_id).filter(file_id=file_id).first() if can_be_known(file_id) else None

    def _batch(self, project: str, store_id: str, batch_id: str) -> CountedBatch | None:
        if not can_be_known(store_id) or not can_be_known(batch_id):
            return None
        rows = self._all(VectorStoreBatch).filter(pk=batch_id, store_id=store_id, store__in=self.rows(project))
        files = self._files(project, store_id).filter(batch_id=batch_id)
        return next((CountedBatch(row, _counts_of(files)[0]) for row in rows), None)

    def _counted(self, row: VectorStore) -> CountedStore:
        return CountedStore(row, *_counts_of(self._files(row.project, row.pk)))

    def _put(self, store_id: str, files: Sequence[NewStoreFile], *, batch_id: str = "") -> Sequence[VectorStoreFile]:
        rows = self._all(VectorStoreFile).filter(store_id=store_id).exclude(status=REMOVED)
        for ids in in_parts([file.file_id for file in files]):
            hide(rows.filter(file_id__in=ids))
        most = self._settings.vector_store_max_files
        if 0 < most < rows.count() + len(files):
            raise VectorStoresFull(f"A vector store has at most {most} files here (VECTOR_STORE_MAX_FILES)")
        at = self._at()
        return self._all(VectorStoreFile).bulk_create(
            VectorStoreFile(store_id=store_id, batch_id=batch_id, created_at=at, **file.columns()) for file in files
        )


def _counts_of(files: "QuerySet[VectorStoreFile]") -> tuple[FileCounts, int]:
    """Return how many files have which status, and the bytes of the chunks of all."""
    by_status = list(files.order_by().values_list("status").annotate(Count("pk"), Sum("usage_bytes")))
    counts = {status: count for status, count, _ in by_status}
    in_progress, completed, failed, cancelled = (
        counts.get(status, 0) for status in ("in_progress", "completed", "failed", "cancelled")
    )
    every: FileCounts = {
        "in_progress": in_progress,
        "completed": completed,
        "failed": failed,
        "cancelled": cancelled,
        "total": sum(counts.values()),
    }
    return every, sum(size or 0 for _, _, size in by_status)
