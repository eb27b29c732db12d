"""How responses are forgotten: one that a client deletes, and what is past its time or beyond a project's limits.

A part of a chain is needed as long as there is its response, or a part that continues it. A row that is not needed is
locked before it is removed, and one that is continued is locked by whoever continues it (`writes`): PostgreSQL would
let both happen at once.

A purge looks first for what is to go, beside everything else, and then removes it in small transactions, between which
a running server writes. What is past its time goes, then the oldest beyond the limits; running responses never, nor a
project's newest. Conversations are not touched.

Limits of entries or bytes need a count, of one index: half a minute over 100 million responses. So one look finds up to
`MAX_PLANNED` responses, which the next purges of a worker remove (`PurgePlans`), and after a slow one there is none for
`PAUSES` times as long.
"""

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import QuerySet

from responses_app.kit.kept import removes
from responses_app.kit.retention import Retentions
from responses_app.kit.sql import for_update, in_parts, placeholders
from responses_app.models import Response
from responses_app.stores.base import Purged, RetentionSettings
from responses_app.stores.database.pictures import release
from responses_app.stores.database.response_sql import (
    BRIEF,
    CHOICES,
    LABELS,
    LOGS,
    NAMES,
    PARTS,
    RESPONSES,
    RUNNING,
    SAMPLED,
)
from responses_app.stores.database.responses.rows import database_time, time_value

# It walks from the parts up to the root, as long as a part has neither its response nor another child.
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
_LOCK_RESPONSES = f"SELECT id FROM {RESPONSES} WHERE id IN ({{ids}}) ORDER BY id FOR UPDATE"
_CHATS = f"SELECT DISTINCT chat_id FROM {RESPONSES} WHERE id IN ({{ids}})"
# Of two transactions that each remove some of a chat's responses the second waits here: then it sees what is left.
_LOCK_LABELS = f"SELECT id FROM {LABELS} WHERE id IN ({{ids}}) ORDER BY id FOR UPDATE"
_DROP_LABELS = f"""
DELETE FROM {LABELS} WHERE id IN ({{ids}})
AND NOT EXISTS (SELECT 1 FROM {RESPONSES} AS kept
    WHERE kept.project = {LABELS}.project AND kept.chat_id = {LABELS}.id)
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
    chats: set[str] = set()
    with connection.cursor() as cursor:
        if connection.features.has_select_for_update:
            # Before anything that belongs to them: what is appended to the log of one that runs would stay behind.
            for some in in_parts(sorted(response_ids)):
                cursor.execute(_LOCK_RESPONSES.format(ids=placeholders(some)), some)
        for some in in_parts(response_ids):
            cursor.execute(_CHATS.format(ids=placeholders(some)), some)
            chats |= {row[0] for row in cursor.fetchall()}
        if connection.features.has_select_for_update:
            for some in in_parts(sorted(chats)):
                cursor.execute(_LOCK_LABELS.format(ids=placeholders(some)), some)
        for some in in_parts(response_ids):
            # The response's own row goes last: whoever writes of it waits for its lock, and finds it gone.
            cursor.execute(f"DELETE FROM {SAMPLED} WHERE response_id IN ({placeholders(some)})", some)
            cursor.execute(f"DELETE FROM {LOGS} WHERE response_id IN ({placeholders(some)})", some)
            cursor.execute(f"DELETE FROM {CHOICES} WHERE id IN ({placeholders(some)})", some)
            cursor.execute(f"DELETE FROM {BRIEF} WHERE id IN ({placeholders(some)})", some)
            cursor.execute(f"DELETE FROM {NAMES} WHERE id IN ({placeholders(some)})", some)
            cursor.execute(f"DELETE FROM {RESPONSES} WHERE id IN ({placeholders(some)})", some)
    parts = {part for some in in_parts(response_ids) for part in _remove_parts(connection, some)}
    release(connection, parts.union(response_ids))
    _remove_labels(connection, sorted(chats))
    return len(parts)


def _remove_labels(connection: BaseDatabaseWrapper, chats: Sequence[str]) -> None:
    """Remove what people have set of those of these chats that have no response any more."""
    with connection.cursor() as cursor:
        for some in in_parts(chats):
            cursor.execute(_DROP_LABELS.format(ids=placeholders(some)), some)


def _remove_parts(connection: BaseDatabaseWrapper, part_ids: Collection[str]) -> Collection[str]:
    """Remove those of these parts that nothing needs, then what only they needed, and so on; return their ids."""
    removed: set[str] = set()
    while part_ids:
        unneeded = _locked_unneeded(connection, part_ids)
        _delete_parts(connection, list(unneeded))
        removed |= unneeded.keys()
        # A parent that two of these continue was needed by each beside the other; now it may not be.
        part_ids = {parent for parent in unneeded.values() if parent and parent not in unneeded}  # it had two children
    return removed


def _locked_unneeded(connection: BaseDatabaseWrapper, part_ids: Collection[str]) -> Mapping[str, str | None]:
    unneeded = _unneeded(connection, part_ids)
    if not connection.features.has_select_for_update or not unneeded:
        return unneeded
    with connection.cursor() as cursor:
        for some in in_parts(sorted(unneeded)):
            cursor.execute(f"SELECT id FROM {PARTS} WHERE id IN ({placeholders(some)}) ORDER BY id FOR UPDATE", some)
    # Another transaction may have continued one before it was locked: only what is unneeded in both looks goes.
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


MAX_RESPONSES = 1000  # that one purge removes
BATCH = 100  # responses a transaction; bounds how long a server's writes wait for one


@removes(Response, at_once=BATCH)
def _remove_in_transaction(rows: "QuerySet[Response]", ids: Sequence[str]) -> None:
    with transaction.atomic(using=rows.db):
        remove(connections[rows.db], ids)


_NEXT_PROJECT = f"SELECT MIN(project) FROM {RESPONSES} WHERE project > %s"  # DISTINCT would read the whole index
_TOTALS = f"SELECT COUNT(*), COALESCE(SUM(size), 0) FROM {RESPONSES} WHERE project = %s"
_OLDEST = f"""
SELECT id, size, created_at <= %s FROM {RESPONSES}
WHERE project = %s AND status NOT IN {RUNNING} ORDER BY created_at, id LIMIT %s
"""
# Background responses with `store: false`: those that failed as their worker died have no end of their own.
_BRIEF = f"""
SELECT response.id, response.size FROM {BRIEF} AS brief CROSS JOIN {RESPONSES} AS response
WHERE response.id = brief.id AND response.status NOT IN {RUNNING}
    AND COALESCE(brief.ended_at, response.created_at) <= %s LIMIT %s
