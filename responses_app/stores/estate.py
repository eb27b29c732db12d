"""Workers, and what dead ones leave: queued responses that others take over, and running ones that end as failed.

Hosts that share a database are to have clocks that agree to within a second or so.
"""

import json
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper

from responses_app.models import json_text
from responses_app.protocol.resources import Status
from responses_app.stores.base import STOPPED, AcceptedResponse, Estate, WorkerState
from responses_app.stores.response_sql import (
    CLAIM_RESPONSE,
    FAIL_RESPONSE,
    KEEP_WORKER,
    RESPONSES,
    RUNNING,
    WORKERS,
    Row,
    for_update,
    in_parts,
    placeholders,
)
from responses_app.stores.rows import time_value, worker_row

REMEMBERED_SECONDS = 3600.0  # how long the row of a dead worker stays, for people to look at

_LEFT = f"""
SELECT id, status, body, request IS NOT NULL FROM {RESPONSES}
WHERE status IN {RUNNING} AND worker NOT IN ({{alive}}) {{lock}}
"""  # unordered: SQLite would scan the whole table to have them in order
_CLAIMED = f"""
SELECT project, body, input_items, transport, request FROM {RESPONSES}
WHERE id IN ({{ids}}) AND worker = %s AND status = 'queued' ORDER BY created_at, id
"""


def beat(connection: BaseDatabaseWrapper, worker: WorkerState, *, now: float) -> None:
    """Note that a worker lives."""
    with connection.cursor() as cursor:
        KEEP_WORKER.run(cursor, [worker_row(connection, worker, seen_at=now)])


def inherit(
    connection: BaseDatabaseWrapper, worker_id: str, before: Estate | None, *, now: float, lease_seconds: float
) -> Estate:
    """Take over what workers left that have not been seen since; see `BaseResponseStore.inherit`.

    Two at once never get the same: PostgreSQL skips what another has locked, SQLite lets one in at a time. `before` is
    what an earlier attempt gave, which may have been committed.
    """
    alive = {worker_id, *_seen_since(connection, now - lease_seconds)}
    runnable, lost = _left(connection, sorted(alive))
    with connection.cursor() as cursor:
        CLAIM_RESPONSE.run(cursor, [{"id": response_id, "worker": worker_id} for response_id in runnable])
        FAIL_RESPONSE.run(cursor, [_failed(response_id, body) for response_id, body in lost])
        cursor.execute(
            f"DELETE FROM {WORKERS} WHERE seen_at <= %s AND id <> %s",
            [time_value(connection, now - max(REMEMBERED_SECONDS, lease_seconds)), worker_id],
        )
    claimed_before = [str(accepted.response["id"]) for accepted in before.queued] if before else []
    queued = _claimed(connection, worker_id, list(dict.fromkeys([*claimed_before, *runnable])))
    return Estate(queued=tuple(queued), failed=len(lost) + (before.failed if before and not lost else 0))


def _seen_since(connection: BaseDatabaseWrapper, since: float) -> Iterable[str]:
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT id FROM {WORKERS} WHERE seen_at > %s", [time_value(connection, since)])
        return [row[0] for row in cursor.fetchall()]


def _left(
    connection: BaseDatabaseWrapper, alive: Collection[str]
) -> tuple[Sequence[str], Sequence[tuple[str, dict[str, Any]]]]:
    """Return the responses nobody runs: the ids of those that can be run again, the others with their bodies."""
    sql = _LEFT.format(alive=placeholders(list(alive)), lock=for_update(connection, "FOR UPDATE SKIP LOCKED"))
    with connection.cursor() as cursor:
        cursor.execute(sql, list(alive))
        rows = sorted(cursor.fetchall())
    runnable = [row[0] for row in rows if _can_run(row)]
    return runnable, [(row[0], json.loads(row[2])) for row in rows if not _can_run(row)]


def _can_run(row: Sequence[Any]) -> bool:
    _, status, _, has_request = row
    return bool(status == Status.QUEUED.value and has_request)


def _failed(response_id: str, body: dict[str, Any]) -> Row:
    status = Status.FAILED.value
    return {
        "id": response_id,
        "status": status,
        "body": json_text({**body, "status": status, "completed_at": None, "error": STOPPED}),
        "worker": "",
        "request": None,
    }


def _claimed(connection: BaseDatabaseWrapper, worker_id: str, ids: Sequence[str]) -> Iterable[AcceptedResponse]:
    """Yield those of these responses that are this worker's now."""
    with connection.cursor() as cursor:
        for some in in_parts(ids):
            cursor.execute(_CLAIMED.format(ids=placeholders(some)), [*some, worker_id])
            for project, body, input_items, transport, request in cursor.fetchall():
                yield AcceptedResponse(
                    project=project,
                    response=json.loads(body),
                    worker=worker_id,
                    input_items=tuple(json.loads(input_items)),
                    transport=transport,
                    request=json.loads(request),
                    again=True,
                )
