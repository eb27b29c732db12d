"""`DatabaseBatches`: batches in Django's database. Every write of who works on one is fenced by its claim."""

from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

from django.db import transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Count, QuerySet, Sum

from responses_app.kit.clock import utc
from responses_app.kit.polling import any_of
from responses_app.kit.sql import one_at_a_time
from responses_app.kit.table import Store, can_be_known, part_of
from responses_app.resources.batches.lines import CANCELLING, FINALIZING, IN_PROGRESS, OPEN, VALIDATING, NewLine
from responses_app.resources.batches.message_lines import is_messages_batch
from responses_app.resources.batches.model import Batch, remove_some_lines
from responses_app.resources.batches.records import (
    UNLIMITED,
    BaseBatchStore,
    BatchEnd,
    BatchRecord,
    ClaimedBatch,
    DoneLine,
    ResultLine,
    Step,
    TooManyBatches,
)
from responses_app.resources.batches.rows import (
    BEGUN,
    DONE,
    PENDING,
    add_lines,
    batches_of,
    begin_lines,
    claimed,
    close_lines,
    held,
    keep_done,
    lines_of,
    record_of,
    row_of,
    unclaimed,
)
from responses_app.resources.batches.settings import BatchSettings
from responses_app.resources.webhooks.messages import WebhookMessage, event_of, message
from responses_app.resources.webhooks.outbox import Told, tell
from responses_app.stores.base import Claim, ClaimLost

Result = TypeVar("Result")

CREATION_LOCK = 0x62617463  # the space of the locks of projects
RESULT_BYTES = 4 << 20  # of results that are read at once, or the bytes of one
MAX_PURGED = 20  # batches that are forgotten at once

_ANY_OPEN = any_of(f"{Batch._meta.db_table} WHERE status IN ({', '.join(map(repr, OPEN))})")


