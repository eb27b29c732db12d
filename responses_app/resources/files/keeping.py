"""How much a project keeps of files, and how files and uploads are removed and written out. All of this blocks.

The pieces of a file that came in parts are the parts'.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Count, Q, QuerySet, Sum

from responses_app.kit.clock import utc
from responses_app.kit.kept import removes, writes_lines
from responses_app.kit.pieces import AT_ONCE, MAX_PURGED, UNFINISHED, lines_of_pieces, locked, remove_pieces
from responses_app.kit.sql import one_at_a_time
from responses_app.resources.files.fields import FileSettings, FilesFull, FileUsage
from responses_app.resources.files.model import CANCELLED, PENDING, StoredFile, Upload, UploadPart
from responses_app.resources.skills.model import SkillVersion

CREATION_LOCK = 0x66696C65  # the space of the locks of projects


def usage_of(db: BaseDatabaseWrapper, project: str, now: float) -> FileUsage:
    """Return how much a project keeps."""
    files = unexpired_files(db, project, now).aggregate(number=Count("pk"), bytes=Sum("bytes"))
    is_open = {"project": project, "status": PENDING, "expires_at__gt": utc(now)}
    uploads = Upload.objects.using(db.alias).filter(**is_open).aggregate(number=Count("pk"), bytes=Sum("bytes"))
    skills = SkillVersion.objects.using(db.alias).filter(project=project).aggregate(bytes=Sum("bytes"))
    size = sum(each["bytes"] or 0 for each in (files, uploads, skills))
    return FileUsage(files["number"] + uploads["number"], size, uploads["number"])


def unexpired_files(db: BaseDatabaseWrapper, project: str, now: float) -> "QuerySet[StoredFile]":
    """Return the files of a project whose time is not over, hidden ones too."""
    rows = StoredFile.objects.using(db.alias).filter(project=project)
    return rows.filter(Q(expires_at=None) | Q(expires_at__gt=utc(now)))


def check_limits(db: BaseDatabaseWrapper, settings: FileSettings, project: str, size: int, now: float) -> FileUsage:
    """Raise `FilesFull` where a project may not keep another file of this size; else return what it keeps.

    In the transaction that keeps it: until its end nobody else keeps a file of this project.
    """
    if not (settings.files_max_entries or settings.files_max_bytes or settings.uploads_max_open):
        return FileUsage(0, 0)
    one_at_a_time(db, CREATION_LOCK, project)
    used = usage_of(db, project, now)
    if 0 < settings.files_max_entries <= used.files:
        raise FilesFull(f"This project has {used.files} files, and may have no more (FILES_MAX_ENTRIES)")
    _check_bytes(settings, used, size)
    return used


def check_room(db: BaseDatabaseWrapper, settings: FileSettings, project: str, size: int, now: float) -> None:
    """Raise `FilesFull` where a project may not keep so many bytes more; as `check_limits`, for what is no file."""
    if settings.files_max_bytes:
        one_at_a_time(db, CREATION_LOCK, project)
        _check_bytes(settings, usage_of(db, project, now), size)


def _check_bytes(settings: FileSettings, used: FileUsage, size: int) -> None:
    if 0 < settings.files_max_bytes < used.bytes + size:
        raise FilesFull(
            f"The files of this project have {used.bytes} bytes, and with this one they would have more than "
            f"{settings.files_max_bytes} (FILES_MAX_BYTES)"
        )


def owners_of(db: BaseDatabaseWrapper, file: StoredFile) -> Sequence[tuple[str, int]]:
    """Return who owns the pieces of a file, in their order, and how many bytes of it."""
    parts = UploadPart.objects.using(db.alias).filter(file_id=file.pk, place__isnull=False)
    # Without parts the file was sent in one go, and owns its pieces itself.
    return list(parts.order_by("place").values_list("pk", "bytes")) or [(file.pk, file.bytes)]


@writes_lines(StoredFile)
def _lines(row: StoredFile, head: Mapping[str, Any], using: str) -> Iterator[str]:
    yield json.dumps(head)
    owners = [owner for owner, _ in owners_of(connections[using], row)]
    yield from lines_of_pieces(using, owners, content_of=row.pk)


def files_to_purge(db: BaseDatabaseWrapper, now: float) -> Sequence[str]:
    """Return files that have expired, and what uploads that were broken off have left."""
    at, rows = utc(now), StoredFile.objects.using(db.alias)
    # `isnull` is said although `lte` implies it: it is the condition of the partial index.
    expired = rows.filter(expires_at__isnull=False, expires_at__lte=at)
    left = rows.filter(is_whole=False, created_at__lte=at - UNFINISHED)
    return [file_id for some in (expired, left) for file_id in some.values_list("pk", flat=True)[:MAX_PURGED]]


def remove_files(using: str, file_ids: Iterable[str]) -> None:
    """Remove files at once, in small transactions."""
    for file_id in file_ids:
        StoredFile.objects.using(using).filter(pk=file_id).update(is_whole=False)
        while not remove_some_of_file(connections[using], file_id):
            pass


def remove_some_of_file(db: BaseDatabaseWrapper, file_id: str) -> bool:
    """Remove a few pieces of a file, or, with the last, the file; return whether nothing is left of it."""
    with transaction.atomic(using=db.alias):
        row = locked(db, StoredFile, file_id)
        if not (remove_pieces(db, [file_id]) and remove_parts(db, file_id=file_id)):
            return False
        if row is not None:
            row.delete(using=db.alias)
        return True


def remove_parts(db: BaseDatabaseWrapper, **which: object) -> bool:
    """Remove a few pieces of those parts of uploads, or with the last the parts; return whether none is left."""
    with transaction.atomic(using=db.alias):
        rows = UploadPart.objects.using(db.alias)
        parts = list(rows.filter(**which).order_by("pk").select_for_update().values_list("pk", flat=True)[:AT_ONCE])
        if parts and remove_pieces(db, parts):
            rows.filter(pk__in=parts).delete()
        # Parts of which the last pieces went are gone now, but others may have been beyond `AT_ONCE`: one more call
        # tells.
        return not parts


@removes(StoredFile)
def _remove_some_of_file(rows: "QuerySet[StoredFile]", ids: Sequence[str]) -> None:
    rows.update(is_whole=False)
    remove_some_of_file(connections[rows.db], ids[0])


@removes(Upload)
def _remove_some_of_upload(rows: "QuerySet[Upload]", ids: Sequence[str]) -> None:
    rows.update(status=CANCELLED)
    # Parts that have a place are of a file, which stays.
    if remove_parts(connections[rows.db], upload=ids[0], place=None):
        rows.delete()
