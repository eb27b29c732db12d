"""`Files` and `Uploads`, in Django's database, SQLite or PostgreSQL, so that every host finds them.

Files and parts are written, and go, as `kit.pieces` says. To complete an upload changes no piece: its parts get their
places in the file, in one transaction.
"""

import asyncio
import hashlib
import logging
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Sequence
from datetime import timedelta
from functools import partial

from django.db.models import Exists, OuterRef, Q, QuerySet, Sum

from responses_app.kit.clock import utc
from responses_app.kit.errors import StoreError
from responses_app.kit.pieces import MAX_PURGED, read_pieces, remove_all, write_pieces
from responses_app.kit.sql import in_parts
from responses_app.kit.table import Store, Table, can_be_known, part_of, reads, writes
from responses_app.resources.files import fields, keeping
from responses_app.resources.files.fields import FileGone, FileSettings, FilesFull, FileUsage, NewFile
from responses_app.resources.files.model import CANCELLED, COMPLETED, EXPIRED, PENDING, StoredFile, Upload, UploadPart

logger = logging.getLogger("respsite.stores")

TIMES_STORED = 2  # the parts of an upload may have its size so many times: one whose answer was lost is sent again
REMEMBERED = timedelta(days=1)  # how long an upload whose time is over says so, instead of being unknown
ROWS_AT_ONCE = 500  # parts that one statement gives their places


class Files(Table[StoredFile, FileSettings]):
    """The files of projects. A file is found from the moment it is whole until its `expires_at`.

    Every method raises `StoreError`.
    """

    model = StoredFile
    unlimited = fields.UNLIMITED

    async def create(
        self,
        project: str,
        file_id: str,
        file: NewFile,
        pieces: Iterable[bytes] | AsyncIterable[bytes],
        *,
        over_limits: bool = False,
    ) -> StoredFile:
        """Keep a file whose content is `file.bytes` long, in `pieces` of up to `PIECE_BYTES`, read on a thread.

        Where this raises or is cancelled, nothing is kept. `over_limits`: it is kept however many there are, as work
        that was taken on is not lost for that; it counts as any other.
        Raises `FilesFull`, and `ValueError` for pieces that are more or less than that.
        """
        row = StoredFile(id=file_id, project=project, **file.columns(int(self._now())))
        await self._reserve(row, over_limits)
        try:
            await write_pieces(self._threads, row, pieces, gone=FileGone(file_id))
            await self._show(row)
        # A cancellation, too: the client has broken off its upload.
        except BaseException:
            await asyncio.shield(self._give_up(file_id))
            raise
        return row

    async def some(self, project: str, file_ids: Sequence[str]) -> Sequence[StoredFile]:
        """Return those of these files that there are, in the order of their ids."""
        ids = sorted({file_id for file_id in file_ids if can_be_known(file_id)})
        return await self._some(project, ids) if ids else []

    @reads
    def _some(self, project: str, ids: Sequence[str]) -> list[StoredFile]:
        return [row for few in in_parts(ids) for row in self.rows(project).filter(pk__in=few).order_by("pk")]

    @reads
    def listed(
        self, project: str, purpose: str | None, *, after: str | None, descending: bool, limit: int
    ) -> Sequence[StoredFile]:
        """Return up to `limit` files behind the file `after`, which may be gone."""
        rows = self.rows(project) if purpose is None else self.rows(project).filter(purpose=purpose)
        return part_of(rows, after=after, descending=descending, limit=limit)

    async def pieces(self, project: str, file_id: str) -> AsyncIterator[bytes]:
        """Yield the content of a file, a piece at a time. Raises `FileGone`, also at the start for one unknown."""
        row = await self.get(project, file_id)
        if row is None:
            raise FileGone(file_id)
        for owner, size in await self._threads.run(lambda db: keeping.owners_of(db, row)):
            async for piece in read_pieces(self._threads, owner, size, gone=FileGone(file_id)):
                yield piece

    async def content(self, project: str, file_id: str, *, max_bytes: int) -> bytes | None:
        """Return the content of a file as a whole, None for one larger than `max_bytes`. Raises `FileGone`."""
        parts, size = [], 0
        async for piece in self.pieces(project, file_id):
            parts.append(piece)
            size += len(piece)
            if size > max_bytes:
                return None
        return b"".join(parts)

    async def delete(self, project: str, file_id: str) -> bool:
        """Forget a file; return whether there was one."""
        if not await self._hide(project, file_id):
            return False
        await asyncio.shield(self._give_up(file_id))
        return True

    @reads
    def usage(self, project: str) -> FileUsage:
        """Return how much a project keeps."""
        return keeping.usage_of(self._db, project, self._now())

    async def purge(self) -> int:
        """Remove files that have expired, and what uploads that were broken off have left; return how many."""
        gone = await self._threads.run(lambda db: keeping.files_to_purge(db, self._now()))
        for file_id in gone:
            await self._remove(file_id)
        return len(gone)

    async def _give_up(self, file_id: str) -> None:
        """Remove a hidden file; later, where the database is away."""
        try:
            await self._remove(file_id)
        except StoreError as problem:
            logger.warning("%s is removed later: %s", file_id, problem)

    async def _remove(self, file_id: str) -> None:
        await remove_all(self._threads, partial(keeping.remove_some_of_file, file_id=file_id))

    @writes
    def _reserve(self, row: StoredFile, over_limits: bool) -> None:
        if StoredFile.objects.using(self._using).filter(pk=row.pk).exists():
            return  # an earlier attempt was committed after all
        if not over_limits:
            keeping.check_limits(self._db, self._settings, row.project, row.bytes, self._now())
        row.save(using=self._using, force_insert=True)

    @reads
    def _show(self, row: StoredFile) -> None:
        if not StoredFile.objects.using(self._using).filter(pk=row.pk).update(is_whole=True):
            raise FileGone(row.pk)

    @reads
    def _hide(self, project: str, file_id: str) -> bool:
        """Have nobody find a file any more, however long its removal takes; return whether somebody did."""
        return can_be_known(file_id) and bool(self.rows(project).filter(pk=file_id).update(is_whole=False))

    def rows(self, project: str) -> "QuerySet[StoredFile]":
        """Return the files of a project that are found; for methods that run on a thread."""
        return keeping.unexpired_files(self._db, project, self._now()).filter(is_whole=True, **self._mine(project))


