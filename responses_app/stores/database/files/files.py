"""`DatabaseFileStore`: files in Django's database, SQLite or PostgreSQL, so that every host finds them.

A file is written, and goes, as `kit.pieces` says.
"""

import asyncio
import logging
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Sequence

from django.db import transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import QuerySet

from responses_app.kit.errors import StoreError
from responses_app.kit.pieces import read_pieces, remove_all, write_pieces
from responses_app.kit.sql import in_parts
from responses_app.kit.table import Store, can_be_known, part_of
from responses_app.models import StoredFile
from responses_app.stores.database.files.rows import (
    check_limits,
    files_to_purge,
    owners_of,
    record_of,
    remove_some_of,
    row_of,
    unexpired_files,
    usage_of,
)
from responses_app.stores.database.files.uploads import purge_uploads
from responses_app.stores.files import UNLIMITED, BaseFileStore, FileGone, FileRecord, FileSettings, FileUsage

logger = logging.getLogger("respsite.stores")


class DatabaseFileStore(Store[FileSettings], BaseFileStore):
    """Keeps files in the database `using`; `timeout` bounds, in seconds, whatever waits for it. `now` is Unix time."""

    unlimited = UNLIMITED

    async def create(
        self,
        project: str,
        record: FileRecord,
        pieces: Iterable[bytes] | AsyncIterable[bytes],
        *,
        over_limits: bool = False,
    ) -> None:
        await self._threads.run(lambda db: self._reserve(db, project, record, over_limits))
        try:
            await write_pieces(self._threads, row_of(project, record), pieces, gone=FileGone(record.id))
            await self._threads.run(lambda db: _show(db, record.id))
        # A cancellation, too: the client has broken off its upload.
        except BaseException:
            await asyncio.shield(self._give_up(record.id))
            raise

    async def get(self, project: str, file_id: str) -> FileRecord | None:
        if not can_be_known(file_id):
            return None

        def read(connection: BaseDatabaseWrapper) -> FileRecord | None:
            row = self._known(connection, project).filter(pk=file_id).first()
            return None if row is None else record_of(row)

        return await self._threads.run(read)

    async def some(self, project: str, file_ids: Sequence[str]) -> Sequence[FileRecord]:
        ids = sorted({file_id for file_id in file_ids if can_be_known(file_id)})

        def read(connection: BaseDatabaseWrapper) -> list[FileRecord]:
            known = self._known(connection, project)
            return [record_of(row) for some in in_parts(ids) for row in known.filter(pk__in=some).order_by("pk")]

        return await self._threads.run(read) if ids else []

    async def listed(
        self, project: str, *, purpose: str | None, after: str | None, descending: bool, limit: int
    ) -> Sequence[FileRecord]:
        def read(connection: BaseDatabaseWrapper) -> list[FileRecord]:
            known = self._known(connection, project)
            rows = known if purpose is None else known.filter(purpose=purpose)
            return [record_of(row) for row in part_of(rows, after=after, descending=descending, limit=limit)]

        return await self._threads.run(read)

    async def pieces(self, project: str, file_id: str) -> AsyncIterator[bytes]:
        record = await self.get(project, file_id)
        if record is None:
            raise FileGone(file_id)
        for owner, owned in await self._threads.run(lambda db: owners_of(db, file_id, record.bytes)):
            async for piece in read_pieces(self._threads, owner, owned, gone=FileGone(file_id)):
                yield piece

    async def delete(self, project: str, file_id: str) -> bool:
        if not can_be_known(file_id):
            return False

        def hide(connection: BaseDatabaseWrapper) -> bool:
            # Hidden in one statement: from here on nobody finds it, however long its removal takes.
            return bool(self._known(connection, project).filter(pk=file_id).update(is_whole=False))

        if not await self._threads.run(hide):
            return False
        await asyncio.shield(self._give_up(file_id))
        return True

    async def usage(self, project: str) -> FileUsage:
        return await self._threads.run(lambda db: usage_of(db, project, self._now()))

    async def purge(self) -> int:
        gone = await self._threads.run(lambda db: files_to_purge(db, self._now()))
        for file_id in gone:
            await self._remove(file_id)
        return len(gone) + await purge_uploads(self._threads, self._now())

    async def _give_up(self, file_id: str) -> None:
        """Remove a hidden file; later, where the database is away."""
        try:
            await self._remove(file_id)
        except StoreError as problem:
            logger.warning("%s is removed later: %s", file_id, problem)

    async def _remove(self, file_id: str) -> None:
        await remove_all(self._threads, lambda db: remove_some_of(db, file_id))

    # What follows runs on a thread.

    def _known(self, connection: BaseDatabaseWrapper, project: str) -> "QuerySet[StoredFile]":
        return unexpired_files(connection, project, self._now()).filter(is_whole=True, **self._mine(project))

    def _reserve(self, connection: BaseDatabaseWrapper, project: str, record: FileRecord, over_limits: bool) -> None:
        with transaction.atomic(using=connection.alias):
            if StoredFile.objects.using(connection.alias).filter(pk=record.id).exists():
                return  # an earlier attempt was committed after all
            if not over_limits:
                check_limits(connection, self._settings, project, record.bytes, self._now())
            row_of(project, record).save(using=connection.alias, force_insert=True)


def _show(connection: BaseDatabaseWrapper, file_id: str) -> None:
    if not StoredFile.objects.using(connection.alias).filter(pk=file_id).update(is_whole=True):
        raise FileGone(file_id)
