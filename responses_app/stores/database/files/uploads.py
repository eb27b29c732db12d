"""`DatabaseUploads`: files that come in parts, in Django's database, SQLite or PostgreSQL.

A part is written as `kit.pieces` says. To complete an upload changes no piece: its parts get their places in the file,
in one transaction. What is left of an upload that was cancelled or has expired, and parts that are not of the file,
`purge_uploads` removes at the latest.
"""

import asyncio
import hashlib
import logging
from collections.abc import Iterable, Sequence
from datetime import timedelta

from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Exists, OuterRef, Q, QuerySet, Sum

from responses_app.kit.clock import unix, utc
from responses_app.kit.errors import StoreError
from responses_app.kit.kept import removes
from responses_app.kit.pieces import MAX_PURGED, read_pieces, remove_all, write_pieces
from responses_app.kit.table import Store, can_be_known
from responses_app.kit.threads import DatabaseReaders
from responses_app.models import StoredFile, Upload, UploadPart
from responses_app.protocol.files.files import MAX_PARTS
from responses_app.stores.database.files.rows import check_limits, record_of, remove_parts, row_of
from responses_app.stores.files import (
    TIMES_STORED,
    UNLIMITED,
    FileRecord,
    FileSettings,
    FilesFull,
    PartRecord,
    PartsWrong,
    UploadClosed,
    UploadGone,
    UploadRecord,
    UploadStatus,
)

logger = logging.getLogger("respsite.stores")

REMEMBERED = timedelta(days=1)  # how long an upload whose time is over says so, instead of being unknown
ROWS_AT_ONCE = 500  # parts that one statement gives their places


