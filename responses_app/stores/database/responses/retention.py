"""What is kept, and for how long: responses past their time go, then the oldest beyond a project's limits.

What goes is looked for first, beside everything else, and then removed in small transactions, between which a running
server writes. Running responses never go, nor does a project's newest. Conversations are not touched.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from responses_app.stores.base import Purged, RetentionSettings
from responses_app.stores.database.response_sql import RESPONSES, RUNNING
from responses_app.stores.database.responses.removal import remove_ended
from responses_app.stores.database.responses.rows import database_time, time_value

MAX_RESPONSES = 1000  # that one purge removes
BATCH = 100  # responses a transaction; bounds how long a server's writes wait for one

_NEXT_PROJECT = f"SELECT MIN(project) FROM {RESPONSES} WHERE project > %s"  # DISTINCT would read the whole index
_TOTALS = f"SELECT COUNT(*), COALESCE(SUM(size), 0) FROM {RESPONSES} WHERE project = %s"
_OLDEST = f"""
SELECT id, size, created_at <= %s FROM {RESPONSES}
WHERE project = %s AND status NOT IN {RUNNING} ORDER BY created_at, id LIMIT %s
"""
_NEWEST = f"SELECT id FROM {RESPONSES} WHERE project = %s ORDER BY created_at DESC, id DESC LIMIT 1"


@dataclass(frozen=True, slots=True)
class Plan:
    """Responses that are to go, the oldest of each project first; `more` says that there are others."""

    response_ids: Sequence[str]
    bytes: int
    more: bool

    def batches(self) -> Iterator[Sequence[str]]:
        """Yield the responses of one transaction after the other."""
        return (self.response_ids[start : start + BATCH] for start in range(0, len(self.response_ids), BATCH))


def purge(
    using: str,
    settings: RetentionSettings,
    *,
    now: float | None = None,
    dry_run: bool = False,
    max_responses: int = MAX_RESPONSES,
    report: Callable[[Purged], None] = lambda purged: None,
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
    plan = plan_purge(connection, settings, now=now, max_responses=max_responses)
    if dry_run:
        return Purged(responses=len(plan.response_ids), bytes=plan.bytes, more=plan.more)
    purged = Purged(more=plan.more)
    for batch in plan.batches():
        with transaction.atomic(using=using):
            purged = added(purged, remove_ended(connection, batch))
        report(purged)
    return purged


def added(before: Purged, step: Purged) -> Purged:
    """Return both together."""
    return replace(
        before,
        responses=before.responses + step.responses,
        parts=before.parts + step.parts,
        bytes=before.bytes + step.bytes,
        ids=before.ids + step.ids,
    )


def plan_purge(
    connection: BaseDatabaseWrapper, settings: RetentionSettings, *, now: float, max_responses: int = MAX_RESPONSES
) -> Plan:
    """Look for what is to go, at most `max_responses`."""
    ids: list[str] = []
    freed = 0
    if not settings.keeps_all:
        for project in _projects(connection):
            for response_id, size in _excess(connection, project, settings, now, max_responses + 1 - len(ids)):
                if len(ids) == max_responses:
                    return Plan(ids, freed, more=True)
                ids.append(response_id)
                freed += size
    return Plan(ids, freed, more=False)


def _projects(connection: BaseDatabaseWrapper) -> Iterator[str]:
    project: str | None = ""
    while project is not None:
        project = _one(connection, _NEXT_PROJECT, [project])[0]
        if project is not None:
            yield project


def _excess(
    connection: BaseDatabaseWrapper, project: str, settings: RetentionSettings, now: float, at_most: int
) -> Iterator[tuple[str, int]]:
    """Yield the responses of a project that are to go, with their sizes, the oldest first."""
    bounded = bool(settings.responses_store_max_entries or settings.responses_store_max_bytes)
    count, total = _one(connection, _TOTALS, [project]) if bounded else (0, 0)
    newest = _one(connection, _NEWEST, [project])[0] if bounded else ""
    expired_until = time_value(connection, settings.oldest(now))
    with connection.cursor() as cursor:
        cursor.execute(_OLDEST, [expired_until, project, at_most])
        for response_id, size, expired in cursor:
            beyond = 0 < settings.responses_store_max_entries < count or 0 < settings.responses_store_max_bytes < total
            if not expired and (not beyond or response_id == newest):
                return
            yield response_id, size
            count, total = count - 1, total - size


def _one(connection: BaseDatabaseWrapper, sql: str, parameters: Sequence[object]) -> Sequence[Any]:
    with connection.cursor() as cursor:
        cursor.execute(sql, parameters)
        row: Sequence[Any] = cursor.fetchone()
    return row
