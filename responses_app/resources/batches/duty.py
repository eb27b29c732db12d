"""`BatchWork`: the duty of a worker to work on batches, and `ClaimedBatch`, one of them from its input to its end.

    worker A  claims batch_1 (epoch 1) ── reads its input ── runs its lines ── is killed
    worker B  A's last beat is older than a lease ── claims batch_1 (epoch 2) ── goes on behind what A has kept
    worker A  was only slow? Whatever it writes names epoch 1, and changes nothing: it stops.

A worker claims what nobody works on, a few batches at once. Their lines share `batch_lines_running` turns.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import suppress

from responses_app.kit.duty import end_tasks, keep_looking
from responses_app.kit.errors import StoreError
from responses_app.limits.suspects import holding
from responses_app.protocol import ids
from responses_app.protocol.errors import EndsWorkers
from responses_app.resources.batches.handlers import LineOf
from responses_app.resources.batches.lines import (
    CANCELLED,
    ERRORED,
    EXPIRED,
    NOT_RUN,
    SUCCEEDED,
    BatchError,
    InputLines,
    NewLine,
    batch_error,
    input_gone,
    key_gone,
    not_run_line,
)
from responses_app.resources.batches.model import CANCELLING, COMPLETED, FAILED, IN_PROGRESS, VALIDATING, Batch
from responses_app.resources.batches.runner import BatchContext, KeyGone, LineRunner
from responses_app.resources.files.fields import PIECE_BYTES, FileGone, NewFile
from responses_app.runs.plan.turns import FairTurns
from responses_app.stores.base import ClaimLost

logger = logging.getLogger("respsite.runs")

LOOK_SECONDS = 1.0  # between two looks at what is to be claimed
RETRY_SECONDS = 2.0  # before a batch is gone on with for which the store was away
PURGE_SECONDS = 600.0
MAX_CLAIMED = 16  # batches that one worker works on at once
# Beyond these it works on one of each project of which it has none: no project's batches keep those of another from
# beginning.
MAX_CLAIMED_BEYOND = 16
RESULTS_AT_ONCE = 500  # lines that are read at once where an output is written
LINES_AT_ONCE = 1000  # lines that are kept at once where an input is read
OUTPUT_PURPOSE = "batch_output"  # of the files that a batch writes


class ClaimedBatch:
    """A batch that this worker has claimed: `run` works on it until it has ended."""

    def __init__(self, context: BatchContext, batch: Batch, turns: FairTurns, line_of: LineOf) -> None:
        self._context = context
        self._line_of = line_of
        self.project = batch.project
        self._batch = batch  # as it was claimed
        self._row = batch  # as it was seen last
        self._turns = turns
        self._stopping = False
        self._runner: LineRunner | None = None
        self._written: list[str] = []  # ids of files that were made here: the batch may yet get others

    def stop(self) -> None:
        """Begin nothing more of it."""
        self._stopping = True
        if self._runner is not None:
            self._runner.stop()

    async def run(self) -> None:
        """Work on it until it has ended, or is another worker's."""
        while not self._stopping:
            try:
                await self._work()
                return
            except ClaimLost as lost:
                logger.info("batch %s is left: %s", self._batch.pk, lost)
                await self._forget_files()
                return
            except (StoreError, FileGone) as problem:
                logger.warning("batch %s is gone on with later: %s", self._batch.pk, problem)
            except Exception:
                logger.exception("batch %s broke, and is gone on with later", self._batch.pk)
            await asyncio.sleep(RETRY_SECONDS)
            with suppress(StoreError):
                self._row = await self._present()

    async def _present(self) -> Batch:
        """Return it as it is in the store, or, where it is gone there, as it was. Raises `StoreError`."""
        return await self._context.store.get(self._batch.project, self._batch.pk) or self._row

    async def give_back(self) -> None:
        """Leave it to others. Raises `StoreError`."""
        with suppress(ClaimLost):
            if self._runner is not None:
                await self._runner.give_back()
            else:
                await self._context.store.give_back(self._batch, pending=())

    async def _work(self) -> None:
        """Do what is left of it. Raises `ClaimLost`, `StoreError`."""
        status = self._row.status
        begun = IN_PROGRESS in self._row.times
        if status == VALIDATING:
            begun = await self._read_input()
            if not begun:
                return
        if status in (VALIDATING, IN_PROGRESS):
            self._runner = LineRunner(self._context, self._batch, self._turns, self._line_of(self._batch.endpoint))
            if self._stopping:
                return
            await self._runner.run()
            if self._runner.is_stopping:
                return
        elif not begun:  # it was cancelled before its input was read
            await self._context.store.drop_lines(self._batch.pk)
        await self._finish()

    async def _read_input(self) -> bool:
        """Read the input and keep its lines; return whether it is right. Else the batch has failed."""
        context, batch = self._context, self._batch
        try:
            caller = await context.caller(batch)
        except KeyGone:
            await self._fail([key_gone(batch.key_id)])
            return False
        lines = InputLines(
            batch.endpoint,
            max_lines=context.settings.batch_max_lines,
            max_line_bytes=context.max_line_bytes,
            loads=context.loads,
            check_model=lambda model: context.check_model(batch.endpoint, model, caller),
        )
        try:
            async for piece in context.files.pieces(batch.project, batch.input_file_id):
                await self._add(await self._read(piece, lines.feed))
                if lines.is_over:
                    break
            # By a name of its own: the piece before it was read, and is not suspected any more. Where nothing is left,
            # that would be the name of all inputs.
            left = lines.rest + b"\n"
            await self._add(await self._read(left, lambda _: lines.end()) if lines.rest else lines.end())
        except FileGone:
            await self._fail([input_gone(batch.input_file_id)])
            return False
        except EndsWorkers as problem:
            await self._fail([batch_error(problem)])
            return False
        if lines.errors:
            await self._fail(lines.errors)
            return False
        await context.store.begin(batch, total=lines.total, model=lines.model or "")
        return True

    async def _read(self, piece: bytes, parse: Callable[[bytes], Sequence[NewLine]]) -> Sequence[NewLine]:
        """Return the lines of a piece of the input. Raises `EndsWorkers`."""
        with holding():
            return await self._context.read(self._batch.project, len(piece), lambda: piece, parse)

    async def _add(self, lines: Sequence[NewLine]) -> None:
        for start in range(0, len(lines), LINES_AT_ONCE):
            await self._context.store.add_lines(self._batch, lines[start : start + LINES_AT_ONCE])

    async def _fail(self, errors: Sequence[BatchError]) -> None:
        await self._context.store.end(self._batch, FAILED, errors=errors)
        await self._context.store.drop_lines(self._batch.pk)

    async def _finish(self) -> None:
        """Let what has not run end, write the files, and end the batch."""
        store, files, new_id, batch = self._context.store, self._context.files, self._context.new_id, self._batch
        before = await self._present()
        unrun = CANCELLED if before.status == CANCELLING else EXPIRED
        has_files = not batch.is_of_messages
        output, error = (new_id(ids.FILE), new_id(ids.FILE)) if has_files else ("", "")
        row = await store.finalize(batch, unrun=unrun, output_file_id=output, error_file_id=error)
        if has_files:
            for old in (before.output_file_id, before.error_file_id):  # that a worker which died was to write
                if old:
                    await files.delete(row.project, old)
            output = await self._write(row, output, "output", (SUCCEEDED,))
            error = await self._write(row, error, "error", (ERRORED, EXPIRED, CANCELLED))
        status = CANCELLED if row.status == CANCELLING else EXPIRED if row.expired else COMPLETED
        await store.end(batch, status, output_file_id=output, error_file_id=error)
        if has_files:
            await store.drop_lines(row.pk)
        counts = {name: getattr(row, name) for name in ("total", "completed", "failed", "cancelled", "expired")}
        logger.info("batch %s is %s: %s", row.pk, status, counts)

    async def _forget_files(self) -> None:
        """Delete files that were written here for a batch which is another worker's, or is gone, and has not these."""
        batch, files = self._batch, self._context.files
        if not self._written:
            return
        try:
            now = await self._context.store.get(batch.project, batch.pk)
            kept = () if now is None else (now.output_file_id, now.error_file_id)
            for file_id in self._written:
                if file_id not in kept:
                    await files.delete(batch.project, file_id)
        except StoreError as problem:
            logger.warning("files that batch %s does not have could not be deleted: %s", batch.pk, problem)

    async def _write(self, row: Batch, file_id: str, kind: str, outcomes: Sequence[str]) -> str:
        """Write the file of the lines that ended so; return its id, "" where there are none."""
        context = self._context
        count, size = await context.store.sizes(row.pk, outcomes)
        if not count:
            return ""
        # Of lines that were never begun nothing is kept: what is said of them is made here.
        async for line in self._lines(row, [each for each in outcomes if each in NOT_RUN]):
            size += len(line)
        name = f"{row.pk}_{kind}.jsonl"
        file = NewFile(filename=name, purpose=OUTPUT_PURPOSE, bytes=size, seconds=row.output_seconds)
        self._written.append(file_id)
        try:
            pieces = _pieces(self._lines(row, outcomes))
            await context.files.create(row.project, file_id, file, pieces, over_limits=True)
        except ValueError:
            # Lines have gone while they were read. That is so where another worker has ended the batch: then this
            # raises `ClaimLost`, and else something is broken.
            await context.store.step(self._batch, done=(), after=0, limit=0, max_bytes=0)
            raise
        return file_id

    async def _lines(self, row: Batch, outcomes: Sequence[str]) -> AsyncIterator[bytes]:
        after = 0
        while outcomes:
            found = await self._context.store.results(row.pk, after=after, limit=RESULTS_AT_ONCE, outcomes=outcomes)
            for line in found:
                yield line.result or not_run_line(row.pk, line.number, line.custom_id, line.outcome)
            if not found:
                return
            after = found[-1].number