class DatabaseUploads(Store[FileSettings]):
    """Keeps uploads in the database `using`, in the limits of their files; `timeout` bounds what waits for it.

    `timeout` is in seconds, `now` in Unix time. Every method raises `StoreError` where the store is away, and all but
    `create` `UploadGone`. One object serves one worker process.
    """

    unlimited = UNLIMITED

    async def create(self, project: str, upload: UploadRecord) -> None:
        """Begin an upload. Raises `FilesFull`."""
        await self._threads.run(lambda db: self._begin(db, project, upload))

    async def get(self, project: str, upload_id: str) -> UploadRecord:
        """Return what is known of an upload."""
        return await self._threads.run(lambda db: self._record(db, self._found(db, project, upload_id)))

    async def add(self, project: str, part: PartRecord, pieces: Iterable[bytes]) -> None:
        """Keep a part whose content is `part.bytes` long, in `pieces` of up to `PIECE_BYTES`, read on a thread.

        Where this raises or is cancelled, nothing is kept. Raises `UploadClosed`, and `PartsWrong` for too much.
        """
        await self._threads.run(lambda db: self._reserve(db, project, part))
        try:
            row = UploadPart(id=part.id, bytes=part.bytes)
            await write_pieces(self._threads, row, pieces, gone=UploadGone(part.upload_id))
            await self._threads.run(lambda db: self._show(db, project, part))
        except BaseException:
            await asyncio.shield(self._remove(pk=part.id))
            raise

    async def complete(
        self, project: str, upload_id: str, part_ids: Sequence[str], *, file_id: str, md5: str | None
    ) -> UploadRecord:
        """Make the file of these parts, in this order, under this id; a complete that was answered is answered again.

        Raises `PartsWrong` and `UploadClosed`.
        """
        # Before the checksum, which reads everything: what is wrong with the ids costs nothing. `_finish` looks
        # again.
        parts = await self._threads.run(lambda db: self._parts(db, project, upload_id, part_ids))
        if md5 is not None and await self._md5(parts) != md5.lower():
            raise PartsWrong("The parts have another MD5 checksum than 'md5' says.", param="md5")
        done = await self._threads.run(lambda db: self._finish(db, project, upload_id, part_ids, file_id))
        # Parts without a place are not of the file.
        await asyncio.shield(self._remove(upload=upload_id, place=None))
        return done

    async def cancel(self, project: str, upload_id: str) -> UploadRecord:
        """Give an upload up, with its parts; again is as good as once. Raises `UploadClosed`."""
        cancelled = await self._threads.run(lambda db: self._close(db, project, upload_id))
        await asyncio.shield(self._remove(upload=upload_id, place=None))
        return cancelled

    async def _md5(self, parts: Sequence[UploadPart]) -> str:
        """Return the checksum of parts. Raises `UploadGone` where one goes meanwhile."""
        digest = hashlib.md5(usedforsecurity=False)
        for part in parts:
            async for piece in read_pieces(self._threads, part.pk, part.bytes, gone=UploadGone(part.upload_id)):
                await asyncio.to_thread(digest.update, piece)
        return digest.hexdigest()

    async def _remove(self, **which: object) -> None:
        """Remove parts; later, where the database is away."""
        try:
            await _removed(self._threads, **which)
        except StoreError as problem:
            logger.warning("parts of an upload are removed later: %s", problem)

    # What follows runs on a thread.

    def _found(self, connection: BaseDatabaseWrapper, project: str, upload_id: str, *, locked: bool = False) -> Upload:
        """Return an upload's row, `locked` until the transaction ends. Raises `UploadGone`."""
        rows = Upload.objects.using(connection.alias).filter(**self._mine(project))
        rows = rows.select_for_update() if locked else rows
        row = rows.filter(pk=upload_id).first() if can_be_known(upload_id) else None
        if row is None:
            raise UploadGone(upload_id)
        return row

    def _open(self, connection: BaseDatabaseWrapper, project: str, upload_id: str) -> Upload:
        """Return a pending upload, locked. Raises `UploadGone` and `UploadClosed`."""
        row = self._found(connection, project, upload_id, locked=True)
        status = self._status(row)
        if status is not UploadStatus.PENDING:
            raise UploadClosed(status.value)
        return row

    def _status(self, row: Upload) -> UploadStatus:
        is_over = row.status == UploadStatus.PENDING and row.expires_at <= utc(self._now())
        return UploadStatus.EXPIRED if is_over else UploadStatus(row.status)

    def _record(self, connection: BaseDatabaseWrapper, row: Upload) -> UploadRecord:
        file = StoredFile.objects.using(connection.alias).filter(pk=row.file_id, is_whole=True).first()
        return UploadRecord(
            id=row.pk,
            filename=row.filename,
            purpose=row.purpose,
            bytes=row.bytes,
            created_at=unix(row.created_at),
            expires_at=unix(row.expires_at),
            file_seconds=row.file_seconds,
            status=self._status(row),
            file=None if file is None else record_of(file),
        )

    def _begin(self, connection: BaseDatabaseWrapper, project: str, upload: UploadRecord) -> None:
        with transaction.atomic(using=connection.alias):
            if Upload.objects.using(connection.alias).filter(pk=upload.id).exists():
                return  # an earlier attempt was committed after all
            used = check_limits(connection, self._settings, project, upload.bytes, self._now())
            if 0 < self._settings.uploads_max_open <= used.uploads:
                raise FilesFull(
                    f"This project has {used.uploads} uploads open, and may have no more (UPLOADS_MAX_OPEN). Complete "
                    "or cancel some, or wait: each is open for an hour"
                )
            Upload.objects.using(connection.alias).create(
                id=upload.id,
                project=project,
                status=upload.status.value,
                purpose=upload.purpose,
                filename=upload.filename,
                bytes=upload.bytes,
                created_at=utc(upload.created_at),
                expires_at=utc(upload.expires_at),
                file_seconds=upload.file_seconds,
            )

    def _reserve(self, connection: BaseDatabaseWrapper, project: str, part: PartRecord) -> None:
        """Keep the row of a part, hidden. Raises `UploadGone`, `UploadClosed` and `PartsWrong`."""
        with transaction.atomic(using=connection.alias):
            row = self._open(connection, project, part.upload_id)
            known = UploadPart.objects.using(connection.alias).filter(upload=row)
            if known.filter(pk=part.id).exists():
                return  # an earlier attempt was committed after all
            stored = known.aggregate(bytes=Sum("bytes"))["bytes"] or 0
            # More than the file's size is allowed, so that a client may send a part again.
            if stored + part.bytes > TIMES_STORED * row.bytes:
                raise PartsWrong(
                    f"The parts of this upload would have more than {TIMES_STORED} times the {row.bytes} bytes that it "
                    "was created for. Complete it, or create another one.",
                    param="data",
                )
            if known.count() >= MAX_PARTS:
                raise PartsWrong(f"This upload has {MAX_PARTS} parts, and may have no more.", param="data")
            UploadPart.objects.using(connection.alias).create(
                id=part.id, upload=row, bytes=part.bytes, created_at=utc(part.created_at)
            )

    def _show(self, connection: BaseDatabaseWrapper, project: str, part: PartRecord) -> None:
        with transaction.atomic(using=connection.alias):
            self._open(connection, project, part.upload_id)
            if not UploadPart.objects.using(connection.alias).filter(pk=part.id).update(is_whole=True):
                raise UploadGone(part.upload_id)

    def _parts(
        self, connection: BaseDatabaseWrapper, project: str, upload_id: str, part_ids: Sequence[str]
    ) -> list[UploadPart]:
        """Return the parts of these ids, in this order, if they make the file.

        Raises `UploadGone`, `UploadClosed` and `PartsWrong`.
        """
        row = self._found(connection, project, upload_id)
        status = self._status(row)
        if status in (UploadStatus.CANCELLED, UploadStatus.EXPIRED):
            raise UploadClosed(status.value)
        known = {part.pk: part for part in UploadPart.objects.using(connection.alias).filter(upload=row, is_whole=True)}
        for place, part_id in enumerate(part_ids):
            if part_id not in known:
                message = f"This upload has no part with id '{part_id[:80]}' ('part_ids[{place}]')."
                raise PartsWrong(message, param=f"part_ids[{place}]")
        parts = [known[part_id] for part_id in part_ids]
        size = sum(part.bytes for part in parts)
        if size != row.bytes:
            message = f"The parts have {size} bytes, and the upload was created for {row.bytes}."
            raise PartsWrong(message, param="part_ids")
        return parts

    def _finish(
        self, connection: BaseDatabaseWrapper, project: str, upload_id: str, part_ids: Sequence[str], file_id: str
    ) -> UploadRecord:
        with transaction.atomic(using=connection.alias):
            row = self._found(connection, project, upload_id, locked=True)
            parts = self._parts(connection, project, upload_id, part_ids)
            if row.status == UploadStatus.COMPLETED:
                # Completed with other parts, or in another order: that is not a repetition of the same call.
                if [part.place for part in parts] != list(range(len(parts))):
                    raise UploadClosed(row.status)
                return self._record(connection, row)  # asked again by who has not heard the answer
            for place, part in enumerate(parts):
                part.file_id, part.place = file_id, place
            UploadPart.objects.using(connection.alias).bulk_update(parts, ["file_id", "place"], batch_size=ROWS_AT_ONCE)
            now = int(self._now())
            made = FileRecord(
                id=file_id,
                filename=row.filename,
                purpose=row.purpose,
                bytes=row.bytes,
                created_at=now,
                expires_at=None if row.file_seconds is None else now + row.file_seconds,
            )
            file = row_of(project, made)
            file.is_whole = True
            file.save(using=connection.alias, force_insert=True)
            row.status, row.file_id = UploadStatus.COMPLETED.value, file_id
            row.save(using=connection.alias, update_fields=["status", "file_id"])
            return self._record(connection, row)

    def _close(self, connection: BaseDatabaseWrapper, project: str, upload_id: str) -> UploadRecord:
        with transaction.atomic(using=connection.alias):
            row = self._found(connection, project, upload_id, locked=True)
            if row.status != UploadStatus.CANCELLED:
                # Cancelling twice is not an error; cancelling what is completed or expired is one.
                row = self._open(connection, project, upload_id)
                row.status = UploadStatus.CANCELLED.value
                row.save(using=connection.alias, update_fields=["status"])
            return self._record(connection, row)