"""
_NEWEST = f"SELECT id FROM {RESPONSES} WHERE project = %s ORDER BY created_at DESC, id DESC LIMIT 1"


@dataclass(frozen=True, slots=True)
class PurgePlan:
    """Responses that are to go."""

    response_ids: Sequence[str]  # the oldest of each project first
    bytes: int  # of all of them, as limits count
    more: bool  # there are others

    def batches(self) -> Iterator[Sequence[str]]:
        """Yield the responses of one transaction after the other."""
        return (self.response_ids[start : start + BATCH] for start in range(0, len(self.response_ids), BATCH))


def purge(  # noqa: PLR0913 - each has its default
    using: str,
    settings: RetentionSettings,
    *,
    now: float | None = None,
    dry_run: bool = False,
    max_responses: int = MAX_RESPONSES,
    report: Callable[[Purged], None] = lambda purged: None,
    retentions: Retentions | None = None,
) -> Purged:
    """Remove what is past its time or beyond the limits, of all projects; not on an event loop.

    `now` is in Unix seconds, by default the database's time. `report` gets what was removed so far, after each
    transaction. A dry run only looks.
    Raises Django's database errors.
    """
    connection = connections[using]
    if now is None:
        with connection.cursor() as cursor:
            now = database_time(cursor)
    plan = plan_purge(connection, settings, now=now, max_responses=max_responses, retentions=retentions)
    if dry_run:
        return Purged(responses=len(plan.response_ids), bytes=plan.bytes, more=plan.more)
    purged = Purged(more=plan.more)
    for batch in plan.batches():
        with transaction.atomic(using=using):
            purged += remove_ended(connection, batch)
        report(purged)
    return purged


def plan_purge(
    connection: BaseDatabaseWrapper,
    settings: RetentionSettings,
    *,
    now: float,
    max_responses: int = MAX_RESPONSES,
    retentions: Retentions | None = None,
) -> PurgePlan:
    """Look for what is to go, at most `max_responses`; `retentions` are those of projects that have their own."""
    retentions = retentions or Retentions()
    brief = _past_polling(connection, now - 60 * settings.background_unstored_minutes, max_responses)
    ids, freed = list(brief), sum(brief.values())
    if not settings.keeps_all or retentions.bounded:
        for project in _projects(connection):
            expired = retentions.oldest(project, now, ttl=settings.responses_store_ttl)
            if settings.keeps_all and expired < 0:
                continue
            # One more than may go, so that `more` is known.
            for response_id, size in _excess(connection, project, settings, expired, max_responses + 1 - len(ids)):
                if response_id in brief:
                    continue
                if len(ids) >= max_responses:
                    return PurgePlan(ids, freed, more=True)
                ids.append(response_id)
                freed += size
    return PurgePlan(ids, freed, more=len(brief) == max_responses)


def _past_polling(connection: BaseDatabaseWrapper, ended_at: float, at_most: int) -> Mapping[str, int]:
    """Return the responses with `store: false` that ended by then (Unix seconds), each with its size."""
    with connection.cursor() as cursor:
        cursor.execute(_BRIEF, [time_value(connection, ended_at), at_most])
        return dict(cursor.fetchall())


def _projects(connection: BaseDatabaseWrapper) -> Iterator[str]:
    project: str | None = ""
    while project is not None:
        project = _one(connection, _NEXT_PROJECT, [project])[0]
        if project is not None:
            yield project


def _excess(
    connection: BaseDatabaseWrapper, project: str, settings: RetentionSettings, expired_at: float, at_most: int
) -> Iterator[tuple[str, int]]:
    """Yield the responses of a project that are to go, with their sizes, the oldest first.

    `expired_at` is when those were made, at the latest, that are past their time.
    """
    bounded = bool(settings.responses_store_max_entries or settings.responses_store_max_bytes)
    count, total = _one(connection, _TOTALS, [project]) if bounded else (0, 0)
    newest = _one(connection, _NEWEST, [project])[0] if bounded else ""
    expired_until = time_value(connection, expired_at)
    with connection.cursor() as cursor:
        cursor.execute(_OLDEST, [expired_until, project, at_most])
        for response_id, size, expired in cursor:
            beyond = 0 < settings.responses_store_max_entries < count or 0 < settings.responses_store_max_bytes < total
            # In the order of time: where one stays, all behind it stay, too.
            if not expired and (not beyond or response_id == newest):
                return
            yield response_id, size
            # As if it were gone: the next one is beyond the limits only if these two still are.
            count, total = count - 1, total - size


def _one(connection: BaseDatabaseWrapper, sql: str, parameters: Sequence[object]) -> Sequence[Any]:
    with connection.cursor() as cursor:
        cursor.execute(sql, parameters)
        row: Sequence[Any] = cursor.fetchone()
    return row


MAX_PLANNED = 10_000  # responses; those that are found to go, and went in another way meanwhile, are left out
QUICK_SECONDS = 0.1  # a look that takes no longer costs nothing worth a pause
PAUSES = 50  # so that at most 2 % of the time is spent on looking

NOTHING = PurgePlan((), 0, more=False)


class PurgePlans:
    """What the next purges of one store remove. `clock` is in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._plan = NOTHING  # what is left of the last look
        self._look_at = float("-inf")  # when the next one may be, by the clock

    @property
    def wants_look(self) -> bool:
        """Whether to look now for what is to go."""
        return not self._plan.response_ids and self._clock() >= self._look_at

    @contextmanager
    def looking(self) -> Iterator[Callable[[PurgePlan], None]]:
        """Time a look, and tell what it found."""
        began = self._clock()
        try:
            yield self._found
        finally:  # also one that was given up: it took longest of all
            seconds = self._clock() - began
            self._look_at = self._clock() + (seconds * PAUSES if seconds > QUICK_SECONDS else 0.0)

    def _found(self, plan: PurgePlan) -> None:
        self._plan = plan

    def next(self) -> PurgePlan:
        """Return what one purge removes. `more` says that another one has something to do now."""
        plan = self._plan
        ids, left = plan.response_ids[:MAX_RESPONSES], plan.response_ids[MAX_RESPONSES:]
        self._plan = PurgePlan(left, 0, more=plan.more) if left else NOTHING
        return PurgePlan(ids, 0, more=bool(left) or (plan.more and self._clock() >= self._look_at))
