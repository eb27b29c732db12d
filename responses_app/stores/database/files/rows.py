"""Rows of files, of uploads as far as they count as files, and of what is in them.

A file's content is in pieces: rows whose owner is a file or, of one that came in parts, a part of an upload. All of
this blocks; only `write_pieces` is for an event loop.
"""

import asyncio
import json
from base64 import b64encode
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Count, Q, QuerySet, Sum

from responses_app.kit.clock import unix, utc
from responses_app.kit.kept import removes, writes_lines
from responses_app.kit.sql import one_at_a_time
from responses_app.kit.threads import DatabaseReaders
from responses_app.models import FilePart, StoredFile, Upload, UploadPart
from responses_app.models.skills import SkillVersion
from responses_app.stores.files import FileRecord, FileSettings, FilesFull, FileUsage, UploadStatus

AT_ONCE = 32  # pieces that one transaction removes


async def write_pieces(
    threads: DatabaseReaders,
    owner: str,
    size: int,
    pieces: Iterable[bytes] | AsyncIterable[bytes],
    *,
    write: Callable[[BaseDatabaseWrapper, str, int, bytes], None],
) -> None:
    """Have each piece written, with its position, in a transaction of its own.

    Raises `ValueError` for pieces that are more or less than `size` bytes.
    """
    position = written = 0
    async for data in pieces if isinstance(pieces, AsyncIterable) else _read(pieces):
        await threads.run(lambda db, at=position, data=data: write(db, owner, at, data))
        position, written = position + 1, written + len(data)
    if written != size:
        raise ValueError(f"{owner} has {written} bytes, not {size}")


async def _read(pieces: Iterable[bytes]) -> AsyncIterator[bytes]:
    source = iter(pieces)
    # On a thread, since a piece may be read from a disk; `b""` ends the loop.
    while data := await asyncio.to_thread(next, source, b""):
        yield data


def owners_of(connection: BaseDatabaseWrapper, file_id: str, size: int) -> Sequence[tuple[str, int]]:
    """Return who owns the pieces of a file of this size, in their order, and how many bytes of it."""
    parts = UploadPart.objects.using(connection.alias).filter(file_id=file_id, place__isnull=False)
    # Without parts the file was sent in one go, and owns its pieces itself.
    return list(parts.order_by("place").values_list("pk", "bytes")) or [(file_id, size)]


def piece_of(connection: BaseDatabaseWrapper, owner: str, position: int) -> bytes | None:
    """Return a piece, None where there is none (any more)."""
    parts = FilePart.objects.using(connection.alias).filter(file_id=owner, position=position)
    data = parts.values_list("data", flat=True).first()
    return None if data is None else bytes(data)


def written_pieces(connection: BaseDatabaseWrapper, file_id: str, size: int, **whose: object) -> Iterator[str]:
    """Yield the content of a file, or of a version of a skill, as lines of JSON."""
    for owner, _ in owners_of(connection, file_id, size):
        rows = FilePart.objects.using(connection.alias).filter(file_id=owner).order_by("position")
        for data in rows.values_list("data", flat=True).iterator(chunk_size=1):
            yield json.dumps({**whose, "base64": b64encode(data).decode()})


@writes_lines(StoredFile)
def _lines(row: StoredFile, head: Mapping[str, Any], using: str) -> Iterator[str]:
    yield json.dumps(head)
    yield from written_pieces(connections[using], row.pk, row.bytes, content_of=row.pk)


def add_piece(connection: BaseDatabaseWrapper, owner: str, position: int, data: bytes) -> None:
    """Write a piece once, however often this is called; its owner is locked meanwhile."""
    rows = FilePart.objects.using(connection.alias)
    # The unique index over owner and position drops what an earlier attempt has written.
    rows.bulk_create([FilePart(file_id=owner, position=position, data=data)], ignore_conflicts=True)


def remove_some(connection: BaseDatabaseWrapper, owners: Sequence[str]) -> bool:
    """Remove a few of their pieces; return whether none is left."""
    rows = FilePart.objects.using(connection.alias)
    # One more than is removed tells whether any is left.
    some = list(rows.filter(file_id__in=owners).values_list("pk", flat=True)[: AT_ONCE + 1])
    rows.filter(pk__in=some[:AT_ONCE]).delete()
    return len(some) <= AT_ONCE


def remove_parts(connection: BaseDatabaseWrapper, **which: object) -> bool:
    """Remove a few pieces of those parts of uploads, or with the last the parts; return whether none is left."""
    rows = UploadPart.objects.using(connection.alias).filter(**which)
    parts = list(rows.order_by("pk").select_for_update().values_list("pk", flat=True)[:AT_ONCE])
    if parts and remove_some(connection, parts):
        UploadPart.objects.using(connection.alias).filter(pk__in=parts).delete()
    # Parts of which the last pieces went are gone now, but others may have been beyond `AT_ONCE`: one more call
    # tells.
    return not parts


CREATION_LOCK = 0x66696C65  # the space of the locks of projects
UNFINISHED = timedelta(hours=1)  # after that, a hidden file is nobody's: an upload is written in seconds
MAX_PURGED = 1000  # files that one purge removes


