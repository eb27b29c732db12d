"""What the writer's thread does, in a transaction: responses are accepted, begin and end, and anything else.

A response is one row, from its acceptance on. The columns that say where it stands:

    step                  status        worker   epoch   request               written by
    accepted              queued        A        1       what it was asked     the worker that accepted it
      (in the foreground) in_progress   A        1       none
    begun                 in_progress   A        1       what it was asked     its worker, before the first word
    logged                –             –        –       –                     its worker, in rows beside this one
    ended                 completed, …  nobody   1       none                  its worker, with parts, items and log
    given back            queued        nobody   1       what it was asked     its worker, which stops
    claimed               as it was     B        2       what it was asked     B, as A was dead (`orphans`)
    suspected             –             –        –       –                     its worker (`limits.suspects`)
    failed for the dead   failed        nobody   2       none                  B, where nothing is kept to go on from

The rule: a worker writes of a response only while its claim is the present one, and the response has not ended. A claim
is a worker with an epoch, and each claiming raises the epoch. The rule is the condition of the very statement that
writes (`HELD` in `response_sql`), so nothing can come between the look and the write. Therefore

- a worker that was only slow, and was taken for dead, can never write over the one that took over: its epoch is old;
- an end is final: no statement changes a row whose status is not queued or in_progress;
- deleting wins: `begun`, `logged` and `ended` need the row, and change nothing where it is gone.

Where a statement changed fewer rows than it was given, the rows are read to learn why (`_write`):

    the row            means                                               what follows
    is not there       it was deleted                                      moot: nothing else of it is written
    another epoch      another worker claimed it                           lost: its caller gets `ClaimLost`
    same epoch, and
      this status      an earlier attempt at this transaction committed,   goes on: all is written once more,
                       and its answer got lost                             which changes nothing
      another status   it has ended in another way                         moot

Example: A accepts a response (queued, A, 1), and hangs. 15 s later B claims it (queued, B, 2) and begins it. A wakes up
and writes `begun` with (A, 1): no row is changed, the row's epoch is 2, so A has lost it and stops its run without a
word. B's end, with (B, 2), is the only one. The same with a log: what A appended before B's claim is what B goes on
from, and what A appends later changes nothing.

Why a batch: a transaction costs more than all its rows, so the writer gives all steps that are queued at once (at most
500). Each kind of step is one statement for all rows. The steps of one response must keep their order, so they are
divided into waves, each with one step of a response: for 50 responses that are accepted, begin and end in one batch,
three waves of 50.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.utils import CursorWrapper

from responses_app.kit.clock import utc
from responses_app.kit.sql import Row, Writing, for_update, in_parts, placeholders
from responses_app.limits.suspects import Stage
from responses_app.protocol.prompt.chain import ChainLink
from responses_app.protocol.rollouts.generations import RecordedResponse
from responses_app.resources.conversations.appending import append_response
from responses_app.resources.rollouts.keeping import GenerationKeeper
from responses_app.resources.usage.fields import entry_of
from responses_app.resources.usage.keeping import keep_entries
from responses_app.resources.webhooks.messages import messages_of_response
from responses_app.resources.webhooks.outbox import Told, tell
from responses_app.stores.base import AcceptedResponse, Claim, LogAppend, StoredResponse
from responses_app.stores.database.response_sql import (
    BEGIN_RESPONSE,
    CHANGE_RESPONSE,
    DROP_LOG_PARTS,
    END_BRIEF,
    END_RESPONSE,
    KEEP_BRIEF,
    KEEP_CHOICE,
    KEEP_LOG,
    KEEP_NAME,
    KEEP_PART,
    KEEP_RESPONSE,
    KEEP_SAMPLED,
    NAMES,
    PARTS,
    RESPONSES,
    SUSPECT_RESPONSE,
    append_log,
    claim_row,
)
from responses_app.stores.database.responses.membership import in_chats, version_of
from responses_app.stores.database.responses.rows import (
    accepted_row,
    choice_rows,
    log_rows,
    part_row,
    returned_row,
    sampled_rows,
    stored_row,
    time_value,
)

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Acceptance:
    """A response is accepted, if what it continues is known."""

    accepted: AcceptedResponse  # the response
    since: float  # Unix seconds: responses are known from then on


@dataclass(frozen=True, slots=True)
class Begun:
    """A queued response begins to answer."""

    project: str
    response_id: str
    claim: Claim


@dataclass(frozen=True, slots=True)
class Suspected:
    """Something is thought of a response that was taken over."""

    project: str
    response_id: str
    claim: Claim
    stage: Stage


@dataclass(frozen=True, slots=True)
class GivenBack:
    """A response is given back: it is nobody's, until another worker claims it."""

    accepted: AcceptedResponse


