"""`Batches`: batches and their lines in Django's database; SQLite or PostgreSQL.

    line: pending ──> begun ──> done, with its result

A batch is worked on by one process at a time: `claim` gives it the row, whose `worker` and `epoch` are its claim.
Whatever that process writes names the row as it was claimed, and changes nothing where its claim is not the present one
(`ClaimLost`). A line is begun in the store before anything of it is done, and whoever claims the batch next sees which
lines were begun: so no line runs twice that may not.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from django.db.models import Count, QuerySet, Sum

from responses_app.kit.clock import utc
from responses_app.kit.errors import StoreError
from responses_app.kit.sql import one_at_a_time
from responses_app.kit.table import Table, part_of, reads, writes
from responses_app.kit.threads import any_of
from responses_app.models import Worker
from responses_app.protocol.ids import BATCH
from responses_app.resources.batches.fields import BatchSettings
from responses_app.resources.batches.lines import (
    CANCELLED,
    ERRORED,
    EXPIRED,
    NO_TOKENS,
    SUCCEEDED,
    BatchError,
    LineTokens,
    NewLine,
)
from responses_app.resources.batches.model import (
    BEGUN,
    CANCELLING,
    DONE,
    FINALIZING,
    IN_PROGRESS,
    OPEN,
    PENDING,
    VALIDATING,
    Batch,
    BatchLine,
    remove_some_lines,
)
from responses_app.resources.webhooks.messages import event_of, message
from responses_app.resources.webhooks.outbox import Told, tell
from responses_app.stores.base import ClaimLost

CREATION_LOCK = 0x62617463  # the space of the locks of projects
KEPT_SECONDS = 30 * 24 * 3600  # a batch is forgotten so long after it was created
MAX_PURGED = 20  # batches that are forgotten at once
WRITTEN_AT_ONCE = 1000  # lines
RESULT_BYTES = 4 << 20  # of results that are read at once, or the bytes of one
COUNTED = {SUCCEEDED: "completed", ERRORED: "failed", CANCELLED: "cancelled", EXPIRED: "expired"}  # by outcome

_ANY_OPEN = any_of(f"{Batch._meta.db_table} WHERE status IN ({', '.join(map(repr, OPEN))})")
_KEEP_DONE = (
    f"UPDATE {BatchLine._meta.db_table} SET state = {DONE}, outcome = %s, result = %s, result_size = %s, body = %s "
    "WHERE batch_id = %s AND number = %s"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DoneLine:
    """What came of a line."""

    number: int
    outcome: str  # SUCCEEDED or ERRORED
    result: bytes  # the line of the output
    tokens: LineTokens = NO_TOKENS


class TooManyBatches(StoreError):
    """A project has as many batches under way as it may have."""


class Batches(Table[Batch, BatchSettings]):
    """The batches of projects. Every method raises `StoreError`.

    A `batch` is one as it was claimed: what takes that raises `ClaimLost` where another claim is the present one, or
    the batch has ended.
    """

    model = Batch
    unlimited = BatchSettings(batches_max_open=1_000_000)

    @writes
    def create(self, row: Batch, lines: Sequence[NewLine] = ()) -> None:
        """Keep a new batch, with its lines where they came with the request. Raises `TooManyBatches`."""
        one_at_a_time(self._db, CREATION_LOCK, row.project)
        mine = Batch.objects.using(self._using).filter(project=row.project)
        if mine.filter(pk=row.pk).exists():
            return  # an earlier attempt was committed after all
        if mine.filter(status__in=OPEN).count() >= self._settings.batches_max_open:
            raise TooManyBatches(f"{row.project} has as many batches under way as it may have")
        row.save(using=self._using, force_insert=True)
        self._add(row.pk, lines)

    @reads
    def page(
        self, project: str, *, after: str | None, descending: bool, limit: int, prefix: str = BATCH
    ) -> Sequence[Batch]:
        """Return up to `limit` batches whose ids begin so, behind the batch `after`, which may be gone."""
        # Ids of one prefix are in the order of time; "`" is the character behind "_".
        rows = self.rows(project).filter(pk__gte=prefix, pk__lt=f"{prefix[:-1]}`")
        return part_of(rows, after=after, descending=descending, limit=limit)

    @writes
    def cancel(self, project: str, batch_id: str) -> Batch | None:
        """Let a batch end early, unless its end is being written already; return it as it is then."""
        row = self.locked(project, batch_id)
        if row is not None and row.status in (VALIDATING, IN_PROGRESS):
            row.come_to(CANCELLING, int(self._now()))
            row.save(using=self._using, update_fields=["status", "times"])
        return row

    async def delete(self, project: str, row_id: str) -> bool:
        """Forget a batch that has ended, with its lines; return whether there was such a one."""
        row = await self.get(project, row_id)
        if row is None or row.is_open:
            return False
        await self.drop_lines(row_id)  # first: nothing would name them once it is gone
        return await super().delete(project, row_id)

    @reads
    def results(self, batch_id: str, *, after: int, limit: int, outcomes: Sequence[str]) -> Sequence[BatchLine]:
        """Return up to `limit` lines that ended so, behind the line with this number; fewer where they are large."""
        lines = self._lines(batch_id).filter(state=DONE, outcome__in=outcomes, number__gt=after).order_by("number")
        numbers = _fitting(lines.values_list("number", "result_size")[:limit], RESULT_BYTES)
        return list(lines.filter(number__lte=numbers[-1])) if numbers else ()

    @reads
    def sizes(self, batch_id: str, outcomes: Sequence[str]) -> tuple[int, int]:
        """Return how many lines ended so, and the bytes of their results."""
        lines = self._lines(batch_id).filter(state=DONE, outcome__in=outcomes)
        sums = lines.aggregate(count=Count("pk"), size=Sum("result_size"))
        return sums["count"], sums["size"] or 0

    async def claim(
        self,
        worker: str,
        *,
        dead_before: float,
        limit: int,
        known: Collection[str] = (),
        without: Collection[str] = (),
    ) -> Sequence[Batch]:
        """Claim batches that nobody works on, or a worker that was not seen since then; the oldest first.

        `known`: those that this worker works on. Another one that is its own was claimed by a call whose answer was
        lost. `without`: projects whose batches are left to others.
        """
        # Before the first beats `dead_before` is minus infinity, which is not a time that a database takes.
        living = Worker.objects.using(self._using).filter(seen_at__gt=utc(max(0.0, dead_before))).exclude(pk=worker)
        free = Batch.objects.using(self._using).filter(status__in=OPEN).exclude(worker__in=living.values("pk"))
        free = free.exclude(pk__in=known).exclude(project__in=without)
        if not await self._polls.poll(_ANY_OPEN) or not await self._is_any(free):  # nothing is locked
            return ()
        return await self._claim(free, worker, limit)

    @reads
    def _is_any(self, free: "QuerySet[Batch]") -> bool:
        return free.exists()

    @writes
    def _claim(self, free: "QuerySet[Batch]", worker: str, limit: int) -> Sequence[Batch]:
        rows = list(free.order_by("pk").select_for_update(skip_locked=True)[:limit])
        for row in rows:
            row.worker, row.epoch = worker, row.epoch + 1
            row.save(using=self._using, update_fields=["worker", "epoch"])
        return rows

    @writes
    def add_lines(self, batch: Batch, lines: Sequence[NewLine]) -> None:
        """Keep lines of an input that is being read; one that is there already stays as it is."""
        self._held(batch)
        self._add(batch.pk, lines)

    @writes
    def begin(self, batch: Batch, *, total: int, model: str) -> None:
        """Note that the input is right, and its lines are all there; a batch that was cancelled stays so."""
        row = self._held(batch)
        row.total, row.model = total, model
        if row.status == VALIDATING:
            row.come_to(IN_PROGRESS, int(self._now()))
        row.save(using=self._using, update_fields=["total", "model", "status", "times"])

    @writes
    def step(
        self, batch: Batch, *, done: Sequence[DoneLine], after: int, limit: int, max_bytes: int
    ) -> tuple[str, Sequence[BatchLine]]:
        """Keep what came of lines, and begin up to `limit` more behind the line with this number.

        Return the status of the batch, which somebody may have cancelled, and the lines that are begun, each with the
        `state` that it had: one that was BEGUN before was so by a process that may be dead, and nobody knows how far it
        came. All at once: together in one transaction. Of lines that are large fewer are begun, at least one. None are
        begun of a batch that is not in progress. To keep a result that is kept already changes nothing.
        """
        row = self._held(batch)
        self._keep_done(row, done)
        if not limit or row.status != IN_PROGRESS:
            return row.status, ()
        lines = self._lines(row.pk).exclude(state=DONE).order_by("number")
        numbers = _fitting(lines.filter(number__gt=after).values_list("number", "body_size")[:limit], max_bytes)
        begun = list(lines.filter(number__in=numbers))
        lines.filter(number__in=numbers, state=PENDING).update(state=BEGUN)
        return row.status, begun

    @writes
    def give_back(self, batch: Batch, *, pending: Sequence[int]) -> None:
        """Leave a batch to others, and begun lines that were not run, or may be run again, pending."""
        row = self._held(batch)
        self._lines(row.pk).filter(number__in=pending, state=BEGUN).update(state=PENDING)
        row.worker = ""
        row.save(using=self._using, update_fields=["worker"])

    @writes
    def finalize(self, batch: Batch, *, unrun: str, output_file_id: str, error_file_id: str) -> Batch:
        """Let all lines that have not ended end as `unrun`, and name the files that will be written; return the batch.

        The ids of files that an earlier process was to write are replaced.
        """
        row = self._held(batch)
        count = self._lines(row.pk).exclude(state=DONE).update(state=DONE, outcome=unrun, body=b"")
        setattr(row, COUNTED[unrun], getattr(row, COUNTED[unrun]) + count)
        row.output_file_id, row.error_file_id = output_file_id, error_file_id
        if row.status not in (FINALIZING, CANCELLING):
            row.come_to(FINALIZING, int(self._now()))
        row.save(using=self._using)
        return row

    @writes
    def end(
        self,
        batch: Batch,
        status: str,
        *,
        output_file_id: str = "",
        error_file_id: str = "",
        errors: Sequence[BatchError] = (),
    ) -> None:
        """Let a batch end: this is the one place where it becomes failed, completed, expired or cancelled.

        Its files, "" where there is none, are among those that `finalize` named last; else this raises `ClaimLost`.
        """
        row, at = self._held(batch), int(self._now())
        # An end that took its time, and was given up: since then the files were named anew, and these are gone.
        if not {output_file_id, error_file_id} <= {row.output_file_id, row.error_file_id, ""}:
            raise ClaimLost(f"the files of {row.pk} have other names now")
        row.output_file_id, row.error_file_id = output_file_id, error_file_id
        row.errors, row.worker = list(errors), ""
        row.come_to(status, at)
        row.save(using=self._using)
        # One of Anthropic's API tells nothing: its clients know no such events.
        name = None if row.is_of_messages else event_of("batch", status)
        if name is not None:
            with self._db.cursor() as cursor:
                tell(cursor, [Told(row.project, (message(name, row.pk),))], now=at)

    async def drop_lines(self, batch_id: str) -> None:
        """Forget all lines of a batch: their results are in files, or its input is wrong."""
        while not await self._remove_some_lines(batch_id):
            pass

    @reads
    def _remove_some_lines(self, batch_id: str) -> bool:
        return remove_some_lines(self._using, batch_id)

    async def purge(self) -> int:
        """Forget batches that ended and were created long ago, a few at a time; return how many."""
        old = await self._old()
        for project, batch_id in old:
            await self.delete(project, batch_id)
        return len(old)

    @reads
    def _old(self) -> Sequence[tuple[str, str]]:
        rows = Batch.objects.using(self._using).filter(created_at__lt=self._at(-KEPT_SECONDS)).exclude(status__in=OPEN)
        return list(rows.order_by("created_at").values_list("project", "pk")[:MAX_PURGED])

    # What follows runs on a thread.

    def _lines(self, batch_id: str) -> "QuerySet[BatchLine]":
        return BatchLine.objects.using(self._using).filter(batch_id=batch_id)

    def _held(self, batch: Batch) -> Batch:
        """Return a claimed batch as it is; nobody else changes it until this transaction ends. Raises `ClaimLost`."""
        rows = Batch.objects.using(self._using).select_for_update().filter(pk=batch.pk, status__in=OPEN)
        row = rows.filter(worker=batch.worker, epoch=batch.epoch).first()
        if row is None:
            raise ClaimLost(f"{batch.pk} has ended, or is another worker's")
        return row

    def _add(self, batch_id: str, lines: Sequence[NewLine]) -> None:
        rows = [
            BatchLine(
                batch_id=batch_id,
                number=each.number,
                custom_id=each.custom_id,
                body=each.body,
                body_size=len(each.body),
            )
            for each in lines
        ]
        BatchLine.objects.using(self._using).bulk_create(rows, batch_size=WRITTEN_AT_ONCE, ignore_conflicts=True)

    def _keep_done(self, row: Batch, done: Sequence[DoneLine]) -> None:
        """Keep what came of lines, and count it, once however often this is called."""
        left = self._lines(row.pk).filter(number__in=[line.number for line in done]).exclude(state=DONE)
        numbers = set(left.values_list("number", flat=True))
        if not (news := [line for line in done if line.number in numbers]):
            return
        with self._db.cursor() as cursor:
            cursor.executemany(
                _KEEP_DONE,
                [(line.outcome, line.result, len(line.result), b"", row.pk, line.number) for line in news],
            )
        tokens = sum((line.tokens for line in news), NO_TOKENS)
        row.completed += sum(line.outcome == SUCCEEDED for line in news)
        row.failed += sum(line.outcome == ERRORED for line in news)
        row.input_tokens += tokens.input
        row.cached_tokens += tokens.cached
        row.output_tokens += tokens.output
        row.reasoning_tokens += tokens.reasoning
        counts = ["completed", "failed", "input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens"]
        row.save(using=self._using, update_fields=counts)


def _fitting(sizes: Iterable[tuple[int, int]], most: int) -> Sequence[int]:
    """Return the first numbers of these pairs whose sizes together are at most so many bytes, at least one of them."""
    numbers, together = list[int](), 0
    for number, size in sizes:
        together += size
        if numbers and together > most:
            break
        numbers.append(number)
    return numbers