async def _pieces(lines: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield lines as pieces of a file."""
    piece = bytearray()
    async for line in lines:
        piece += line
        while len(piece) >= PIECE_BYTES:
            yield bytes(piece[:PIECE_BYTES])
            del piece[:PIECE_BYTES]
    if piece:
        yield bytes(piece)


class BatchWork:
    """The duty of a worker to work on batches. Nothing is claimed before `ready()`, and nothing once it is to stop.

    Workers that were not seen since `dead_before()`, by the store's clock in Unix seconds, are dead.
    """

    def __init__(
        self, context: BatchContext, *, worker: str, dead_before: Callable[[], float], ready: Callable[[], bool]
    ) -> None:
        self._context = context
        self._dead_before = dead_before
        self._worker = worker
        self._ready = ready
        self._turns = FairTurns(max_running=context.settings.batch_lines_running)
        self._claimed: dict[str, tuple[ClaimedBatch, asyncio.Task[None]]] = {}  # by the ids of batches
        self._is_new = asyncio.Event()
        self._looking: asyncio.Task[None] | None = None
        self._purged_at = time.monotonic()
        self._stopping = False

    def start(self, line_of: LineOf) -> None:
        """Begin to look for batches; `line_of` answers their lines."""
        self._looking = keep_looking(
            lambda: self._look(line_of), self._is_new, seconds=LOOK_SECONDS, what="looking for batches", logger=logger
        )

    def wake(self) -> None:
        """Look at once: a batch was created here."""
        self._is_new.set()

    async def stop(self) -> None:
        """Claim nothing more, and begin no more lines; those that run go on, until `aclose`."""
        self._stopping = True
        await end_tasks([self._looking])
        for claimed, _ in self._claimed.values():
            claimed.stop()

    async def over(self) -> None:
        """Return once no line runs any more, behind `stop`. What is being read, or written out, ends before, too."""
        if tasks := [task for _, task in self._claimed.values()]:
            await asyncio.wait(tasks)

    async def aclose(self) -> None:
        """Stop what still runs, and leave the batches to others: what is begun and may not be repeated fails there."""
        await end_tasks([task for _, task in self._claimed.values()])
        for batch_id, (claimed, _) in list(self._claimed.items()):
            try:
                await claimed.give_back()
            except StoreError as problem:
                logger.warning("batch %s is taken over after a lease: %s", batch_id, problem)

    async def _look(self, line_of: LineOf) -> None:
        """Claim what nobody works on, and forget what is past its time. Raises `StoreError`."""
        if not self._ready():
            return
        self._claimed = {name: each for name, each in self._claimed.items() if not each[1].done()}
        if room := max(0, MAX_CLAIMED - len(self._claimed)):
            await self._claim(line_of, room)
        while MAX_CLAIMED <= len(self._claimed) < MAX_CLAIMED + MAX_CLAIMED_BEYOND:
            if not await self._claim(line_of, 1, without={claimed.project for claimed, _ in self._claimed.values()}):
                break
        if time.monotonic() - self._purged_at >= PURGE_SECONDS:
            self._purged_at = time.monotonic()
            if gone := await self._context.store.purge():
                logger.info("%d batches past their time were forgotten", gone)

    async def _claim(self, line_of: LineOf, room: int, *, without: Collection[str] = ()) -> bool:
        """Begin to work on up to `room` batches of other projects than these; return whether there was one."""
        batches = await self._context.store.claim(
            self._worker, dead_before=self._dead_before(), limit=room, known=list(self._claimed), without=without
        )
        for batch in batches:
            claimed = ClaimedBatch(self._context, batch, self._turns, line_of)
            task = asyncio.create_task(claimed.run(), name=f"batch {batch.pk}")
            self._claimed[batch.pk] = (claimed, task)
        return bool(batches)