Act = Acceptance | Begun | Suspected | GivenBack | StoredResponse


@dataclass(slots=True, eq=False)
class ResponseStep:
    """A step in a response's life, and what came of it. Where one of the flags is set, nothing was written."""

    act: Act
    lost: bool = False  # its claim was not the present one
    refused: bool = False  # what it continues is not known
    taken: bool = False  # its public id is another response's

    @property
    def response_id(self) -> str:
        """Whose step it is."""
        match self.act:
            case Begun(response_id=response_id) | Suspected(response_id=response_id):
                return response_id
            case StoredResponse(response=response):
                return response["id"]
        return self.act.accepted.response["id"]

    @property
    def is_brief(self) -> bool:
        """Whether its client did not want the response stored: it is kept for a few minutes, to be polled."""
        match self.act:
            case Begun() | Suspected():
                return False
            case StoredResponse(response=response):
                return response.get("store") is False
        return self.act.accepted.response.get("store") is False

    @property
    def parent(self) -> str:
        """The stored response whose chat it belongs to; "" for none."""
        match self.act:
            case Acceptance(accepted=accepted):
                return accepted.parent or version_of(accepted.response)
            case StoredResponse(link=link, response=response):
                parent = link.parent if link else None
                before = parent.response_id if parent else response.get("previous_response_id")
                return before or version_of(response)
        return ""

    @property
    def claim(self) -> Claim:
        """By what right it is taken."""
        return self.act.accepted.claim if isinstance(self.act, Acceptance | GivenBack) else self.act.claim


@dataclass(slots=True, eq=False)
class LogAppends:
    """What came to responses that run, and what became of it."""

    appends: Sequence[LogAppend]
    lost: frozenset[str] = frozenset()  # responses that another worker has claimed
    gone: frozenset[str] = frozenset()  # responses that are not there any more


@dataclass(slots=True, eq=False)
class OtherWrite(Generic[Result]):
    """Any other write, and what came of it."""

    act: Callable[[BaseDatabaseWrapper, Result | None], Result]  # gets `result`, too
    result: Result | None = None  # of the last attempt, which may have been committed; None before


Write = ResponseStep | LogAppends | OtherWrite[Any]

_OwnedLink = tuple[str, ChainLink]  # a project and its link


def commit(connection: BaseDatabaseWrapper, batch: Sequence[Write], *, now: float, keeper: GenerationKeeper) -> None:
    """Write a batch; each response's steps in their order, then the jobs. `now` is in Unix seconds.

    Appends go first: a response's end, which may stand in the same batch, comes after all of them.
    """
    recorded: list[RecordedResponse] = []
    with connection.cursor() as cursor:  # one for all: it costs as much as a statement
        for write in batch:
            if isinstance(write, LogAppends):
                _append_logs(cursor, write)
                _tell_waits(cursor, write, now)
        for wave in _waves(write for write in batch if isinstance(write, ResponseStep)):
            kinds = {type(step.act) for step in wave}
            if not kinds.isdisjoint((Acceptance, GivenBack)):
                _accept(cursor, wave)
            if Suspected in kinds:
                _suspect(cursor, wave)
            if Begun in kinds:
                _begin(cursor, wave)
            if StoredResponse in kinds:
                saved = _save(cursor, wave, now)
                recorded += [stored.recorded for stored in saved if stored.recorded is not None]
    for job in batch:
        if isinstance(job, OtherWrite):
            job.result = job.act(connection, job.result)
    keeper.keep(connection, recorded, now=now)