class DatabaseBatches(Store[BatchSettings], BaseBatchStore):
    """Keeps batches in the database `using`; `timeout` bounds, in seconds, whatever waits for it."""

    unlimited = UNLIMITED

    async def create(self, record: BatchRecord, lines: Sequence[NewLine] = ()) -> None:
        def write(connection: BaseDatabaseWrapper) -> None:
            with transaction.atomic(using=connection.alias):
                one_at_a_time(connection, CREATION_LOCK, record.project)
                mine = batches_of(connection).filter(project=record.project)
                if mine.filter(pk=record.id).exists():
                    return  # an earlier attempt was committed after all
                if mine.filter(status__in=OPEN).count() >= self._settings.batches_max_open:
                    raise TooManyBatches(f"{record.project} has as many batches under way as it may have")
                row_of(record).save(using=connection.alias, force_insert=True)
                add_lines(connection, record.id, lines)

        await self._threads.run(write)

    async def get(self, project: str, batch_id: str) -> BatchRecord | None:
        if not can_be_known(batch_id):
            return None

        def read(connection: BaseDatabaseWrapper) -> BatchRecord | None:
            row = batches_of(connection).filter(pk=batch_id, **self._mine(project)).first()
            return None if row is None else record_of(row)

        return await self._threads.run(read)

    async def listed(
        self, project: str, prefix: str, *, after: str | None, limit: int, descending: bool = True
    ) -> Sequence[BatchRecord]:
        def read(connection: BaseDatabaseWrapper) -> Sequence[BatchRecord]:
            # Ids of one prefix are in the order of time; "`" is the character behind "_".
            rows = batches_of(connection).filter(**self._mine(project), pk__gte=prefix, pk__lt=f"{prefix[:-1]}`")
            return [record_of(row) for row in part_of(rows, after=after, descending=descending, limit=limit)]

        return await self._threads.run(read)

    async def cancel(self, project: str, batch_id: str, *, at: int) -> BatchRecord | None:
        if not can_be_known(batch_id):
            return None

        def write(connection: BaseDatabaseWrapper) -> BatchRecord | None:
            with transaction.atomic(using=connection.alias):
                row = batches_of(connection).select_for_update().filter(pk=batch_id, **self._mine(project)).first()
                if row is None:
                    return None
                if row.status in (VALIDATING, IN_PROGRESS):
                    _come_to(row, CANCELLING, at)
                    row.save(using=connection.alias, update_fields=["status", "times"])
                return record_of(row)

        return await self._threads.run(write)

    async def delete(self, project: str, batch_id: str) -> bool:
        if not can_be_known(batch_id):
            return False

        def ended(connection: BaseDatabaseWrapper) -> "QuerySet[Batch]":
            return batches_of(connection).filter(pk=batch_id, **self._mine(project)).exclude(status__in=OPEN)

        if not await self._threads.run(lambda db: ended(db).exists()):
            return False
        # Its lines first: nothing would name them once it is gone.
        await self.drop_lines(batch_id)
        return await self._threads.run(lambda db: bool(ended(db).delete()[0]))

    async def results(self, batch_id: str, *, after: int, limit: int, outcomes: Sequence[str]) -> Sequence[ResultLine]:
        def read(connection: BaseDatabaseWrapper) -> Sequence[ResultLine]:
            lines = lines_of(connection, batch_id).filter(state=DONE, outcome__in=outcomes)
            sizes = lines.filter(number__gt=after).order_by("number").values_list("number", "result_size")[:limit]
            chosen, size = list[int](), 0
            for number, result_size in sizes:
                size += result_size
                if chosen and size > RESULT_BYTES:
                    break
                chosen.append(number)
            if not chosen:
                return []
            rows = lines.filter(number__gt=after, number__lte=chosen[-1]).order_by("number")
            return [
                ResultLine(number, custom_id, outcome, bytes(result))
                for number, custom_id, outcome, result in rows.values_list("number", "custom_id", "outcome", "result")
            ]

        return await self._threads.run(read)

    async def has_work(
        self, worker: str, *, dead_before: float, known: Collection[str] = (), without: Collection[str] = ()
    ) -> bool:
        def read(connection: BaseDatabaseWrapper) -> bool:
            return bool(unclaimed(connection, worker, dead_before, known).exclude(project__in=without).exists())

        return bool(await self._polls.poll(_ANY_OPEN)) and await self._threads.run(read)

    async def claim(
        self,
        worker: str,
        *,
        dead_before: float,
        limit: int,
        known: Collection[str] = (),
        without: Collection[str] = (),
    ) -> Sequence[ClaimedBatch]:
        def write(connection: BaseDatabaseWrapper) -> Sequence[ClaimedBatch]:
            skips = connection.features.has_select_for_update_skip_locked
            with transaction.atomic(using=connection.alias):
                free = unclaimed(connection, worker, dead_before, known).exclude(project__in=without).order_by("pk")
                rows = list(free.select_for_update(skip_locked=skips)[:limit])
                return [claimed(connection, row, worker) for row in rows]

        return await self._threads.run(write)

    async def add_lines(self, batch_id: str, claim: Claim, lines: Sequence[NewLine]) -> None:
        await self._held(batch_id, claim, lambda db, _: add_lines(db, batch_id, lines))

    async def begin(self, batch_id: str, claim: Claim, *, total: int, model: str, at: int) -> None:
        def write(connection: BaseDatabaseWrapper, row: Batch) -> None:
            row.total, row.model = total, model
            if row.status == VALIDATING:
                _come_to(row, IN_PROGRESS, at)
            row.save(using=connection.alias, update_fields=["total", "model", "status", "times"])

        await self._held(batch_id, claim, write)

    async def step(
        self, batch_id: str, claim: Claim, *, done: Sequence[DoneLine], after: int, limit: int, max_bytes: int
    ) -> Step:
        def write(connection: BaseDatabaseWrapper, row: Batch) -> Step:
            keep_done(connection, row, done)
            if not limit or row.status != IN_PROGRESS:
                return Step(row.status)
            return Step(row.status, begin_lines(connection, batch_id, after=after, limit=limit, max_bytes=max_bytes))

        return await self._held(batch_id, claim, write)

    async def give_back(self, batch_id: str, claim: Claim, *, pending: Sequence[int]) -> None:
        def write(connection: BaseDatabaseWrapper, row: Batch) -> None:
            lines_of(connection, batch_id).filter(number__in=pending, state=BEGUN).update(state=PENDING)
            row.worker = ""
            row.save(using=connection.alias, update_fields=["worker"])

        await self._held(batch_id, claim, write)

    async def finalize(
        self, batch_id: str, claim: Claim, *, unrun: str | None, output_file_id: str, error_file_id: str, at: int
    ) -> BatchRecord:
        def write(connection: BaseDatabaseWrapper, row: Batch) -> BatchRecord:
            if unrun is not None:
                close_lines(connection, row, unrun)
            row.output_file_id, row.error_file_id = output_file_id, error_file_id
            if row.status != FINALIZING and row.status != CANCELLING:
                _come_to(row, FINALIZING, at)
            row.save(using=connection.alias)
            return record_of(row)

        return await self._held(batch_id, claim, write)

    async def sizes(self, batch_id: str, outcomes: Sequence[str]) -> tuple[int, int]:
        def read(connection: BaseDatabaseWrapper) -> tuple[int, int]:
            lines = lines_of(connection, batch_id).filter(state=DONE, outcome__in=outcomes)
            found = lines.aggregate(count=Count("pk"), size=Sum("result_size"))
            return found["count"], found["size"] or 0

        return await self._threads.run(read)

    async def end(self, batch_id: str, claim: Claim, end: BatchEnd) -> None:
        def write(connection: BaseDatabaseWrapper, row: Batch) -> None:
            # An end that took its time, and was given up: since then the files were named anew, and these are gone.
            if not {end.output_file_id, end.error_file_id} <= {row.output_file_id, row.error_file_id, ""}:
                raise ClaimLost(f"the files of {batch_id} have other names now")
            # The one place where a batch becomes terminal: what is told of that is written in this transaction.
            row.output_file_id, row.error_file_id = end.output_file_id, end.error_file_id
            row.errors, row.worker = list(end.errors), ""
            _come_to(row, end.status, end.at)
            row.save(using=connection.alias)
            with connection.cursor() as cursor:
                tell(cursor, [Told(row.project, _told_of(batch_id, end.status))], now=end.at)

        await self._held(batch_id, claim, write)

    async def drop_lines(self, batch_id: str) -> None:
        while not await self._threads.run(lambda db: remove_some_lines(db.alias, batch_id)):
            pass

    async def purge(self, *, created_before: float) -> int:
        def read(connection: BaseDatabaseWrapper) -> Sequence[tuple[str, str]]:
            old = batches_of(connection).filter(created_at__lt=utc(created_before)).exclude(status__in=OPEN)
            return list(old.order_by("created_at").values_list("project", "pk")[:MAX_PURGED])

        gone = await self._threads.run(read)
        for project, batch_id in gone:
            await self.delete(project, batch_id)
        return len(gone)

    async def _held(self, batch_id: str, claim: Claim, write: Callable[[BaseDatabaseWrapper, Batch], Result]) -> Result:
        def run(connection: BaseDatabaseWrapper) -> Result:
            with transaction.atomic(using=connection.alias):
                return write(connection, held(connection, batch_id, claim))

        return await self._threads.run(run)


def _told_of(batch_id: str, status: str) -> Sequence[WebhookMessage]:
    """Return what an ended batch tells. One of Anthropic's API tells nothing: its clients know no such events."""
    name = None if is_messages_batch(batch_id) else event_of("batch", status)
    return () if name is None else (message(name, batch_id),)


def _come_to(row: Batch, status: str, at: int) -> None:
    row.status = status
    row.times = {**row.times, status: at}
