"""Rows of batches and of their lines. All of this blocks, and is called inside a transaction where it writes."""

from collections.abc import Collection, Sequence

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import QuerySet

from responses_app.kit.clock import unix, utc
from responses_app.models import Worker
from responses_app.resources.batches.lines import CANCELLED, EXPIRED, OPEN, LineTokens, NewLine
from responses_app.resources.batches.model import Batch, BatchLine
from responses_app.resources.batches.records import (
    ERRORED,
    SUCCEEDED,
    BatchRecord,
    BegunLine,
    ClaimedBatch,
    DoneLine,
    LineCounts,
)
from responses_app.stores.base import Claim, ClaimLost

PENDING, BEGUN, DONE = 0, 1, 2  # of `BatchLine.state`
AT_ONCE = 1000  # lines that one statement writes
LINES = BatchLine._meta.db_table
COUNTED = {SUCCEEDED: "completed", ERRORED: "failed", CANCELLED: "cancelled", EXPIRED: "expired"}  # by outcome

_KEEP_DONE = (
    f"UPDATE {LINES} SET state = {DONE}, outcome = %s, result = %s, result_size = %s, body = %s "
    "WHERE batch_id = %s AND number = %s"
)


def row_of(record: BatchRecord) -> Batch:
    """Return a new batch as a row."""
    return Batch(
        id=record.id,
        project=record.project,
        key_id=record.key_id,
        endpoint=record.endpoint,
        status=record.status,
        input_file_id=record.input_file_id,
        output_seconds=record.output_seconds,
        model=record.model,
        metadata=None if record.metadata is None else dict(record.metadata),
        times=dict(record.times),
        created_at=utc(record.created_at),
        expires_at=utc(record.expires_at),
        total=record.counts.total,
    )


def record_of(row: Batch) -> BatchRecord:
    """Return what a row says."""
    return BatchRecord(
        id=row.pk,
        project=row.project,
        key_id=row.key_id,
        endpoint=row.endpoint,
        status=row.status,
        created_at=unix(row.created_at),
        expires_at=unix(row.expires_at),
        input_file_id=row.input_file_id,
        output_file_id=row.output_file_id,
        error_file_id=row.error_file_id,
        output_seconds=row.output_seconds,
        model=row.model,
        metadata=row.metadata,
        errors=tuple(row.errors),
        times=row.times,
        counts=LineCounts(
            total=row.total,
            completed=row.completed,
            failed=row.failed,
            cancelled=row.cancelled,
            expired=row.expired,
        ),
        tokens=LineTokens(
            input=row.input_tokens, cached=row.cached_tokens, output=row.output_tokens, reasoning=row.reasoning_tokens
        ),
    )


def batches_of(connection: BaseDatabaseWrapper) -> "QuerySet[Batch]":
    """Return all batches."""
    return Batch.objects.using(connection.alias)


def lines_of(connection: BaseDatabaseWrapper, batch_id: str) -> "QuerySet[BatchLine]":
    """Return the lines of a batch."""
    return BatchLine.objects.using(connection.alias).filter(batch_id=batch_id)


def held(connection: BaseDatabaseWrapper, batch_id: str, claim: Claim) -> Batch:
    """Return a batch that nobody else changes until this transaction ends. Raises `ClaimLost`."""
    rows = batches_of(connection).select_for_update().filter(pk=batch_id)
    row = rows.filter(worker=claim.worker, epoch=claim.epoch, status__in=OPEN).first()
    if row is None:
        raise ClaimLost(f"{batch_id} has ended, or is another worker's")
    return row


def unclaimed(
    connection: BaseDatabaseWrapper, worker: str, dead_before: float, known: Collection[str]
) -> "QuerySet[Batch]":
    """Return the batches that nobody works on: this worker neither, which knows of those that it works on."""
    # Before the first beats `dead_before` is minus infinity, which is not a time that a database takes.
    living = Worker.objects.using(connection.alias).filter(seen_at__gt=utc(max(0.0, dead_before)))
    others = living.exclude(pk=worker).values("pk")
    return batches_of(connection).filter(status__in=OPEN).exclude(worker__in=others).exclude(pk__in=known)


def claimed(connection: BaseDatabaseWrapper, row: Batch, worker: str) -> ClaimedBatch:
    """Give a batch, which the transaction has locked, to a worker."""
    row.worker, row.epoch = worker, row.epoch + 1
    row.save(using=connection.alias, update_fields=["worker", "epoch"])
    return ClaimedBatch(record=record_of(row), claim=Claim(worker, row.epoch))


def add_lines(connection: BaseDatabaseWrapper, batch_id: str, lines: Sequence[NewLine]) -> None:
    """Keep lines; those that are there already stay as they are."""
    rows = [
        BatchLine(
            batch_id=batch_id,
            number=line.number,
            custom_id=line.custom_id,
            body=line.body,
            body_size=len(line.body),
        )
        for line in lines
    ]
    BatchLine.objects.using(connection.alias).bulk_create(rows, batch_size=AT_ONCE, ignore_conflicts=True)


def keep_done(connection: BaseDatabaseWrapper, row: Batch, done: Sequence[DoneLine]) -> None:
    """Keep what came of lines, and count it, once however often this is called."""
    numbers = [line.number for line in done]
    open_ones = lines_of(connection, row.pk).filter(number__in=numbers).exclude(state=DONE)
    fresh = set(open_ones.values_list("number", flat=True))
    news = [line for line in done if line.number in fresh]
    if not news:
        return
    with connection.cursor() as cursor:
        cursor.executemany(
            _KEEP_DONE,
            [(line.outcome, line.result, len(line.result), b"", row.pk, line.number) for line in news],
        )
    tokens = sum((line.tokens for line in news), LineTokens())
    row.completed += sum(line.outcome == SUCCEEDED for line in news)
    row.failed += sum(line.outcome == ERRORED for line in news)
    row.input_tokens += tokens.input
    row.cached_tokens += tokens.cached
    row.output_tokens += tokens.output
    row.reasoning_tokens += tokens.reasoning
    row.save(
        using=connection.alias,
        update_fields=[
            *("completed", "failed", "input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens"),
        ],
    )


def begin_lines(
    connection: BaseDatabaseWrapper, batch_id: str, *, after: int, limit: int, max_bytes: int
) -> Sequence[BegunLine]:
    """Begin lines behind a number, in their order."""
    lines = lines_of(connection, batch_id)
    known = list(
        lines.filter(number__gt=after)
        .exclude(state=DONE)
        .order_by("number")
        .values_list("number", "state", "body_size")[:limit]
    )
    chosen: dict[int, bool] = {}  # whether it was begun before, by number
    size = 0
    for number, state, body_size in known:
        size += body_size
        if chosen and size > max_bytes:
            break
        chosen[number] = state == BEGUN
    lines.filter(number__in=[number for number, again in chosen.items() if not again]).update(state=BEGUN)
    rows = lines.filter(number__in=list(chosen)).order_by("number").values_list("number", "custom_id", "body")
    return [BegunLine(number, custom_id, bytes(body), chosen[number]) for number, custom_id, body in rows]


def close_lines(connection: BaseDatabaseWrapper, row: Batch, outcome: str) -> None:
    """Let all lines that have not ended end so."""
    left = lines_of(connection, row.pk).exclude(state=DONE)
    count = left.update(state=DONE, outcome=outcome, body=b"")
    setattr(row, COUNTED[outcome], getattr(row, COUNTED[outcome]) + count)
