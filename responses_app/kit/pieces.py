"""Contents in pieces: rows of bytes, whose owner is a file, a part of an upload, or a version of a skill.

An owner's row comes first and is hidden: its `is_whole` is false. Then come its pieces, each in a transaction of its
own, and at last the row is shown: so no write waits for more than one piece, and two at once cannot exceed a limit
together. Contents go in the opposite order. What a process leaves hidden, as it was ended in between, a purge removes.
"""

import asyncio
import json
from base64 import b64encode
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any, ClassVar

from django.db import models, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from responses_app.kit.kept import Kept
from responses_app.kit.threads import DatabaseReaders

UNFINISHED = timedelta(hours=1)  # after that, a hidden owner is nobody's: a content is written in seconds
AT_ONCE = 32  # pieces that one transaction removes
MAX_PURGED = 1000  # owners that one purge removes


class FilePart(models.Model):
    """A piece of a content, in the order of `position`. `file_id` is the owner's id, whatever that is."""

    file: Any = models.ForeignKey(
        "responses_app.StoredFile", on_delete=models.CASCADE, related_name="parts", db_constraint=False, db_index=False
    )
    position: Any = models.PositiveIntegerField()
    data: Any = models.BinaryField()
    kept = Kept(project="file__project", owner="StoredFile")  # or another owner

    class Meta:
        constraints: ClassVar = [models.UniqueConstraint(fields=["file", "position"], name="filepart_position")]

    def __str__(self) -> str:
        return f"{self.file_id} {self.position}"


async def write_pieces(
    threads: DatabaseReaders, owner: Any, pieces: Iterable[bytes] | AsyncIterable[bytes], *, gone: Exception
) -> None:
    """Write the content of a hidden owner, which has `owner.bytes`. An iterator runs on a thread.

    Raises `gone` where the owner was removed meanwhile, `ValueError` for pieces that are more or less than its bytes.
    """
    position = written = 0
    async for data in pieces if isinstance(pieces, AsyncIterable) else _read(pieces):
        await threads.run(lambda db, at=position, data=data: _write(db, owner, at, data, gone))
        position, written = position + 1, written + len(data)
    if written != owner.bytes:
        raise ValueError(f"{owner.pk} has {written} bytes, not {owner.bytes}")


async def _read(pieces: Iterable[bytes]) -> AsyncIterator[bytes]:
    source = iter(pieces)
    # On a thread, since a piece may be read from a disk; `b""` ends the loop.
    while data := await asyncio.to_thread(next, source, b""):
        yield data


def _write(db: BaseDatabaseWrapper, owner: Any, position: int, data: bytes, gone: Exception) -> None:
    with transaction.atomic(using=db.alias):
        if locked(db, type(owner), owner.pk) is None:
            raise gone
        # The unique index over owner and position drops what an earlier attempt has written.
        piece = FilePart(file_id=owner.pk, position=position, data=data)
        FilePart.objects.using(db.alias).bulk_create([piece], ignore_conflicts=True)


async def read_pieces(threads: DatabaseReaders, owner_id: str, size: int, *, gone: Exception) -> AsyncIterator[bytes]:
    """Yield the pieces of a content of `size` bytes. Raises `gone` where it goes meanwhile."""
    position = done = 0
    # Each with a query of its own: no transaction stays open while a client reads slowly.
    while done < size:
        piece = await threads.run(lambda db, at=position: _piece(db, owner_id, at))
        if piece is None:
            raise gone
        yield piece
        position, done = position + 1, done + len(piece)


def _piece(db: BaseDatabaseWrapper, owner_id: str, position: int) -> bytes | None:
    rows = FilePart.objects.using(db.alias).filter(file_id=owner_id, position=position)
    data = rows.values_list("data", flat=True).first()
    return None if data is None else bytes(data)


async def remove_all(threads: DatabaseReaders, step: Callable[[BaseDatabaseWrapper], bool]) -> None:
    """Call a step, which removes something in a transaction of its own, until it says that nothing is left."""
    while not await threads.run(step):
        pass


# What follows runs on a thread.


def locked(db: BaseDatabaseWrapper, model: Any, owner_id: str) -> Any:
    """Return an owner's row that nobody else changes until this transaction ends; None if there is none."""
    return next(iter(model.objects.using(db.alias).select_for_update().filter(pk=owner_id)), None)


def remove_pieces(db: BaseDatabaseWrapper, owner_ids: Sequence[str]) -> bool:
    """Remove a few pieces of these owners; return whether none is left."""
    rows = FilePart.objects.using(db.alias)
    # One more than is removed tells whether any is left.
    some = list(rows.filter(file_id__in=owner_ids).values_list("pk", flat=True)[: AT_ONCE + 1])
    rows.filter(pk__in=some[:AT_ONCE]).delete()
    return len(some) <= AT_ONCE


def lines_of_pieces(using: str, owner_ids: Iterable[str], **head: object) -> Iterator[str]:
    """Yield the content of these owners, one behind the other, as lines of JSON that begin with `head`."""
    for owner_id in owner_ids:
        rows = FilePart.objects.using(using).filter(file_id=owner_id).order_by("position")
        for data in rows.values_list("data", flat=True).iterator(chunk_size=1):
            yield json.dumps({**head, "base64": b64encode(data).decode()})