def _append_logs(cursor: CursorWrapper, write: LogAppends) -> None:
    """Append to the logs of responses as far as their claims hold.

    Where fewer rows were written, the responses tell why, as with `_write`: one that is not there is gone, another
    epoch is another's claim. With this very epoch the append is there already, by an attempt whose answer got lost, or
    the response has ended, and its whole log is kept with its end.
    """
    appends = sorted(write.appends, key=lambda each: each.response_id)  # the order in which all lock responses
    rows = [
        {"id": each.response_id, "position": each.position, "data": each.data, **claim_row(each.claim)}
        for each in appends
    ]
    # An earlier attempt may have said otherwise, and was rolled back.
    write.lost = write.gone = frozenset()
    if append_log(cursor.db).run(cursor, rows) == len(rows):
        return
    kept = _existing(cursor, f"id, epoch FROM {RESPONSES}", [each.response_id for each in appends], "FOR SHARE")
    write.gone = frozenset(each.response_id for each in appends) - kept.keys()
    write.lost = frozenset(
        each.response_id for each in appends if kept.get(each.response_id, [each.claim.epoch])[0] != each.claim.epoch
    )


def _tell_waits(cursor: CursorWrapper, write: LogAppends, now: float) -> None:
    """Tell what the logs that were appended to say of waits; nothing of a response that is not this worker's any more.

    Where there was nothing to append, as of one that was taken over in the middle of a wait, it is told all the same.
    """
    not_ours = write.lost | write.gone
    waits = [
        Told(each.project, [message])
        for each in write.appends
        if each.response_id not in not_ours
        for message in each.messages
    ]
    if waits:
        tell(cursor, waits, now=now)


def _waves(steps: Iterable[ResponseStep]) -> Sequence[Sequence[ResponseStep]]:
    """Divide steps so that each response has one in a wave: the first ones, the second ones, …

    Within a wave the kinds of steps may be written in any order, since no two are of the same response.
    """
    waves: list[list[ResponseStep]] = []
    seen: Counter[str] = Counter()
    for step in steps:
        response_id = step.response_id
        number = seen[response_id]
        seen[response_id] += 1
        if number == len(waves):
            waves.append([])
        waves[number].append(step)
    return waves


def _accept(cursor: CursorWrapper, steps: Sequence[ResponseStep]) -> None:
    new: list[tuple[ResponseStep, Row]] = []
    changed: list[tuple[ResponseStep, Row]] = []
    _refuse(cursor, [step for step in steps if isinstance(step.act, Acceptance)])
    _name(cursor, [step for step in steps if isinstance(step.act, Acceptance) and not step.refused])
    for step in steps:
        match step.act:
            case Acceptance(accepted=accepted) if not (step.refused or step.taken):
                (changed if accepted.again else new).append((step, accepted_row(cursor.db, accepted)))
            case GivenBack(accepted=accepted):
                changed.append((step, returned_row(cursor.db, accepted)))
    _write(cursor, KEEP_RESPONSE, _in_chats(cursor, new))
    if brief := [row for step, row in new if step.is_brief]:
        KEEP_BRIEF.run(cursor, brief)
    for step in _write(cursor, CHANGE_RESPONSE, changed) if changed else ():
        step.lost = step.lost or isinstance(step.act, Acceptance)  # it was deleted, or has ended: it is not to run


