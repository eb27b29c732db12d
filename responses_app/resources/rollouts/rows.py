"""Roll-outs and their generations as rows."""

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.utils import CursorWrapper
from django.db.models import QuerySet

from engine import orjson
from engine.formats.base import Tokens
from engine.types import WeightsSpan
from responses_app.kit.clock import unix, utc
from responses_app.kit.columns import json_text
from responses_app.kit.kept import writes_lines
from responses_app.kit.sql import read_in_chunks
from responses_app.protocol.rollouts.generations import (
    EngineCall,
    Generation,
    Times,
    pack_logprobs,
    pack_tokens,
    unpack_logprobs,
    unpack_tokens,
)
from responses_app.protocol.rollouts.requests import Break
from responses_app.protocol.rollouts.tree import tree_of
from responses_app.resources.rollouts.fields import RolloutRecord
from responses_app.resources.rollouts.model import Rollout, RolloutGeneration

GONE = ""  # the project of a roll-out that is being deleted: nobody finds it
LISTED = "rollouts"  # the list in which their places are noted
AT_ONCE = 200  # generations that one statement reads or writes
ROLLOUTS, GENERATIONS = Rollout._meta.db_table, RolloutGeneration._meta.db_table
_COUNTED = ("generations", "prompt_tokens", "sampled_tokens", "bytes")
_COLUMNS = tuple(column.column for column in RolloutGeneration._meta.concrete_fields if not column.primary_key)
_PLAIN = (
    *("api", "branch", "agent", "turn", "finish", "summary", "compacted", "reasoning", "instructions", "dropped"),
    *("vocabulary", "grammar"),
)
_DEFAULTS = EngineCall(response_id="", sampled=unpack_tokens(b"\x03"))


def rollouts_of(connection: BaseDatabaseWrapper) -> "QuerySet[Rollout]":
    """Return all roll-outs."""
    return Rollout.objects.using(connection.alias)


def generations_of(connection: BaseDatabaseWrapper, rollout_id: str) -> "QuerySet[RolloutGeneration]":
    """Return the generations of a roll-out."""
    return RolloutGeneration.objects.using(connection.alias).filter(rollout_id=rollout_id)


def record_of(row: Rollout) -> RolloutRecord:
    """Return a roll-out as it is known outside."""
    return RolloutRecord(
        id=row.pk,
        project=row.project,
        name=row.name,
        created_at=unix(row.created_at),
        last_at=unix(row.last_at),
        ended_at=None if row.ended_at is None else unix(row.ended_at),
        group=row.group or None,
        metadata=row.metadata,
        sampling=row.sampling,
        weights_wanted=row.weights_wanted or None,
        max_staleness=row.max_staleness,
        versions=tuple(row.versions or ()),
        rewards=tuple(row.rewards),
        model=row.model,
        generations=row.generations,
        prompt_tokens=row.prompt_tokens,
        sampled_tokens=row.sampled_tokens,
        bytes=row.bytes,
    )


def row_of(record: RolloutRecord) -> Rollout:
    """Return a new roll-out as a row."""
    return Rollout(
        id=record.id,
        project=record.project,
        name=record.name,
        group=record.group or "",
        metadata=dict(record.metadata),
        sampling=record.sampling,
        weights_wanted=record.weights_wanted or "",
        max_staleness=record.max_staleness,
        created_at=utc(record.created_at),
        last_at=utc(record.last_at),
    )


def generation_row(rollout_id: str, generation: Generation) -> RolloutGeneration:
    """Return a generation as a row."""
    call = generation.call
    return RolloutGeneration(
        rollout_id=rollout_id,
        number=generation.number,
        response_id=call.response_id,
        parent=generation.parent,
        shared=generation.shared,
        near=generation.near,
        cut=generation.cut,
        tail=pack_tokens(generation.tail),
        sampled=pack_tokens(call.sampled),
        logprobs=pack_logprobs(call.logprobs),
        detail=orjson.dumps(_detail(call)),
    )


def generation_of(row: RolloutGeneration) -> Generation:
    """Read a row."""
    sampled, logprobs = unpack_tokens(bytes(row.sampled)), unpack_logprobs(bytes(row.logprobs))
    return Generation(
        number=row.number,
        call=call_of(row.response_id, bytes(row.detail), sampled=sampled, logprobs=logprobs),
        parent=row.parent,
        shared=row.shared,
        near=row.near,
        cut=cast(Break, row.cut),
        tail=unpack_tokens(bytes(row.tail)),
    )


def call_of(
    response_id: str, packed: bytes, *, sampled: "Tokens[int]", logprobs: "array[float] | None" = None
) -> EngineCall:
    """Return a call by what is kept of it beside its tokens."""
    detail = orjson.loads(packed)
    return EngineCall(
        response_id=response_id,
        sampled=sampled,
        logprobs=logprobs,
        times=Times(*detail.get("times", ())),
        weights=[WeightsSpan(*each) for each in detail.get("weights", ())],
        sampling=detail.get("sampling", {}),
        images=[(at, digest) for at, digest in detail.get("images", ())],
        tops=_read_tops(detail.get("tops")),
        experts=detail.get("experts"),
        **{name: detail[name] for name in _PLAIN if name in detail},
    )


