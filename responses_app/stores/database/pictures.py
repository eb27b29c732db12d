"""`DatabasePictureStore`: pictures in Django's database, SQLite or PostgreSQL, so that every worker finds them.

A picture is a row, and each owner of it a row beside that. What begins to need a picture writes to its row first
(`used_at`), and what removes one locks it and looks then whether anybody needs it: so on PostgreSQL, too, none goes
that somebody has just begun to need.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from hashlib import sha256

from django.db import transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Exists, OuterRef, QuerySet

from responses_app.kit.clock import utc
from responses_app.kit.kept import removes
from responses_app.kit.sql import in_parts
from responses_app.kit.table import Store
from responses_app.models import ChainPart, Response
from responses_app.models.pictures import Picture, PictureUse
from responses_app.protocol.pictures import StoredPicture
from responses_app.stores.base import BasePictureStore

UNACCEPTED = timedelta(hours=1)  # so long pictures wait for the response that they were kept for
AT_ONCE = 200  # uses that one purge of a transaction removes


def picture_id(project: str, digest: str) -> str:
    """Return the id of a project's picture."""
    return sha256(f"{project}\0{digest}".encode()).hexdigest()


class DatabasePictureStore(Store[None], BasePictureStore):
    """Keeps pictures in a database; the arguments are `Store`'s."""

    unlimited = None

    async def keep(self, project: str, owner: str, pictures: Sequence[StoredPicture]) -> None:
        if not pictures:
            return
        # In one order for all processes, so that none waits for another in a circle.
        rows = {picture_id(project, each.digest): each for each in pictures}

        def write(connection: BaseDatabaseWrapper) -> None:
            at = self._time()
            made = [_row(project, key, rows[key], at) for key in sorted(rows)]
            with transaction.atomic(using=connection.alias):
                Picture.objects.using(connection.alias).bulk_create(
                    made, update_conflicts=True, unique_fields=["id"], update_fields=["used_at"], batch_size=1
                )
                _note_uses(connection, owner, sorted(rows), at)

        await self._threads.run(write)

    async def use(self, project: str, owner: str, digests: Collection[str]) -> Collection[str]:
        keys = _keys(project, digests)

        def write(connection: BaseDatabaseWrapper) -> list[str]:
            at, there = self._time(), []
            with transaction.atomic(using=connection.alias):
                for some in in_parts(sorted(keys)):
                    there += _locked(connection, some)
                Picture.objects.using(connection.alias).filter(pk__in=there).update(used_at=at)
                _note_uses(connection, owner, there, at)
            return there

        return [keys[key] for key in await self._threads.run(write)] if keys else ()

    async def known(self, project: str, digests: Collection[str]) -> Collection[str]:
        keys = _keys(project, digests)

        def read(connection: BaseDatabaseWrapper) -> list[str]:
            rows = Picture.objects.using(connection.alias)
            return [
                key for some in in_parts(list(keys)) for key in rows.filter(pk__in=some).values_list("pk", flat=True)
            ]

        return {keys[key] for key in await self._threads.run(read)} if keys else ()

    async def read(self, project: str, digest: str) -> StoredPicture | None:
        key = picture_id(project, digest)

        def read(connection: BaseDatabaseWrapper) -> Picture | None:
            return Picture.objects.using(connection.alias).filter(pk=key).first()

        row = await self._threads.run(read)
        return None if row is None else picture_of(row)

    async def purge(self) -> int:
        removed = 0
        while step := await self._threads.run(lambda db: purge_unaccepted(db, self._now())):
            removed += step
        return removed

    def _time(self) -> datetime:
        return datetime.fromtimestamp(self._now(), UTC)


def picture_of(row: Picture) -> StoredPicture:
    """Return a row's picture."""
    return StoredPicture(
        digest=row.digest,
        media_type=row.media_type,
        width=row.width,
        height=row.height,
        content=bytes(row.data),
    )


def release(connection: BaseDatabaseWrapper, owners: Collection[str]) -> None:
    """Remove the uses of those owners that are gone, and pictures with their last use; within a transaction."""
    for some in in_parts(list(owners)):
        _release(connection, _ownerless(connection).filter(owner__in=some))


def purge_unaccepted(connection: BaseDatabaseWrapper, now: float) -> int:
    """Remove some uses whose owners were never accepted; return how many."""
    before = utc(now) - UNACCEPTED
    with transaction.atomic(using=connection.alias):
        return _release(connection, _ownerless(connection).filter(created_at__lt=before).order_by("pk")[:AT_ONCE])


def _release(connection: BaseDatabaseWrapper, uses: "QuerySet[PictureUse]") -> int:
    found = list(uses.values_list("pk", "picture_id"))
    if not found:
        return 0
    for start in range(0, len(found), AT_ONCE):
        keys = [key for key, _ in found[start : start + AT_ONCE]]
        PictureUse.objects.using(connection.alias).filter(pk__in=keys).delete()
    for some in in_parts(sorted({picture for _, picture in found})):
        locked = _locked(connection, some)
        needed = PictureUse.objects.using(connection.alias).filter(picture=OuterRef("pk"))
        Picture.objects.using(connection.alias).filter(~Exists(needed), pk__in=locked).delete()
    return len(found)


@removes(Picture, at_once=AT_ONCE)
def _remove_with_uses(rows: "QuerySet[Picture]", ids: Sequence[str]) -> None:
    with transaction.atomic(using=rows.db):
        PictureUse.objects.using(rows.db).filter(picture__in=ids).delete()
        rows.delete()


def _ownerless(connection: BaseDatabaseWrapper) -> "QuerySet[PictureUse]":
    """Return the uses whose owner has neither its response nor its part of a chain."""
    responses = Response.objects.using(connection.alias).filter(pk=OuterRef("owner"))
    parts = ChainPart.objects.using(connection.alias).filter(pk=OuterRef("owner"))
    return PictureUse.objects.using(connection.alias).filter(~Exists(responses), ~Exists(parts))


def _locked(connection: BaseDatabaseWrapper, keys: Sequence[str]) -> list[str]:
    """Return which of these pictures there are; they stay until the transaction ends."""
    rows = Picture.objects.using(connection.alias).filter(pk__in=keys).order_by("pk")
    if connection.features.has_select_for_update:
        rows = rows.select_for_update()
    return list(rows.values_list("pk", flat=True))


def _note_uses(connection: BaseDatabaseWrapper, owner: str, keys: Sequence[str], at: datetime) -> None:
    PictureUse.objects.using(connection.alias).bulk_create(
        [PictureUse(picture_id=key, owner=owner, created_at=at) for key in keys], ignore_conflicts=True
    )


def _keys(project: str, digests: Collection[str]) -> Mapping[str, str]:
    return {picture_id(project, digest): digest for digest in digests}


def _row(project: str, key: str, picture: StoredPicture, at: datetime) -> Picture:
    return Picture(
        id=key,
        project=project,
        digest=picture.digest,
        media_type=picture.media_type,
        width=picture.width,
        height=picture.height,
        data=picture.content,
        created_at=at,
        used_at=at,
    )
