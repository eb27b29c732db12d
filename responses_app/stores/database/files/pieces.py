"""What is in files, in pieces: rows whose owner is a file or, of one that came in parts, a part of an upload.

Only `write_pieces` is for an event loop.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence

from django.db.backends.base.base import BaseDatabaseWrapper

from responses_app.models import FilePart, UploadPart
from responses_app.stores.database.readers import DatabaseReaders

AT_ONCE = 32  # pieces that one transaction removes


async def write_pieces(
    threads: DatabaseReaders,
    owner: str,
    size: int,
    pieces: Iterable[bytes],
    *,
    write: Callable[[BaseDatabaseWrapper, str, int, bytes], None],
) -> None:
    """Have each piece written, with its position, in a transaction of its own.

    Raises `ValueError` for pieces that are more or less than `size` bytes.
    """
    source, position, written = iter(pieces), 0, 0
    while data := await asyncio.to_thread(next, source, b""):
        await threads.run(lambda db, at=position, data=data: write(db, owner, at, data))
        position, written = position + 1, written + len(data)
    if written != size:
        raise ValueError(f"{owner} has {written} bytes, not {size}")


def owners_of(connection: BaseDatabaseWrapper, file_id: str, size: int) -> Sequence[tuple[str, int]]:
    """Return who owns the pieces of a file of this size, in their order, and how many bytes of it."""
    parts = UploadPart.objects.using(connection.alias).filter(file_id=file_id, place__isnull=False)
    return list(parts.order_by("place").values_list("pk", "bytes")) or [(file_id, size)]


def piece_of(connection: BaseDatabaseWrapper, owner: str, position: int) -> bytes | None:
    """Return a piece, None where there is none (any more)."""
    parts = FilePart.objects.using(connection.alias).filter(file_id=owner, position=position)
    data = parts.values_list("data", flat=True).first()
    return None if data is None else bytes(data)


def all_pieces(connection: BaseDatabaseWrapper, file_id: str, size: int) -> Iterator[bytes]:
    """Yield what is in a file."""
    for owner, _ in owners_of(connection, file_id, size):
        rows = FilePart.objects.using(connection.alias).filter(file_id=owner).order_by("position")
        for data in rows.values_list("data", flat=True).iterator(chunk_size=1):
            yield bytes(data)


def add_piece(connection: BaseDatabaseWrapper, owner: str, position: int, data: bytes) -> None:
    """Write a piece once, however often this is called; its owner is locked meanwhile."""
    rows = FilePart.objects.using(connection.alias)
    rows.bulk_create([FilePart(file_id=owner, position=position, data=data)], ignore_conflicts=True)


def remove_some(connection: BaseDatabaseWrapper, owners: Sequence[str]) -> bool:
    """Remove a few of their pieces; return whether none is left."""
    rows = FilePart.objects.using(connection.alias)
    some = list(rows.filter(file_id__in=owners).values_list("pk", flat=True)[: AT_ONCE + 1])
    rows.filter(pk__in=some[:AT_ONCE]).delete()
    return len(some) <= AT_ONCE


def remove_parts(connection: BaseDatabaseWrapper, **which: object) -> bool:
    """Remove a few pieces of those parts of uploads, or with the last the parts; return whether none is left."""
    rows = UploadPart.objects.using(connection.alias).filter(**which)
    parts = list(rows.order_by("pk").select_for_update().values_list("pk", flat=True)[:AT_ONCE])
    if parts and remove_some(connection, parts):
        UploadPart.objects.using(connection.alias).filter(pk__in=parts).delete()
    return not parts
