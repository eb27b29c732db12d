"""What the writer's thread does, in a transaction: responses are accepted, begin and end, and anything else.

What comes at once is written with a few statements, whatever it is.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Generic, TypeVar

from django.db.backends.base.base import BaseDatabaseWrapper

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
from responses_app.stores.rows import accepted_row, part_row, sampled_rows, stored_row

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Begun:
    """A queued response begins to answer."""

    project: str
    response_id: str


@dataclass(slots=True, eq=False)
class Job(Generic[Result]):
    """Any other write, and what came of it; `act` also gets what came of an earlier attempt, which may have been
    committed (its answer got lost), else None."""

    act: Callable[[BaseDatabaseWrapper, Result | None], Result]
    result: Result | None = None


Step = AcceptedResponse | Begun | StoredResponse  # in a response's life
Write = Step | Job

_OwnedLink = tuple[str, ChainLink]  # a project and its link

_BEGIN = f"""
UPDATE {RESPONSES} SET status = 'in_progress', request = NULL WHERE id = %s AND project = %s AND status = 'queued'
"""


def commit(connection: BaseDatabaseWrapper, batch: Sequence[Write], *, now: float) -> None:
    """Write a batch; each response's steps in their order, then the jobs. `now` is in Unix seconds."""
    for wave in _waves(write for write in batch if not isinstance(write, Job)):
        _accept(connection, [step for step in wave if isinstance(step, AcceptedResponse)])
        _begin(connection, [step for step in wave if isinstance(step, Begun)])
        _save(connection, [step for step in wave if isinstance(step, StoredResponse)], now)
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
    return step.response_id if isinstance(step, Begun) else str(step.response["id"])


def _accept(connection: BaseDatabaseWrapper, accepted: Sequence[AcceptedResponse]) -> None:
    kept = _kept(connection, [_id(each) for each in accepted if each.again])
    rows = [accepted_row(connection, each) for each in accepted if not each.again or _id(each) in kept]
    OPEN_RESPONSE.run(connection, rows)


def _begin(connection: BaseDatabaseWrapper, begun: Sequence[Begun]) -> None:
    if begun:
        with connection.cursor() as cursor:
            cursor.executemany(_BEGIN, [(each.response_id, each.project) for each in begun])


def _save(connection: BaseDatabaseWrapper, batch: Sequence[StoredResponse], now: float) -> None:
    kept = _kept(connection, [_id(stored) for stored in batch if stored.accepted])
    batch = [stored for stored in batch if not stored.accepted or _id(stored) in kept]
    END_RESPONSE.run(connection, [stored_row(connection, stored) for stored in batch if stored.accepted])
    KEEP_RESPONSE.run(connection, [stored_row(connection, stored) for stored in batch if not stored.accepted])
    links = {stored.link.response_id: (stored.project, stored.link) for stored in batch if stored.link}
    links |= _unstored_ancestors(connection, links)
    KEEP_PART.run(connection, [part_row(*owned) for owned in links.values()])
    KEEP_SAMPLED.run(connection, [row for stored in batch for row in sampled_rows(stored)])
    _append(connection, batch, datetime.fromtimestamp(now, UTC))


def _append(connection: BaseDatabaseWrapper, batch: Sequence[StoredResponse], at: datetime) -> None:
    """Append responses to their conversations, in an order all processes share: none waits for another in a circle."""
    appends = [(stored.conversation, stored) for stored in batch if stored.conversation]
    for append, stored in sorted(appends, key=lambda each: each[0].conversation_id):
        append_response(connection.alias, stored.project, append, response_id=_id(stored), at=at)


def _kept(connection: BaseDatabaseWrapper, response_ids: Sequence[str]) -> set[str]:
    """Return which of these responses there are; they stay until the transaction ends."""
    return _existing(connection, RESPONSES, response_ids, "FOR UPDATE")


def _stored_parts(connection: BaseDatabaseWrapper, part_ids: Iterable[str]) -> set[str]:
    return _existing(connection, PARTS, list(part_ids), "FOR KEY SHARE")


def _existing(connection: BaseDatabaseWrapper, table: str, ids: Sequence[str], lock: str) -> set[str]:
    found: set[str] = set()
    for some in in_parts(ids):
        with connection.cursor() as cursor:
            sql = (
                f"SELECT id FROM {table} WHERE id IN ({placeholders(some)}) ORDER BY id {for_update(connection, lock)}"
            )
            cursor.execute(sql, some)
            found.update(row[0] for row in cursor.fetchall())
    return found


def _unstored_ancestors(connection: BaseDatabaseWrapper, links: Mapping[str, _OwnedLink]) -> dict[str, _OwnedLink]:
    """Return what these links continue and what is not stored (any more), with its project, by id."""
    parents = {
        link.parent.response_id: (project, link.parent)
        for project, link in links.values()
        if link.parent and link.parent.response_id not in links
    }
    stored = _stored_parts(connection, parents)
    lineages = {
        ancestor.response_id: (project, ancestor)
        for parent_id, (project, parent) in parents.items()
        if parent_id not in stored
        for ancestor in parent.lineage()
        if ancestor.response_id not in links
    }
    stored |= _stored_parts(connection, lineages.keys() - parents.keys())
    return {part_id: owned for part_id, owned in lineages.items() if part_id not in stored}
