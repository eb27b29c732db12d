"""Rows of files, and of uploads as far as they count as files. All of this blocks.

The pieces of a file that came in parts are the parts'. See `kit.pieces`.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Count, Q, QuerySet, Sum

from responses_app.kit.clock import unix, utc
from responses_app.kit.kept import removes, writes_lines
from responses_app.kit.pieces import AT_ONCE, MAX_PURGED, UNFINISHED, lines_of_pieces, locked, remove_pieces
from responses_app.kit.sql import one_at_a_time
from responses_app.models import StoredFile, Upload, UploadPart
from responses_app.resources.skills.model import SkillVersion
from responses_app.stores.files import FileRecord, FileSettings, FilesFull, FileUsage, UploadStatus


def owners_of(connection: BaseDatabaseWrapper, file_id: str, size: int) -> Sequence[tuple[str, int]]:
    """Return who owns the pieces of a file of this size, in their order, and how many bytes of it."""
    parts = UploadPart.objects.using(connection.alias).filter(file_id=file_id, place__isnull=False)
    # Without parts the file was sent in one go, and owns its pieces itself.
    return list(parts.order_by("place").values_list("pk", "bytes")) or [(file_id, size)]


@writes_lines(StoredFile)
def _lines(row: StoredFile, head: Mapping[str, Any], using: str) -> Iterator[str]:
    yield json.dumps(head)
    owners = [owner for owner, _ in owners_of(connections[using], row.pk, row.bytes)]
    yield from lines_of_pieces(using, owners, content_of=row.pk)


def remove_parts(connection: BaseDatabaseWrapper, **which: object) -> bool:
    """Remove a few pieces of those parts of uploads, or with the last the parts; return whether none is left."""
    rows = UploadPart.objects.using(connection.alias).filter(**which)
    parts = list(rows.order_by("pk").select_for_update().values_list("pk", flat=True)[:AT_ONCE])
    if parts and remove_pieces(connection, parts):
        UploadPart.objects.using(connection.alias).filter(pk__in=parts).delete()
    # Parts of which the last pieces went are gone now, but others may have been beyond `AT_ONCE`: one more call
    # tells.
    return not parts


CREATION_LOCK = 0x66696C65  # the space of the locks of projects


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
        row = locked(connection, StoredFile, file_id)
        if not (remove_pieces(connection, [file_id]) and remove_parts(connection, file_id=file_id)):
            return False
        if row is not None:
            row.delete(using=connection.alias)
        return True


@removes(StoredFile)
def _remove_some_of(rows: "QuerySet[StoredFile]", ids: Sequence[str]) -> None:
    rows.update(is_whole=False)
    remove_some_of(connections[rows.db], ids[0])
