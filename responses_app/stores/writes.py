"""What the writer's thread does, in a transaction: responses are accepted, begin and end, and anything else.

What comes at once is written with a few statements, whatever it is.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Generic, TypeVar

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.utils import CursorWrapper

from responses_app.protocol.chain import ChainLink
from responses_app.stores.base import AcceptedResponse, StoredResponse
from responses_app.stores.conversation_rows import append_response
from responses_app.stores.response_sql import (
    END_RESPONSE,
    KEEP_PART,
    KEEP_RESPONSE,
    KEEP_SAMPLED,
    OPEN_RESPONSE,
    PARTS,
    RESPONSES,
    for_update,
    in_parts,
    placeholders,
)
from responses_app.stores.rows import accepted_row, part_row, sampled_rows, stored_row, time_value

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Begun:
    """A queued response begins to answer."""

    project: str
    response_id: str


@dataclass(slots=True, eq=False)
class Acceptance:
    """A response is accepted; `refused`, once written: nothing was kept, since what it continues is not known.

    Responses are known from `since` on, in Unix seconds.
    """

    accepted: AcceptedResponse
    since: float
    refused: bool = False


@dataclass(slots=True, eq=False)
class Job(Generic[Result]):
    """Any other write, and what came of it; `act` also gets what came of an earlier attempt, which may have been
    committed (its answer got lost), else None."""

    act: Callable[[BaseDatabaseWrapper, Result | None], Result]
    result: Result | None = None


Step = Acceptance | Begun | StoredResponse  # in a response's life
Write = Step | Job

_OwnedLink = tuple[str, ChainLink]  # a project and its link

_BEGIN = f"""
UPDATE {RESPONSES} SET status = 'in_progress', request = NULL WHERE id = %s AND project = %s AND status = 'queued'
"""


def commit(connection: BaseDatabaseWrapper, batch: Sequence[Write], *, now: float) -> None:
    """Write a batch; each response's steps in their order, then the jobs. `now` is in Unix seconds."""
    with connection.cursor() as cursor:  # one for all: it costs as much as a statement
        for wave in _waves(write for write in batch if not isinstance(write, Job)):
            _accept(cursor, [step for step in wave if isinstance(step, Acceptance)])
            _begin(cursor, [step for step in wave if isinstance(step, Begun)])
            _save(cursor, [step for step in wave if isinstance(step, StoredResponse)], now)
    for job in batch:
        if isinstance(job, Job):
            job.result = job.act(connection, job.result)


def _waves(steps: Iterable[Step]) -> Sequence[Sequence[Step]]:
    """Divide steps so that each response has one in a wave: the first ones, the second ones, …"""
    waves: list[list[Step]] = []
    seen: Counter[str] = Counter()
    for step in steps:
        number = seen[_id(step)]
        seen[_id(step)] += 1
        if number == len(waves):
            waves.append([])
        waves[number].append(step)
    return waves


def _id(step: Step) -> str:
    match step:
        case Begun():
            return step.response_id
        case Acceptance():
            return str(step.accepted.response["id"])
    return str(step.response["id"])


def _accept(cursor: CursorWrapper, steps: Sequence[Acceptance]) -> None:
    _refuse(cursor, steps)
    accepted = [step.accepted for step in steps if not step.refused]
    kept = _kept(cursor, [str(each.response["id"]) for each in accepted if each.again])
    rows = [accepted_row(cursor.db, each) for each in accepted if not each.again or each.response["id"] in kept]
    OPEN_RESPONSE.run(cursor, rows)


def _refuse(cursor: CursorWrapper, steps: Sequence[Acceptance]) -> None:
    """Refuse what continues responses that are not known, but not what is there already: an earlier attempt's.

    The parents are not locked: one that goes after this look goes after the acceptance.
    """
    continuing = [step for step in steps if step.accepted.parent]
    if not continuing:
        return
    parents = sorted({step.accepted.parent for step in continuing})
    known = _known(cursor, parents, since=max(step.since for step in continuing))
    lost = [step for step in continuing if (step.accepted.project, step.accepted.parent) not in known]
    kept = _kept(cursor, [_id(step) for step in lost])
    for step in continuing:
        step.refused = step in lost and _id(step) not in kept


