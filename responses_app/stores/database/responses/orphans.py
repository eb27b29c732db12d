"""Workers, and what dead ones leave: responses that others go on with, and those that end as failed.

All times are the store's: PostgreSQL's own clock, and on SQLite that of the one host there is. So no worker's clock has
to be right, and a time that was read before a wait is compared as it was read: what passes while a database hangs makes
nobody look dead.

A row that is damaged fails alone, as nobody can go on with it: else it would stand before all others for ever.
"""

import logging
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.utils import CursorWrapper

from engine import orjson
from responses_app.kit.sql import Row, for_update, in_parts, placeholders
from responses_app.kit.threads import Question, any_of, in_one_line
from responses_app.limits.suspects import Stage, after_death, after_stop
from responses_app.models import json_text
from responses_app.protocol.errors import SERVER_STOPPED
from responses_app.protocol.requests.resources import ResponseObject, Status, as_failed
from responses_app.resources.webhooks.messages import message
from responses_app.resources.webhooks.outbox import Told, tell
from responses_app.stores.base import AcceptedResponse, Claim, Orphans, WorkerState
from responses_app.stores.database.response_sql import (
    CLAIM_RESPONSE,
    FAIL_RESPONSE,
    KEEP_WORKER,
    LOGS,
    RESPONSES,
    RUNNING,
    WORKERS,
)
from responses_app.stores.database.responses.rows import database_time, time_value, worker_row

logger = logging.getLogger("respsite.stores")

UNREADABLE = (ValueError, TypeError, LookupError, RecursionError)  # what reading a row that was damaged may raise
REMEMBERED_SECONDS = 3600.0  # how long the row of a dead worker stays, for people to look at

# A clock that was wrong for a while would keep a dead worker alive until that time has come.
_FROM_THE_FUTURE = (
    f"UPDATE {WORKERS} SET seen_at = %s WHERE id IN (SELECT id FROM {WORKERS} WHERE seen_at > %s {{lock}})"
)
# Parameters: this worker, and the time since which who was not seen is dead. An empty `worker` is nobody's.
_OF_THE_DEAD = (
    f"{RESPONSES} WHERE status IN {RUNNING} AND worker <> %s "
    f"AND worker NOT IN (SELECT id FROM {WORKERS} WHERE seen_at > %s)"
)
_HAS_LOG = f"EXISTS (SELECT 1 FROM {LOGS} AS part WHERE part.response_id = {RESPONSES}.id)"
# Unordered: SQLite would scan the whole table to have them in order.
_LEFT = f"SELECT id, body, request IS NOT NULL OR {_HAS_LOG}, worker, status, suspicion FROM {_OF_THE_DEAD} {{lock}}"
# What a worker has claimed and not accepted itself: a call of `reclaim` whose answer got lost may have claimed it.
_OWN = f"SELECT id FROM {RESPONSES} WHERE status IN {RUNNING} AND worker = %s AND epoch > 1"
_CLAIMED = f"""
SELECT id, project, body, status, input_items, transport, key_id, request, epoch, suspicion, request_name
FROM {RESPONSES}
WHERE id IN ({{ids}}) AND worker = %s AND status IN {RUNNING} ORDER BY created_at, id
"""
_LOGS = f"SELECT response_id, data FROM {LOGS} WHERE response_id IN ({{ids}}) ORDER BY response_id, position"
_BACKGROUND = f"SELECT id, project FROM {RESPONSES} WHERE id IN ({{ids}}) AND background"
_EPOCHS = f"SELECT id, epoch FROM {RESPONSES} WHERE id IN ({{ids}})"


def beat(connection: BaseDatabaseWrapper, worker: WorkerState, *, now: float | None) -> float:
    """Note that a worker lives, and when; see `BaseResponseStore.beat`. `now` stands for the store's clock."""
    with connection.cursor() as cursor:
        now = database_time(cursor) if now is None else now
        KEEP_WORKER.run(cursor, [worker_row(connection, worker, seen_at=now)])
        at = time_value(connection, now)
        cursor.execute(_FROM_THE_FUTURE.format(lock=for_update(connection, "FOR UPDATE SKIP LOCKED")), [at, at])
    return now


def reclaim(
    connection: BaseDatabaseWrapper,
    worker_id: str,
    before: Orphans | None,
    *,
    dead_before: float,
    known: Collection[str] = (),
) -> Orphans:
    """Take over what workers left that have not been seen since; see `BaseResponseStore.reclaim`.

    Two at once never get the same: PostgreSQL skips what another has locked, SQLite lets one in at a time. `before` is
    what an earlier attempt gave, which may have been committed.
    """
    runnable, lost = _left(connection, worker_id, dead_before, known)
    with connection.cursor() as cursor:
        CLAIM_RESPONSE.run(
            cursor,
            [{"id": each, "worker": worker_id, "suspicion": stage} for each, stage in runnable.items()],
        )
        FAIL_RESPONSE.run(cursor, [_failed(response_id, body) for response_id, body in lost.items()])
        # Before the first beats `dead_before` is minus infinity, which is not a time that a database takes.
        forgotten = max(0.0, dead_before - REMEMBERED_SECONDS)
        cursor.execute(
            f"DELETE FROM {WORKERS} WHERE seen_at <= %s AND id <> %s", [time_value(connection, forgotten), worker_id]
        )
        cursor.execute(_OWN, [worker_id])
        mine = [row[0] for row in cursor.fetchall() if row[0] not in known]
    # `dict.fromkeys`: what was claimed just now is among `mine`, too.
    claimed, damaged = _claimed(connection, worker_id, list(dict.fromkeys([*mine, *runnable])))
    if damaged:
        with connection.cursor() as cursor:
            FAIL_RESPONSE.run(cursor, [_failed(response_id, body) for response_id, body in damaged.items()])
            _tell_failures(cursor, list(damaged))
    failed = len(lost) + len(damaged)
    # An earlier attempt that was committed has failed them already, so this one finds none.
    return Orphans(claimed=tuple(claimed), failed=failed or (before.failed if before else 0))


