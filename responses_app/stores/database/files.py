"""`DatabaseFileStore`: files in Django's database, SQLite or PostgreSQL, so that every host finds them.

A file's row comes first and is hidden, then its pieces, each in a transaction of its own, and at last the row is shown:
so no write waits for more than one piece, and two uploads at once cannot exceed a limit together. A file goes in the
opposite order. What a process leaves hidden, as it was ended in between, is removed by `purge`.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Sequence
from datetime import UTC, datetime, timedelta

from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Count, Q, QuerySet, Sum

from responses_app.models import FilePart, StoredFile
from responses_app.stores.base import StoreError
from responses_app.stores.database.conversation_rows import can_be_known
from responses_app.stores.database.response_sql import in_parts
from responses_app.stores.database.threaded import ThreadedStore
from responses_app.stores.files import BaseFileStore, FileGone, FileLimits, FileRecord, FilesFull, FileUsage

logger = logging.getLogger("respsite.stores")

CREATION_LOCK = 0x66696C65  # of PostgreSQL's advisory locks, the space in which each project has one
UNFINISHED = timedelta(hours=1)  # after that, a hidden file is nobody's: an upload is written in seconds
PARTS_AT_ONCE = 32  # that one transaction removes
MAX_PURGED = 1000  # files that one purge removes


class DatabaseFileStore(ThreadedStore[FileLimits], BaseFileStore):
    """Keeps files in the database `using`; `timeout` bounds, in seconds, whatever waits for it. `now` is Unix time."""

    unlimited = FileLimits()

    async def create(self, project: str, record: FileRecord, pieces: Iterable[bytes]) -> None:
        await self._threads.run(lambda db: self._reserve(db, project, record))
        try:
            await self._write_pieces(record, pieces)
            await self._threads.run(lambda db: _show(db, record.id))
        except BaseException:
            await asyncio.shield(self._give_up(record.id))
            raise

    async def get(self, project: str, file_id: str) -> FileRecord | None:
        if not can_be_known(file_id):
            return None

        def read(connection: BaseDatabaseWrapper) -> FileRecord | None:
            row = self._known(connection, project).filter(pk=file_id).first()
            return None if row is None else _record(row)

        return await self._threads.run(read)

    async def some(self, project: str, file_ids: Sequence[str]) -> Sequence[FileRecord]:
        wanted = sorted({file_id for file_id in file_ids if can_be_known(file_id)})

        def read(connection: BaseDatabaseWrapper) -> list[FileRecord]:
            known = self._known(connection, project)
            return [_record(row) for some in in_parts(wanted) for row in known.filter(pk__in=some).order_by("pk")]

        return await self._threads.run(read) if wanted else []

    async def listed(
        self, project: str, *, purpose: str | None, after: str | None, descending: bool, limit: int
    ) -> Sequence[FileRecord] | None:
        if after is not None and not can_be_known(after):
            return None

        def read(connection: BaseDatabaseWrapper) -> list[FileRecord] | None:
            known = self._known(connection, project)
            rows = known if purpose is None else known.filter(purpose=purpose)
            if after is not None:
                if not known.filter(pk=after).exists():
                    return None
                rows = rows.filter(pk__lt=after) if descending else rows.filter(pk__gt=after)
            return [_record(row) for row in rows.order_by("-pk" if descending else "pk")[:limit]]

        return await self._threads.run(read)

    async def pieces(self, project: str, file_id: str) -> AsyncIterator[bytes]:
        record = await self.get(project, file_id)
        if record is None:
            raise FileGone(file_id)
        position = size = 0
        while size < record.bytes:
            piece = await self._threads.run(lambda db, at=position: _piece(db, file_id, at))
            if piece is None:
                raise FileGone(file_id)
            yield piece
            position, size = position + 1, size + len(piece)

    async def delete(self, project: str, file_id: str) -> bool:
        if not can_be_known(file_id):
            return False

        def hide(connection: BaseDatabaseWrapper) -> bool:
            return bool(self._known(connection, project).filter(pk=file_id).update(is_whole=False))

        if not await self._threads.run(hide):
            return False
        await asyncio.shield(self._give_up(file_id))
        return True

    async def usage(self, project: str) -> FileUsage:
        return await self._threads.run(lambda db: self._usage(db, project))

    async def purge(self) -> int:
        gone = await self._threads.run(lambda db: files_to_purge(db, self._now()))
        for file_id in gone:
            await self._remove(file_id)
        return len(gone)

    async def _write_pieces(self, record: FileRecord, pieces: Iterable[bytes]) -> None:
        source, position, size = iter(pieces), 0, 0
        while piece := await asyncio.to_thread(next, source, b""):
            await self._threads.run(lambda db, at=position, piece=piece: _write_piece(db, record.id, at, piece))
            position, size = position + 1, size + len(piece)
        if size != record.bytes:
            raise ValueError(f"{record.id} has {size} bytes, not {record.bytes}")

    async def _give_up(self, file_id: str) -> None:
        """Remove a hidden file; later, where the database is away."""
        try:
            await self._remove(file_id)
        except StoreError as problem:
            logger.warning("%s is removed later: %s", file_id, problem)

    async def _remove(self, file_id: str) -> None:
        while not await self._threads.run(lambda db: _remove_some(db, file_id)):
            pass

    # What follows runs on a thread.

    def _known(self, connection: BaseDatabaseWrapper, project: str) -> "QuerySet[StoredFile]":
        return self._unexpired(connection, project).filter(is_whole=True)

    def _unexpired(self, connection: BaseDatabaseWrapper, project: str) -> "QuerySet[StoredFile]":
        rows = StoredFile.objects.using(connection.alias).filter(project=project)
        return rows.filter(Q(expires_at=None) | Q(expires_at__gt=_time(self._now())))

    def _usage(self, connection: BaseDatabaseWrapper, project: str) -> FileUsage:
        found = self._unexpired(connection, project).aggregate(files=Count("pk"), bytes=Sum("bytes"))
        return FileUsage(found["files"], found["bytes"] or 0)

    def _reserve(self, connection: BaseDatabaseWrapper, project: str, record: FileRecord) -> None:
        with transaction.atomic(using=connection.alias):
            if StoredFile.objects.using(connection.alias).filter(pk=record.id).exists():
                return  # an earlier attempt was committed after all
            self._check_limits(connection, project, record)
            StoredFile.objects.using(connection.alias).create(
                id=record.id,
                project=project,
                purpose=record.purpose,
                filename=record.filename,
                bytes=record.bytes,
                created_at=_time(record.created_at),
                expires_at=None if record.expires_at is None else _time(record.expires_at),
            )

    def _check_limits(self, connection: BaseDatabaseWrapper, project: str, record: FileRecord) -> None:
        limits = self._limits
        if limits == FileLimits():
            return
        if connection.vendor == "postgresql":  # elsewhere there is one writer at a time anyway
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_advisory_xact_lock(%s, hashtext(%s))", [CREATION_LOCK, project])
        used = self._usage(connection, project)
        if 0 < limits.max_files <= used.files:
            raise FilesFull(f"This project has {used.files} files, and may have no more (FILES_MAX_ENTRIES)")
        if 0 < limits.max_bytes < used.bytes + record.bytes:
            raise FilesFull(
                f"The files of this project have {used.bytes} bytes, and with this one they would have more than "
                f"{limits.max_bytes} (FILES_MAX_BYTES)"
            )


def files_to_purge(connection: BaseDatabaseWrapper, now: float) -> Sequence[str]:
    """Return files that have expired, and what uploads that were broken off have left; not on an event loop."""
    at, rows = _time(now), StoredFile.objects.using(connection.alias)
    expired = rows.filter(expires_at__isnull=False, expires_at__lte=at)
    left = rows.filter(is_whole=False, created_at__lte=at - UNFINISHED)
    return [file_id for some in (expired, left) for file_id in some.values_list("pk", flat=True)[:MAX_PURGED]]


def remove_files(using: str, file_ids: Iterable[str]) -> None:
    """Remove files at once, in small transactions; not on an event loop."""
    for file_id in file_ids:
        StoredFile.objects.using(using).filter(pk=file_id).update(is_whole=False)
        while not _remove_some(connections[using], file_id):
            pass


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _record(row: StoredFile) -> FileRecord:
    return FileRecord(
        id=row.pk,
        filename=row.filename,
        purpose=row.purpose,
        bytes=row.bytes,
        created_at=int(row.created_at.timestamp()),
        expires_at=None if row.expires_at is None else int(row.expires_at.timestamp()),
    )


def _piece(connection: BaseDatabaseWrapper, file_id: str, position: int) -> bytes | None:
    parts = FilePart.objects.using(connection.alias).filter(file_id=file_id, position=position)
    data = parts.values_list("data", flat=True).first()
    return None if data is None else bytes(data)


def _write_piece(connection: BaseDatabaseWrapper, file_id: str, position: int, piece: bytes) -> None:
    """Write a piece of a file that is hidden still, once, however often this is called. Raises `FileGone`."""
    with transaction.atomic(using=connection.alias):
        if _locked(connection, file_id) is None:
            raise FileGone(file_id)
        parts = FilePart.objects.using(connection.alias)
        parts.bulk_create([FilePart(file_id=file_id, position=position, data=piece)], ignore_conflicts=True)


def _show(connection: BaseDatabaseWrapper, file_id: str) -> None:
    if not StoredFile.objects.using(connection.alias).filter(pk=file_id).update(is_whole=True):
        raise FileGone(file_id)


def _remove_some(connection: BaseDatabaseWrapper, file_id: str) -> bool:
    """Remove a few pieces of a file, or, with the last, the file; return whether nothing is left of it."""
    with transaction.atomic(using=connection.alias):
        row = _locked(connection, file_id)
        parts = FilePart.objects.using(connection.alias).filter(file_id=file_id)
        some = list(parts.order_by("position").values_list("pk", flat=True)[: PARTS_AT_ONCE + 1])
        FilePart.objects.using(connection.alias).filter(pk__in=some[:PARTS_AT_ONCE]).delete()
        if len(some) > PARTS_AT_ONCE:
            return False
        if row is not None:
            row.delete(using=connection.alias)
        return True


def _locked(connection: BaseDatabaseWrapper, file_id: str) -> StoredFile | None:
    """Return a file that nobody else changes until this transaction ends."""
    rows = StoredFile.objects.using(connection.alias).select_for_update().filter(pk=file_id)
    return next(iter(rows), None)