def _refuse(cursor: CursorWrapper, steps: Sequence[ResponseStep]) -> None:
    """Refuse what continues responses that are not known, but not what is there already: an earlier attempt's.

    The parents are not locked: one that goes after this look goes after the acceptance.
    """
    continuing = [(step, step.act) for step in steps if isinstance(step.act, Acceptance) and step.act.accepted.parent]
    if not continuing:
        return
    parents = sorted({act.accepted.parent for _, act in continuing})
    # They differ by the milliseconds that the steps have waited: the latest is the strictest.
    known = _known(cursor, parents, since=max(act.since for _, act in continuing))
    orphans = [step for step, act in continuing if (act.accepted.project, act.accepted.parent) not in known]
    kept = _existing(cursor, f"id FROM {RESPONSES}", [step.response_id for step in orphans], "FOR UPDATE")
    for step, _ in continuing:
        step.refused = step in orphans and step.response_id not in kept


def _name(cursor: CursorWrapper, steps: Sequence[ResponseStep]) -> None:
    """Give responses their public ids; those that are taken already are refused.

    Two transactions that want the same id: the second waits for the first, and finds it taken.
    """
    rows = [
        {"id": step.response_id, "project": accepted.project, **accepted.public._asdict()}
        for step in steps
        if isinstance(step.act, Acceptance) and (accepted := step.act.accepted).public and not accepted.again
    ]
    if not rows:
        return
    # In one order for all processes, so that none waits for another in a circle.
    KEEP_NAME.run(cursor, sorted(rows, key=lambda row: (row["project"], row["name"], row["leg"])))
    named = _existing(cursor, f"id FROM {NAMES}", [row["id"] for row in rows], "FOR KEY SHARE")
    asked_ids = {row["id"] for row in rows}
    for step in steps:
        step.taken = step.response_id in asked_ids and step.response_id not in named


def _known(cursor: CursorWrapper, response_ids: Sequence[str], *, since: float) -> set[tuple[str, str]]:
    """Return which of these responses are known, each with its project."""
    known: set[tuple[str, str]] = set()
    for some in in_parts(response_ids):
        sql = f"SELECT project, id FROM {RESPONSES} WHERE id IN ({placeholders(some)}) AND created_at > %s"
        cursor.execute(sql, [*some, time_value(cursor.db, since)])
        known.update(cursor.fetchall())
    return known


def _begin(cursor: CursorWrapper, steps: Sequence[ResponseStep]) -> None:
    begun = [(step, step.act) for step in steps if isinstance(step.act, Begun)]
    _write(
        cursor,
        BEGIN_RESPONSE,
        [(step, {"id": act.response_id, "project": act.project, **claim_row(act.claim)}) for step, act in begun],
    )


def _suspect(cursor: CursorWrapper, steps: Sequence[ResponseStep]) -> None:
    rows = [(step, step.act) for step in steps if isinstance(step.act, Suspected)]
    _write(
        cursor,
        SUSPECT_RESPONSE,
        [(step, {"id": act.response_id, "suspicion": act.stage, **claim_row(act.claim)}) for step, act in rows],
    )


def _save(cursor: CursorWrapper, steps: Sequence[ResponseStep], now: float) -> Sequence[StoredResponse]:
    """Keep ends of responses, as far as their claims hold; return what was kept.

    What a response has used counts too where it was deleted while it ran.
    """
    ends = [(step, stored_row(cursor.db, step.act)) for step in steps if isinstance(step.act, StoredResponse)]
    known = [(step, row) for step, row in ends if step.act.accepted]  # type: ignore[union-attr]
    moot = _write(cursor, END_RESPONSE, known)
    new = [(step, row) for step, row in ends if not step.act.accepted]  # type: ignore[union-attr]
    moot += _write(cursor, KEEP_RESPONSE, _in_chats(cursor, new))
    batch: list[StoredResponse] = [step.act for step, _ in ends if step not in moot and not step.lost]  # type: ignore[misc]
    used: list[StoredResponse] = [step.act for step, _ in ends if not step.lost]  # type: ignore[misc]
    keep_entries(
        cursor,
        [
            entry_of(each.response, at=int(now), project=each.project, key_id=each.key_id, transport=each.transport)
            for each in used
        ],
    )
    links = {stored.link.response_id: (stored.project, stored.link) for stored in batch if stored.link}
    links |= _unstored_ancestors(cursor, links)  # `store: false` responses that only a connection remembers
    ended_at = time_value(cursor.db, now)
    END_BRIEF.run(cursor, [{"id": step.response_id, "ended_at": ended_at} for step, _ in known if step.is_brief])
    KEEP_PART.run(cursor, [part_row(*owned) for owned in links.values()])
    KEEP_SAMPLED.run(cursor, [row for stored in batch for row in sampled_rows(stored)])
    KEEP_CHOICE.run(cursor, [row for stored in batch for row in choice_rows(cursor.db, stored)])
    logs = [row for stored in batch for row in log_rows(stored)]
    KEEP_LOG.run(cursor, logs)
    # The whole log stands at position 0 now; the parts behind it, which few have, were appended while it ran.
    for some in in_parts([str(row["response_id"]) for row in logs]):
        cursor.execute(DROP_LOG_PARTS.format(ids=placeholders(some)), some)
    tell(cursor, [Told(stored.project, messages_of_response(stored.response)) for stored in batch], now=now)
    _append(cursor, batch, now)
    return batch