def any_orphans(worker_id: str, *, dead_before: float) -> Question:
    """Return the question whether there is anything that `reclaim` would take from others."""
    return any_of(_OF_THE_DEAD, worker_id, datetime.fromtimestamp(max(0.0, dead_before), UTC))


def lost(connection: BaseDatabaseWrapper, claims: Mapping[str, Claim]) -> Collection[str]:
    """Return those of these responses that others have claimed since."""
    lost_ids: list[str] = []
    with connection.cursor() as cursor:
        for some in in_parts(list(claims)):
            cursor.execute(_EPOCHS.format(ids=placeholders(some)), some)
            lost_ids += [response_id for response_id, epoch in cursor.fetchall() if epoch != claims[response_id].epoch]
    return lost_ids


def _left(
    connection: BaseDatabaseWrapper, worker_id: str, dead_before: float, known: Collection[str]
) -> tuple[Mapping[str, Stage], Mapping[str, str]]:
    """Return the responses nobody runs: the ids of those to be claimed, with what is thought of each now that their
    workers are dead, and the others with their bodies as JSON.

    Those that are `known` here ran here a moment ago, and are for others.
    """
    sql = _LEFT.format(lock=for_update(connection, "FOR UPDATE SKIP LOCKED"))
    with connection.cursor() as cursor:
        cursor.execute(sql, [worker_id, time_value(connection, max(0.0, dead_before))])
        # By id, which is the order of time; the query has none.
        rows = sorted(row for row in cursor.fetchall() if row[0] not in known)
    left = [_Left(*row) for row in rows]
    stages = _after_deaths(left)
    return {each.id: stages[each.id] for each in left if each.can_run}, {
        each.id: each.body for each in left if not each.can_run
    }


class _Left(NamedTuple):
    """A response that nobody runs."""

    id: str
    body: str
    can_run: bool
    worker: str
    status: str
    suspicion: int


def _after_deaths(left: Sequence[_Left]) -> Mapping[str, Stage]:
    """Return what is thought of each of these: whoever had it is dead, or has given it back."""
    there: dict[str, dict[str, Stage]] = {}
    for each in left:
        there.setdefault(each.worker, {})[each.id] = Stage(each.suspicion)
    stages: dict[str, Stage] = {}
    for worker, theirs in there.items():
        stages |= after_death(theirs) if worker else after_stop(theirs)
    # What has waited for its turn was not running.
    waited = {each.id: Stage.INNOCENT for each in left if each.status == Status.QUEUED.value and not each.suspicion}
    return stages | waited


def _failed(response_id: str, body: str) -> Row:
    """Return the row of a response that fails; a body that cannot be read stays as it is."""
    try:
        body = json_text(as_failed(_object(body), SERVER_STOPPED))
    except UNREADABLE as problem:
        logger.error("the body of response %s is damaged, and stays so: %s", response_id, in_one_line(problem))
    return {"id": response_id, "status": Status.FAILED.value, "body": body}


def _tell_failures(cursor: CursorWrapper, response_ids: Sequence[str]) -> None:
    """Tell of those in the background that they have failed; the others, which leave nothing, have no event."""
    now = database_time(cursor)
    for some in in_parts(response_ids):
        cursor.execute(_BACKGROUND.format(ids=placeholders(some)), some)
        tell(cursor, [Told(project, [message("response.failed", id_)]) for id_, project in cursor.fetchall()], now=now)


def _object(body: str) -> ResponseObject:
    """Return a response object of its JSON. Raises one of `UNREADABLE`, also where it lacks what others go by."""
    response: ResponseObject = orjson.loads_kept(body)
    for name in ("id", "model", "output"):
        response[name]  # type: ignore[literal-required]
    return response


def _claimed(
    connection: BaseDatabaseWrapper, worker_id: str, ids: Sequence[str]
) -> tuple[list[AcceptedResponse], Mapping[str, str]]:
    """Return those of these responses that are this worker's now, and the bodies of those whose rows are damaged."""
    claimed: list[AcceptedResponse] = []
    damaged: dict[str, str] = {}
    with connection.cursor() as cursor:
        for some in in_parts(ids):
            cursor.execute(_CLAIMED.format(ids=placeholders(some)), [*some, worker_id])
            rows = cursor.fetchall()
            cursor.execute(_LOGS.format(ids=placeholders(some)), some)
            logs: dict[str, bytearray] = {}
            for response_id, data in cursor.fetchall():
                logs.setdefault(response_id, bytearray()).extend(data)
            for row in rows:
                try:
                    claimed.append(_accepted(worker_id, row, bytes(logs.get(row[0], b""))))
                except UNREADABLE as problem:
                    logger.error("response %s cannot be taken over: %s", row[0], in_one_line(problem))
                    damaged[row[0]] = row[2]
    return claimed, damaged


def _accepted(worker_id: str, row: tuple[Any, ...], log: bytes) -> AcceptedResponse:
    """Return a response that was claimed, of its row and log. Raises one of `UNREADABLE`."""
    _, project, body, status, input_items, transport, key_id, request, epoch, suspicion, request_name = row
    return AcceptedResponse(
        project=project,
        response={**_object(body), "status": status},
        claim=Claim(worker_id, epoch),
        input_items=tuple(orjson.loads_kept(input_items)),
        transport=transport,
        key_id=key_id,
        request=None if request is None else orjson.loads_kept(request),
        again=True,
        log=log,
        suspicion=Stage(suspicion),
        request_name=request_name,
    )