async def purge_uploads(threads: DatabaseReaders, now: float) -> int:
    """Remove what is left of uploads that take no more parts; return of how many. A day later forget the uploads."""
    left = await threads.run(lambda db: _with_leftovers(db, now))
    for upload_id in left:
        await _removed(threads, upload=upload_id, place=None)
    await threads.run(lambda db: _forget(db, now))
    return len(left)


@removes(Upload)
def _remove_some_of(rows: "QuerySet[Upload]", ids: Sequence[str]) -> None:
    rows.update(status=UploadStatus.CANCELLED.value)
    # Parts that have a place are of a file, which stays.
    if _remove_some(connections[rows.db], upload=ids[0], place=None):
        rows.delete()


async def _removed(threads: DatabaseReaders, **which: object) -> None:
    await remove_all(threads, lambda db: _remove_some(db, **which))


def _remove_some(connection: BaseDatabaseWrapper, **which: object) -> bool:
    with transaction.atomic(using=connection.alias):
        return remove_parts(connection, **which)


def _with_leftovers(connection: BaseDatabaseWrapper, now: float) -> Sequence[str]:
    is_open = Q(upload__status=UploadStatus.PENDING.value, upload__expires_at__gt=utc(now))
    left = UploadPart.objects.using(connection.alias).filter(place=None).exclude(is_open)
    return list(left.values_list("upload_id", flat=True).distinct()[:MAX_PURGED])


def _forget(connection: BaseDatabaseWrapper, now: float) -> None:
    left = UploadPart.objects.using(connection.alias).filter(upload=OuterRef("pk"), place=None)
    over = Upload.objects.using(connection.alias).filter(~Exists(left), expires_at__lte=utc(now) - REMEMBERED)
    gone = list(over.values_list("pk", flat=True)[:MAX_PURGED])
    Upload.objects.using(connection.alias).filter(pk__in=gone).delete()