def _write(cursor: CursorWrapper, writing: Writing, held: Sequence[tuple[ResponseStep, Row]]) -> list[ResponseStep]:
    """Write rows of responses as far as their claims hold; return the steps of those deleted, or ended otherwise.

    Where no row was changed the row itself tells why: another epoch is another's claim. With this very epoch it was
    written before, by an attempt whose answer got lost.
    """
    if not held:
        return []
    for step, _ in held:
        step.lost = False  # an earlier attempt at this transaction may have said otherwise, and was rolled back
    if writing.run(cursor, [row for _, row in held]) == len(held):
        return []
    kept = _existing(
        cursor, f"id, epoch, status FROM {RESPONSES}", [step.response_id for step, _ in held], "FOR UPDATE"
    )
    moot = []
    for step, row in held:
        # A row that is gone has no epoch: nobody else has it, and no status is the one that was to be written.
        epoch, status = kept.get(step.response_id, (step.claim.epoch, None))
        step.lost = epoch != step.claim.epoch
        if status != row.get("status"):
            moot.append(step)
    return moot


def _in_chats(cursor: CursorWrapper, new: Sequence[tuple[ResponseStep, Row]]) -> list[tuple[ResponseStep, Row]]:
    parents = {step.response_id: step.parent for step, _ in new}
    return [(step, row) for (step, _), row in zip(new, in_chats(cursor, [row for _, row in new], parents), strict=True)]


def _append(cursor: CursorWrapper, batch: Sequence[StoredResponse], now: float) -> None:
    """Append responses to their conversations, in an order all processes share: none waits for another in a circle."""
    appends = [(stored.conversation, stored) for stored in batch if stored.conversation]
    at = utc(now)
    for append, stored in sorted(appends, key=lambda each: each[0].conversation_id):
        response_id = stored.response["id"]
        append_response(cursor.db.alias, stored.project, append, response_id=response_id, at=at)


def _stored_parts(cursor: CursorWrapper, part_ids: Iterable[str]) -> set[str]:
    return set(_existing(cursor, f"id FROM {PARTS}", list(part_ids), "FOR KEY SHARE"))


def _existing(cursor: CursorWrapper, columns: str, ids: Sequence[str], lock: str) -> dict[str, Sequence[Any]]:
    """Return what there is, by its id; it stays until the transaction ends."""
    rows: dict[str, Sequence[Any]] = {}
    for some in in_parts(ids):
        sql = f"SELECT {columns} WHERE id IN ({placeholders(some)}) ORDER BY id {for_update(cursor.db, lock)}"
        cursor.execute(sql, some)
        rows |= {row[0]: row[1:] for row in cursor.fetchall()}
    return rows


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
    # Of a lineage some may be stored: they are not written again, and stay locked until the commit.
    stored |= _stored_parts(cursor, lineages.keys() - parents.keys())
    return {part_id: owned for part_id, owned in lineages.items() if part_id not in stored}
