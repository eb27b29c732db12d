"""Places in lists: where the part of a list begins or ends that a cursor names, whether or not the item is still there.

Most lists are in the order of their ids, which grow with time: there the id is the place, and `kit.table.part_of` is
enough. `place_of` finds it in those that are in another order: the items of a conversation by their positions, the
files of a vector store as they were put in, versions of a skill by their numbers. Whoever removes a row of such a list,
where the id does not tell its place, notes it with `leave` in the same transaction. That is kept for `KEPT_SECONDS`,
much longer than a client takes to read a list; from then on the time in the id has to do.
"""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import ClassVar, TypeVar

from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import QuerySet

from responses_app.kit.columns import ID_LENGTH
from responses_app.kit.errors import UnknownCursor
from responses_app.kit.kept import Kept
from responses_app.protocol.ids import milliseconds_of

KEPT_SECONDS = 24 * 60 * 60
AT_ONCE = 1000  # places that one statement removes

Row = TypeVar("Row", bound=models.Model)


class GonePlace(models.Model):
    """Where something stood that was removed from a list, for those who read it."""

    project = models.CharField(max_length=64)
    list_id = models.CharField(max_length=ID_LENGTH)  # of the conversation, or whatever has the list
    item_id = models.CharField(max_length=ID_LENGTH)  # as cursors have it
    place = models.CharField(max_length=ID_LENGTH)  # in the order of the list
    gone_at = models.DateTimeField()
    # A server notes more of them for as long as files and vector stores are there.
    kept = Kept(shown=(70, "places of what is gone"), dated="gone_at", erased=1)

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["project", "list_id", "item_id"], name="goneplace_item")
        ]
        indexes: ClassVar = [models.Index(fields=["gone_at"], name="goneplace_gone")]

    def __str__(self) -> str:
        return f"{self.list_id} {self.item_id}"


def place_of(
    rows: "QuerySet[Row]", cursor: str | None, *, named: str, key: str, left_in: tuple[str, str] | None = None
) -> float | None:
    """Return where a cursor stands among rows, as a number to compare `key` with; None for no cursor.

    `named` is the field that cursors have; `left_in` the project and the list where places of gone rows are noted.
    Raises `UnknownCursor` for a text that is not an id.
    """
    if cursor is None:
        return None
    found = rows.filter(**{named: cursor}).order_by(f"-{key}").values_list(key, flat=True).first()
    if found is None and left_in is not None:
        found = left(rows.db, *left_in, cursor)
    if found is not None:
        return int(found)
    if (at := made_at(cursor)) is None:
        raise UnknownCursor(cursor)
    # Between two rows: behind all that were made until then.
    earlier = rows.filter(pk__lte=cursor) if left_in is None else rows.filter(created_at__lte=at)
    return (earlier.order_by(f"-{key}").values_list(key, flat=True).first() or 0) + 0.5


def made_at(cursor: str) -> datetime | None:
    """Return when an id was made; None for one that was not made here."""
    made = milliseconds_of(cursor)
    return None if made is None else datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=made)


def left(using: str, project: str, list_id: str, name: str) -> str | None:
    """Return where something stood in a list that is gone, None where that was not noted."""
    rows = GonePlace.objects.using(using).filter(project=project, list_id=list_id, item_id=name)
    return rows.values_list("place", flat=True).first()


def leave(using: str, project: str, list_id: str, places: Mapping[str, object], *, at: datetime) -> None:
    """Note where rows stood that are removed from a list, by what cursors call them; within a transaction."""
    rows = [
        GonePlace(project=project, list_id=list_id, item_id=name, place=str(place), gone_at=at)
        for name, place in sorted(places.items())
    ]
    GonePlace.objects.using(using).bulk_create(
        rows, update_conflicts=True, unique_fields=["project", "list_id", "item_id"], update_fields=["place", "gone_at"]
    )


def forget_places(connection: BaseDatabaseWrapper, *, now: datetime) -> bool:
    """Remove some places that have been kept long enough; return whether there may be more."""
    rows = GonePlace.objects.using(connection.alias)
    old = rows.filter(gone_at__lt=now - timedelta(seconds=KEPT_SECONDS))
    keys = list(old.values_list("pk", flat=True)[:AT_ONCE])
    if keys:
        rows.filter(pk__in=keys).delete()
    return len(keys) == AT_ONCE