def record_of(row: StoredFile) -> FileRecord:
    """Return what is known of a file."""
    return FileRecord(
        id=row.pk,
        filename=row.filename,
        purpose=row.purpose,
        bytes=row.bytes,
        created_at=unix(row.created_at),
        expires_at=None if row.expires_at is None else unix(row.expires_at),
    )


def row_of(project: str, record: FileRecord) -> StoredFile:
    """Return the row of a new file, which is hidden."""
    return StoredFile(
        id=record.id,
        project=project,
        purpose=record.purpose,
        filename=record.filename,
        bytes=record.bytes,
        created_at=utc(record.created_at),
        expires_at=None if record.expires_at is None else utc(record.expires_at),
    )


def unexpired_files(connection: BaseDatabaseWrapper, project: str, now: float) -> "QuerySet[StoredFile]":
    """Return the files of a project whose time is not over, hidden ones too."""
    rows = StoredFile.objects.using(connection.alias).filter(project=project)
    return rows.filter(Q(expires_at=None) | Q(expires_at__gt=utc(now)))


def open_uploads(connection: BaseDatabaseWrapper, now: float) -> "QuerySet[Upload]":
    """Return the uploads that take parts."""
    return Upload.objects.using(connection.alias).filter(status=UploadStatus.PENDING, expires_at__gt=utc(now))


def usage_of(connection: BaseDatabaseWrapper, project: str, now: float) -> FileUsage:
    """Return how much a project keeps."""
    files = unexpired_files(connection, project, now).aggregate(number=Count("pk"), bytes=Sum("bytes"))
    uploads = open_uploads(connection, now).filter(project=project).aggregate(number=Count("pk"), bytes=Sum("bytes"))
    skills = SkillVersion.objects.using(connection.alias).filter(project=project).aggregate(bytes=Sum("bytes"))
    size = sum(each["bytes"] or 0 for each in (files, uploads, skills))
    return FileUsage(files["number"] + uploads["number"], size, uploads["number"])


def check_limits(
    connection: BaseDatabaseWrapper, settings: FileSettings, project: str, size: int, now: float
) -> FileUsage:
    """Raise `FilesFull` where a project may not keep another file of this size; else return what it keeps.

    In the transaction that keeps it: until its end nobody else keeps a file of this project.
    """
    if not (settings.files_max_entries or settings.files_max_bytes or settings.uploads_max_open):
        return FileUsage(0, 0)
    one_at_a_time(connection, CREATION_LOCK, project)
    used = usage_of(connection, project, now)
    if 0 < settings.files_max_entries <= used.files:
        raise FilesFull(f"This project has {used.files} files, and may have no more (FILES_MAX_ENTRIES)")
    _check_bytes(settings, used, size)
    return used


def check_room(connection: BaseDatabaseWrapper, settings: FileSettings, project: str, size: int, now: float) -> None:
    """Raise `FilesFull` where a project may not keep so many bytes more; as `check_limits`, for what is no file."""
    if settings.files_max_bytes:
        one_at_a_time(connection, CREATION_LOCK, project)
        _check_bytes(settings, usage_of(connection, project, now), size)


def _check_bytes(settings: FileSettings, used: FileUsage, size: int) -> None:
    if 0 < settings.files_max_bytes < used.bytes + size:
        raise FilesFull(
            f"The files of this project have {used.bytes} bytes, and with this one they would have more than "
            f"{settings.files_max_bytes} (FILES_MAX_BYTES)"
        )


def files_to_purge(connection: BaseDatabaseWrapper, now: float) -> Sequence[str]:
    """Return files that have expired, and what uploads that were broken off have left."""
    at, rows = utc(now), StoredFile.objects.using(connection.alias)
    # `isnull` is said although `lte` implies it: it is the condition of the partial index.
    expired = rows.filter(expires_at__isnull=False, expires_at__lte=at)
    left = rows.filter(is_whole=False, created_at__lte=at - UNFINISHED)
    return [file_id for some in (expired, left) for file_id in some.values_list("pk", flat=True)[:MAX_PURGED]]


def remove_files(using: str, file_ids: Iterable[str]) -> None:
    """Remove files at once, in small transactions."""
    for file_id in file_ids:
        StoredFile.objects.using(using).filter(pk=file_id).update(is_whole=False)
        while not remove_some_of(connections[using], file_id):
            pass


def remove_some_of(connection: BaseDatabaseWrapper, file_id: str) -> bool:
    """Remove a few pieces of a file, or, with the last, the file; return whether nothing is left of it."""
    with transaction.atomic(using=connection.alias):
        row = locked_file(connection, file_id)
        if not (remove_some(connection, [file_id]) and remove_parts(connection, file_id=file_id)):
            return False
        if row is not None:
            row.delete(using=connection.alias)
        return True


def locked_file(connection: BaseDatabaseWrapper, file_id: str) -> StoredFile | None:
    """Return a file that nobody else changes until this transaction ends."""
    rows = StoredFile.objects.using(connection.alias).select_for_update().filter(pk=file_id)
    return next(iter(rows), None)


@removes(StoredFile)
def _remove_some_of(rows: "QuerySet[StoredFile]", ids: Sequence[str]) -> None:
    rows.update(is_whole=False)
    remove_some_of(connections[rows.db], ids[0])