@dataclass(slots=True)
class Counts:
    """What a roll-out has, while its row is locked."""

    id: str
    generations: int
    prompt_tokens: int
    sampled_tokens: int
    bytes: int
    versions: Sequence[str]  # of weights, that have sampled its tokens


def found(connection: BaseDatabaseWrapper, project: str, name: str) -> Rollout | None:
    """Return a roll-out. Each request of one asks for it, so this is spared the ORM's making of a statement."""
    statement = f"SELECT * FROM {ROLLOUTS} WHERE project = %s AND name = %s"
    return next(iter(Rollout.objects.using(connection.alias).raw(statement, [project, name])), None)


def locked(cursor: CursorWrapper, project: str, name: str) -> Counts | None:
    """Return what a roll-out has, and lock its row; None where there is none."""
    lock = " FOR UPDATE" if cursor.db.features.has_select_for_update else ""
    columns = ", ".join(_COUNTED)
    cursor.execute(
        f"SELECT id, {columns}, versions FROM {ROLLOUTS} WHERE project = %s AND name = %s{lock}",
        [project, name],
    )
    row = cursor.fetchone()
    return None if row is None else Counts(*row[:-1], versions=orjson.loads(row[-1] or "[]"))


def known_of(cursor: CursorWrapper, rollout_id: str, response_ids: Sequence[str]) -> list[str]:
    """Return which of these responses have added to a roll-out."""
    places = ", ".join(["%s"] * len(response_ids))
    cursor.execute(
        f"SELECT DISTINCT response_id FROM {GENERATIONS} WHERE rollout_id = %s AND response_id IN ({places})",
        [rollout_id, *response_ids],
    )
    return [response_id for (response_id,) in cursor.fetchall()]


def insert(cursor: CursorWrapper, rows: Sequence[RolloutGeneration]) -> None:
    """Keep new generations."""
    columns, places = ", ".join(_COLUMNS), ", ".join(["%s"] * len(_COLUMNS))
    cursor.executemany(
        f"INSERT INTO {GENERATIONS} ({columns}) VALUES ({places})",
        [[getattr(row, column) for column in _COLUMNS] for row in rows],
    )


def keep_counts(cursor: CursorWrapper, row: Counts, *, model: str, now: float) -> None:
    """Keep what a roll-out has by now."""
    columns = ", ".join(f"{name} = %s" for name in _COUNTED)
    cursor.execute(
        f"UPDATE {ROLLOUTS} SET model = %s, last_at = %s, versions = %s, {columns} WHERE id = %s",
        [
            model,
            cursor.db.ops.adapt_datetimefield_value(utc(now)),
            json_text(list(row.versions)) if row.versions else None,
            *(getattr(row, name) for name in _COUNTED),
            row.id,
        ],
    )


def size_of(row: RolloutGeneration) -> int:
    """Return how many bytes a generation takes."""
    return sum(map(len, (row.tail, row.sampled, row.logprobs, row.detail)))


def read_generations(connection: BaseDatabaseWrapper, rollout_id: str, numbers: Sequence[int]) -> list[Generation]:
    """Return generations of a roll-out in order, from the first to the last of these numbers."""
    if not numbers:
        return []
    rows = generations_of(connection, rollout_id).filter(number__gte=numbers[0], number__lte=numbers[-1])
    with read_in_chunks(connection.alias):
        return [generation_of(row) for row in rows.order_by("number").iterator(chunk_size=AT_ONCE)]


@writes_lines(Rollout)
def _lines(row: Rollout, head: Mapping[str, Any], using: str) -> Iterator[str]:
    generations = read_generations(connections[using], row.pk, range(row.generations))
    yield json_text({"rollout": tree_of(record_of(row).as_json(), generations).in_files()})


def _detail(call: EngineCall) -> dict[str, Any]:
    """Return what is kept of a call beside its tokens: only what says anything."""
    times = call.times
    detail: dict[str, Any] = {name: getattr(call, name) for name in _PLAIN}
    detail = {name: value for name, value in detail.items() if value != getattr(_DEFAULTS, name)}
    detail["times"] = [times.queued, times.asked, times.first_token, times.ended]
    detail["weights"] = [[span.version, span.tokens] for span in call.weights]
    tops = None if call.tops is None else [list(each) for each in call.tops]
    more = {"sampling": call.sampling, "images": call.images, "experts": call.experts, "tops": tops}
    return detail | {name: value for name, value in more.items() if value}


def _read_tops(written: Sequence[Any] | None) -> Sequence[Any] | None:
    if written is None:
        return None
    # JSON has no minus infinity: it was written as null.
    return [[(token, float("-inf") if value is None else value) for token, value in each] for each in written]
