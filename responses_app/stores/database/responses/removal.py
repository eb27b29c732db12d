"""How responses are forgotten: their rows, their sampled items, and what of their chains nothing needs any more.

A part of a chain is needed as long as there is its response, or a part that continues it. A row that is not needed is
locked before it is removed, and one that is continued is locked by whoever continues it (`writes`): PostgreSQL would
let both happen at once.
"""

from collections.abc import Collection, Mapping, Sequence

from django.db.backends.base.base import BaseDatabaseWrapper

from responses_app.stores.base import Purged
from responses_app.stores.database.response_sql import (
    CHOICES,
    LOGS,
    NAMES,
    PARTS,
    RESPONSES,
    RUNNING,
    SAMPLED,
    for_update,
    in_parts,
    placeholders,
)
from responses_app.stores.database.responses.rows import time_value

_UNNEEDED = f"""
WITH RECURSIVE unneeded (id, parent_id) AS (
    SELECT part.id, part.parent_id FROM {PARTS} AS part
    WHERE part.id IN ({{ids}})
        AND NOT EXISTS (SELECT 1 FROM {RESPONSES} AS response WHERE response.id = part.id)
        AND NOT EXISTS (SELECT 1 FROM {PARTS} AS child WHERE child.parent_id = part.id)
    UNION
    SELECT part.id, part.parent_id FROM unneeded JOIN {PARTS} AS part ON part.id = unneeded.parent_id
    WHERE NOT EXISTS (SELECT 1 FROM {RESPONSES} AS response WHERE response.id = part.id)
        AND NOT EXISTS (SELECT 1 FROM {PARTS} AS child WHERE child.parent_id = part.id AND child.id <> unneeded.id)
)
SELECT id, parent_id FROM unneeded
"""


def remove_one(connection: BaseDatabaseWrapper, project: str, response_id: str, *, since: float) -> bool:
    """Remove a response created after `since` (Unix seconds), in a transaction; return whether there was one."""
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT id FROM {RESPONSES} WHERE id = %s AND project = %s AND created_at > %s {for_update(connection)}",
            [response_id, project, time_value(connection, since)],
        )
        known = [row[0] for row in cursor.fetchall()]
    remove(connection, known)
    return bool(known)


def remove_legs(connection: BaseDatabaseWrapper, project: str, name: str, *, since: float) -> Sequence[str]:
    """Remove the responses created after `since` that clients call so, in a transaction; return their ids."""
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT response.id FROM {NAMES} AS named CROSS JOIN {RESPONSES} AS response "
            "WHERE response.id = named.id AND named.name = %s AND named.project = %s "
            f"AND response.project = %s AND response.created_at > %s ORDER BY response.id {for_update(connection)}",
            [name, project, project, time_value(connection, since)],
        )
        known = [row[0] for row in cursor.fetchall()]
    remove(connection, known)
    return known


def remove_ended(connection: BaseDatabaseWrapper, response_ids: Sequence[str]) -> Purged:
    """Remove these responses, those that run or are gone already left out; at most `IDS_A_QUERY`, in a transaction."""
    if not response_ids:
        return Purged()
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT id, size FROM {RESPONSES} WHERE id IN ({placeholders(response_ids)}) AND status NOT IN {RUNNING} "
            f"ORDER BY id {for_update(connection, 'FOR UPDATE SKIP LOCKED')}",
            response_ids,
        )
        sizes: dict[str, int] = dict(cursor.fetchall())
    parts = remove(connection, list(sizes))
    return Purged(responses=len(sizes), parts=parts, bytes=sum(sizes.values()), ids=tuple(sizes))


def remove(connection: BaseDatabaseWrapper, response_ids: Sequence[str]) -> int:
    """Remove these responses and what belongs to them, in a transaction; return how many parts went with them."""
    with connection.cursor() as cursor:
        for some in in_parts(response_ids):
            cursor.execute(f"DELETE FROM {SAMPLED} WHERE response_id IN ({placeholders(some)})", some)
            cursor.execute(f"DELETE FROM {LOGS} WHERE response_id IN ({placeholders(some)})", some)
            cursor.execute(f"DELETE FROM {CHOICES} WHERE id IN ({placeholders(some)})", some)
            cursor.execute(f"DELETE FROM {NAMES} WHERE id IN ({placeholders(some)})", some)
            cursor.execute(f"DELETE FROM {RESPONSES} WHERE id IN ({placeholders(some)})", some)
    return sum(_remove_parts(connection, some) for some in in_parts(response_ids))


def _remove_parts(connection: BaseDatabaseWrapper, part_ids: Collection[str]) -> int:
    """Remove those of these parts that nothing needs, then what only they needed, and so on."""
    removed = 0
    while part_ids:
        unneeded = _locked_unneeded(connection, part_ids)
        _delete_parts(connection, list(unneeded))
        removed += len(unneeded)
        part_ids = {parent for parent in unneeded.values() if parent and parent not in unneeded}  # it had two children
    return removed


def _locked_unneeded(connection: BaseDatabaseWrapper, part_ids: Collection[str]) -> Mapping[str, str | None]:
    unneeded = _unneeded(connection, part_ids)
    if not connection.features.has_select_for_update or not unneeded:
        return unneeded
    with connection.cursor() as cursor:
        for some in in_parts(sorted(unneeded)):
            cursor.execute(f"SELECT id FROM {PARTS} WHERE id IN ({placeholders(some)}) ORDER BY id FOR UPDATE", some)
    still = _unneeded(connection, part_ids)
    return {part_id: parent for part_id, parent in still.items() if part_id in unneeded}


def _unneeded(connection: BaseDatabaseWrapper, part_ids: Collection[str]) -> dict[str, str | None]:
    """Return the unneeded parts among these and those before them, each with the one it continues."""
    with connection.cursor() as cursor:
        cursor.execute(_UNNEEDED.format(ids=placeholders(list(part_ids))), list(part_ids))
        return dict(cursor.fetchall())


def _delete_parts(connection: BaseDatabaseWrapper, part_ids: Sequence[str]) -> None:
    with connection.cursor() as cursor:
        for some in in_parts(part_ids):
            cursor.execute(f"DELETE FROM {PARTS} WHERE id IN ({placeholders(some)})", some)