class Uploads(Store[FileSettings]):
    """The uploads of projects, in the limits of their files.

    Every method raises `StoreError`, and all but `create` and `purge` raise `UploadGone`.
    """

    unlimited = fields.UNLIMITED

    @writes
    def create(self, project: str, upload_id: str, file: NewFile) -> Upload:
        """Begin an upload. Raises `FilesFull`."""
        rows = Upload.objects.using(self._using)
        if (earlier := rows.filter(pk=upload_id).first()) is not None:
            return self._as_it_is(earlier)  # an earlier attempt was committed after all
        used = keeping.check_limits(self._db, self._settings, project, file.bytes, self._now())
        if 0 < self._settings.uploads_max_open <= used.uploads:
            raise FilesFull(
                f"This project has {used.uploads} uploads open, and may have no more (UPLOADS_MAX_OPEN). Complete "
                "or cancel some, or wait: each is open for an hour"
            )
        columns = file.upload_columns(int(self._now()))
        return self._as_it_is(rows.create(id=upload_id, project=project, status=PENDING, **columns))

    @reads
    def get(self, project: str, upload_id: str) -> Upload:
        """Return an upload."""
        return self._known(project, upload_id)

    async def add(self, project: str, upload_id: str, part_id: str, size: int, pieces: Iterable[bytes]) -> UploadPart:
        """Keep a part whose content is `size` bytes long, in `pieces` of up to `PIECE_BYTES`, read on a thread.

        Where this raises or is cancelled, nothing is kept. Raises `UploadClosed`, and `PartsWrong` for too much.
        """
        row = UploadPart(id=part_id, upload_id=upload_id, bytes=size, created_at=utc(int(self._now())))
        await self._reserve(project, row)
        try:
            await write_pieces(self._threads, row, pieces, gone=fields.UploadGone(upload_id))
            await self._show(project, row)
        except BaseException:
            await asyncio.shield(self._remove_parts(pk=part_id))
            raise
        return row

    async def complete(
        self, project: str, upload_id: str, part_ids: Sequence[str], *, file_id: str, md5: str | None
    ) -> Upload:
        """Make the file of these parts, in this order, under this id; a complete that was answered is answered again.

        Raises `PartsWrong` and `UploadClosed`.
        """
        # Before the checksum, which reads everything: what is wrong with the ids costs nothing. `_finish` looks
        # again.
        parts = await self._parts_in_order(project, upload_id, part_ids)
        if md5 is not None and await self._md5(parts) != md5.lower():
            raise fields.PartsWrong("The parts have another MD5 checksum than 'md5' says.", param="md5")
        done = await self._finish(project, upload_id, part_ids, file_id)
        # Parts without a place are not of the file.
        await asyncio.shield(self._remove_parts(upload=upload_id, place=None))
        return done

    async def cancel(self, project: str, upload_id: str) -> Upload:
        """Give an upload up, with its parts; again is as good as once. Raises `UploadClosed`."""
        cancelled = await self._close(project, upload_id)
        await asyncio.shield(self._remove_parts(upload=upload_id, place=None))
        return cancelled

    async def purge(self) -> int:
        """Remove what is left of uploads that take no more parts; return of how many. A day later forget the uploads.

        These are uploads that were cancelled or have expired, and parts that are not of the file.
        """
        left = await self._with_leftovers()
        for upload_id in left:
            await remove_all(self._threads, partial(keeping.remove_parts, upload=upload_id, place=None))
        await self._forget()
        return len(left)

    async def _md5(self, parts: Sequence[UploadPart]) -> str:
        """Return the checksum of parts. Raises `UploadGone` where one goes meanwhile."""
        digest = hashlib.md5(usedforsecurity=False)
        for part in parts:
            async for piece in read_pieces(self._threads, part.pk, part.bytes, gone=fields.UploadGone(part.upload_id)):
                await asyncio.to_thread(digest.update, piece)
        return digest.hexdigest()

    async def _remove_parts(self, **which: object) -> None:
        """Remove parts; later, where the database is away."""
        try:
            await remove_all(self._threads, partial(keeping.remove_parts, **which))
        except StoreError as problem:
            logger.warning("parts of an upload are removed later: %s", problem)

    @writes
    def _reserve(self, project: str, part: UploadPart) -> None:
        """Keep the row of a part, hidden. Raises `UploadGone`, `UploadClosed` and `PartsWrong`."""
        row = self._open(project, part.upload_id)
        known = UploadPart.objects.using(self._using).filter(upload=row)
        if known.filter(pk=part.pk).exists():
            return  # an earlier attempt was committed after all
        stored = known.aggregate(bytes=Sum("bytes"))["bytes"] or 0
        # More than the file's size is allowed, so that a client may send a part again.
        if stored + part.bytes > TIMES_STORED * row.bytes:
            raise fields.PartsWrong(
                f"The parts of this upload would have more than {TIMES_STORED} times the {row.bytes} bytes that it "
                "was created for. Complete it, or create another one.",
                param="data",
            )
        if known.count() >= fields.MAX_PARTS:
            raise fields.PartsWrong(f"This upload has {fields.MAX_PARTS} parts, and may have no more.", param="data")
        part.save(using=self._using, force_insert=True)

    @writes
    def _show(self, project: str, part: UploadPart) -> None:
        self._open(project, part.upload_id)
        if not UploadPart.objects.using(self._using).filter(pk=part.pk).update(is_whole=True):
            raise fields.UploadGone(part.upload_id)

    @reads
    def _parts_in_order(self, project: str, upload_id: str, part_ids: Sequence[str]) -> Sequence[UploadPart]:
        return self._parts(self._known(project, upload_id), part_ids)

    @writes
    def _finish(self, project: str, upload_id: str, part_ids: Sequence[str], file_id: str) -> Upload:
        row = self._known(project, upload_id, locked=True)
        parts = self._parts(row, part_ids)
        if row.status == COMPLETED:
            # Completed with other parts, or in another order: that is not a repetition of the same call.
            if [part.place for part in parts] != list(range(len(parts))):
                raise fields.UploadClosed(row.status)
            return row  # for one who has not heard the answer
        for place, part in enumerate(parts):
            part.file_id, part.place = file_id, place
        rows = UploadPart.objects.using(self._using)
        rows.bulk_update(parts, ["file_id", "place"], batch_size=ROWS_AT_ONCE)
        columns = NewFile.of_upload(row).columns(int(self._now()))
        row.file = StoredFile(id=file_id, project=project, is_whole=True, **columns)
        row.file.save(using=self._using, force_insert=True)
        row.status, row.file_id = COMPLETED, file_id
        row.save(using=self._using, update_fields=["status", "file_id"])
        return row

    @writes
    def _close(self, project: str, upload_id: str) -> Upload:
        row = self._known(project, upload_id, locked=True)
        # Cancelling twice is not an error; cancelling what is completed or expired is one.
        if row.status not in (PENDING, CANCELLED):
            raise fields.UploadClosed(row.status)
        row.status = CANCELLED
        row.save(using=self._using, update_fields=["status"])
        return row

    @reads
    def _with_leftovers(self) -> Sequence[str]:
        is_open = Q(upload__status=PENDING, upload__expires_at__gt=self._at())
        left = UploadPart.objects.using(self._using).filter(place=None).exclude(is_open)
        return list(left.values_list("upload_id", flat=True).distinct()[:MAX_PURGED])

    @reads
    def _forget(self) -> None:
        rows = Upload.objects.using(self._using)
        left = UploadPart.objects.using(self._using).filter(upload=OuterRef("pk"), place=None)
        over = rows.filter(~Exists(left), expires_at__lte=self._at() - REMEMBERED)
        rows.filter(pk__in=list(over.values_list("pk", flat=True)[:MAX_PURGED])).delete()

    # What follows runs on a thread.

    def _known(self, project: str, upload_id: str, *, locked: bool = False) -> Upload:
        """Return an upload, `locked` until the transaction ends. Raises `UploadGone`."""
        rows = Upload.objects.using(self._using).filter(**self._mine(project))
        rows = rows.select_for_update() if locked else rows
        row = rows.filter(pk=upload_id).first() if can_be_known(upload_id) else None
        if row is None:
            raise fields.UploadGone(upload_id)
        return self._as_it_is(row)

    def _as_it_is(self, row: Upload) -> Upload:
        """Return an upload with its file, if there is one, and as expired if its time is over."""
        files = StoredFile.objects.using(self._using)
        row.file = files.filter(pk=row.file_id, is_whole=True).first() if row.file_id else None
        if row.status == PENDING and row.expires_at <= self._at():
            row.status = EXPIRED
        return row

    def _open(self, project: str, upload_id: str) -> Upload:
        """Return a pending upload, locked. Raises `UploadGone` and `UploadClosed`."""
        row = self._known(project, upload_id, locked=True)
        if row.status != PENDING:
            raise fields.UploadClosed(row.status)
        return row

    def _parts(self, row: Upload, part_ids: Sequence[str]) -> list[UploadPart]:
        """Return the parts of these ids, in this order, if they make the file. Raises `UploadClosed`, `PartsWrong`."""
        if row.status in (CANCELLED, EXPIRED):
            raise fields.UploadClosed(row.status)
        known = {part.pk: part for part in UploadPart.objects.using(self._using).filter(upload=row, is_whole=True)}
        for place, part_id in enumerate(part_ids):
            if part_id not in known:
                message = f"This upload has no part with id '{part_id[:80]}' ('part_ids[{place}]')."
                raise fields.PartsWrong(message, param=f"part_ids[{place}]")
        parts = [known[part_id] for part_id in part_ids]
        size = sum(part.bytes for part in parts)
        if size != row.bytes:
            message = f"The parts have {size} bytes, and the upload was created for {row.bytes}."
            raise fields.PartsWrong(message, param="part_ids")
        return parts