def _known(cursor: CursorWrapper, response_ids: Sequence[str], *, since: float) -> set[tuple[str, str]]:
    """Return which of these responses are known, each with its project."""
    found: set[tuple[str, str]] = set()
    for some in in_parts(response_ids):
        sql = f"SELECT project, id FROM {RESPONSES} WHERE id IN ({placeholders(some)}) AND created_at > %s"
        cursor.execute(sql, [*some, time_value(cursor.db, since)])
        found.update(cursor.fetchall())
    return found


def _begin(cursor: CursorWrapper, begun: Sequence[Begun]) -> None:
    if begun:
        cursor.executemany(_BEGIN, [(each.response_id, each.project) for each in begun])


def _save(cursor: CursorWrapper, batch: Sequence[StoredResponse], now: float) -> None:
    batch = _end(cursor, batch)
    KEEP_RESPONSE.run(cursor, [stored_row(cursor.db, stored) for stored in batch if not stored.accepted])
    links = {stored.link.response_id: (stored.project, stored.link) for stored in batch if stored.link}
    links |= _unstored_ancestors(cursor, links)
    KEEP_PART.run(cursor, [part_row(*owned) for owned in links.values()])
    KEEP_SAMPLED.run(cursor, [row for stored in batch for row in sampled_rows(stored)])
    _append(cursor, batch, now)


def _end(cursor: CursorWrapper, batch: Sequence[StoredResponse]) -> Sequence[StoredResponse]:
    """End the responses that were accepted; return the batch without those that were deleted since."""
    accepted = [stored for stored in batch if stored.accepted]
    if END_RESPONSE.run(cursor, [stored_row(cursor.db, stored) for stored in accepted]) == len(accepted):
        return batch
    kept = _kept(cursor, [_id(stored) for stored in accepted])
    return [stored for stored in batch if not stored.accepted or _id(stored) in kept]


def _append(cursor: CursorWrapper, batch: Sequence[StoredResponse], now: float) -> None:
    """Append responses to their conversations, in an order all processes share: none waits for another in a circle."""
    appends = [(stored.conversation, stored) for stored in batch if stored.conversation]
    at = datetime.fromtimestamp(now, UTC)
    for append, stored in sorted(appends, key=lambda each: each[0].conversation_id):
        append_response(cursor.db.alias, stored.project, append, response_id=_id(stored), at=at)


def _kept(cursor: CursorWrapper, response_ids: Sequence[str]) -> set[str]:
    """Return which of these responses there are; they stay until the transaction ends."""
    return _existing(cursor, RESPONSES, response_ids, "FOR UPDATE")


def _stored_parts(cursor: CursorWrapper, part_ids: Iterable[str]) -> set[str]:
    return _existing(cursor, PARTS, list(part_ids), "FOR KEY SHARE")


def _existing(cursor: CursorWrapper, table: str, ids: Sequence[str], lock: str) -> set[str]:
    found: set[str] = set()
    for some in in_parts(ids):
        sql = f"SELECT id FROM {table} WHERE id IN ({placeholders(some)}) ORDER BY id {for_update(cursor.db, lock)}"
        cursor.execute(sql, some)
        found.update(row[0] for row in cursor.fetchall())
    return found


def _unstored_ancestors(cursor: CursorWrapper, links: Mapping[str, _OwnedLink]) -> dict[str, _OwnedLink]:
    """Return what these links continue and what is not stored (any more), with its project, by id."""
    parents = {
        link.parent.response_id: (project, link.parent)
        for project, link in links.values()
        if link.parent and link.parent.response_id not in links
    }
    stored = _stored_parts(cursor, parents)
    lineages = {
        ancestor.response_id: (project, ancestor)
        for parent_id, (project, parent) in parents.items()
        if parent_id not in stored
        for ancestor in parent.lineage()
        if ancestor.response_id not in links
    }
    stored |= _stored_parts(cursor, lineages.keys() - parents.keys())
    return {part_id: owned for part_id, owned in lineages.items() if part_id not in stored}
