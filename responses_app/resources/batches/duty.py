"""`BatchWork`: the duty of a worker to work on batches, and `_Worked`, one of them from its input to its end.

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

from responses_app.kit.duty import keep_looking
from responses_app.kit.errors import StoreError
from responses_app.limits.suspects import holding
from responses_app.protocol import ids
from responses_app.protocol.errors import EndsWorkers
from responses_app.resources.batches.handlers import LineOf
from responses_app.resources.batches.lines import (
    CANCELLED,
    CANCELLING,
    COMPLETED,
    EXPIRED,
    FAILED,
    IN_PROGRESS,
    KEPT_SECONDS,
    NOT_RUN,
    OUTPUT_PURPOSE,
    VALIDATING,
    BatchError,
    InputLines,
    NewLine,
    Status,
    input_gone,
    key_gone,
    not_run_line,
    told,
)
from responses_app.resources.batches.message_lines import is_messages_batch
from responses_app.resources.batches.office import BatchOffice, KeyGone
from responses_app.resources.batches.records import ERRORED, SUCCEEDED, BatchEnd, BatchRecord, ClaimedBatch, ResultLine
from responses_app.resources.batches.runner import LineRunner
from responses_app.runs.log.run_log import end_tasks
from responses_app.runs.queues.turns import FairTurns
from responses_app.stores.base import ClaimLost
from responses_app.stores.files import PIECE_BYTES, FileGone, FileRecord

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


class _Worked:
    """One batch, which this worker has claimed."""

    def __init__(self, office: BatchOffice, batch: ClaimedBatch, turns: FairTurns, line_of: LineOf) -> None:
        self._office = office
        self._line_of = line_of
        self._batch = batch
        self._record = batch.record
        self._turns = turns
        self._stopping = False
        self._runner: LineRunner | None = None
        self._written: list[str] = []  # ids of files that were made here: the batch may yet get others

    @property
    def project(self) -> str:
        """Whose it is."""
        return self._record.project

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
                logger.info("batch %s is left: %s", self._record.id, lost)
                await self._forget_files()
                return
            except (StoreError, FileGone) as problem:
                logger.warning("batch %s is gone on with later: %s", self._record.id, problem)
            except Exception:
                logger.exception("batch %s broke, and is gone on with later", self._record.id)
            await asyncio.sleep(RETRY_SECONDS)
            with suppress(StoreError):
                self._record = await self._office.store.get(self._record.project, self._record.id) or self._record

    async def give_back(self) -> None:
        """Leave it to others. Raises `StoreError`."""
        with suppress(ClaimLost):
            if self._runner is not None:
                await self._runner.give_back()
            else:
                await self._office.store.give_back(self._record.id, self._batch.claim, pending=())

    async def _work(self) -> None:
        """Do what is left of it. Raises `ClaimLost`, `StoreError`."""
        status = self._record.status
        begun = IN_PROGRESS in self._record.times
        if status == VALIDATING:
            begun = await self._read_input()
            if not begun:
                return
        if status in (VALIDATING, IN_PROGRESS):
            self._runner = LineRunner(self._office, self._batch, self._turns, self._line_of(self._record.endpoint))
            if self._stopping:
                return
            await self._runner.run()
            if self._runner.is_stopping:
                return
        elif not begun:  # it was cancelled before its input was read
            await self._office.store.drop_lines(self._record.id)
        await self._finish()

    async def _read_input(self) -> bool:
        """Read the input and keep its lines; return whether it is right. Else the batch has failed."""
        office, record, claim = self._office, self._record, self._batch.claim
        try:
            caller = await office.caller(record)
        except KeyGone:
            await self._fail([key_gone(record.key_id)])
            return False
        lines = InputLines(
            record.endpoint,
            max_lines=office.settings.batch_max_lines,
            max_line_bytes=office.max_line_bytes,
            loads=office.loads,
            check_model=lambda model: office.check_model(record.endpoint, model, caller),
        )
        try:
            async for piece in office.files.pieces(record.project, record.input_file_id):
                await self._add(await self._read(piece, lines.feed))
                if lines.is_over:
                    break
            # By a name of its own: the piece before it was read, and is not suspected any more. Where nothing is left,
            # that would be the name of all inputs.
            left = lines.rest + b"\n"
            await self._add(await self._read(left, lambda _: lines.end()) if lines.rest else lines.end())
        except FileGone:
            await self._fail([input_gone(record.input_file_id)])
            return False
        except EndsWorkers as problem:
            await self._fail([told(problem)])
            return False
        if lines.errors:
            await self._fail(lines.errors)
            return False
        await office.store.begin(record.id, claim, total=lines.total, model=lines.model or "", at=int(office.now()))
        return True

    async def _read(self, piece: bytes, parse: Callable[[bytes], Sequence[NewLine]]) -> Sequence[NewLine]:
        """Return the lines of a piece of the input. Raises `EndsWorkers`."""
        with holding():
            return await self._office.read(self._record.project, len(piece), lambda: piece, parse)

    async def _add(self, lines: Sequence[NewLine]) -> None:
        for start in range(0, len(lines), LINES_AT_ONCE):
            some = lines[start : start + LINES_AT_ONCE]
            await self._office.store.add_lines(self._record.id, self._batch.claim, some)

    async def _fail(self, errors: Sequence[BatchError]) -> None:
        office, batch_id = self._office, self._record.id
        await office.store.end(
            batch_id, self._batch.claim, BatchEnd(status=FAILED, at=int(office.now()), errors=errors)
        )
        await office.store.drop_lines(batch_id)

    async def _finish(self) -> None:
        """Let what has not run end, write the files, and end the batch."""
        office, claim, before = self._office, self._batch.claim, self._record
        now = await office.store.get(before.project, before.id) or before
        unrun = CANCELLED if now.status == CANCELLING else EXPIRED
        has_files = not is_messages_batch(now.id)
        output, error = (office.new_id(ids.FILE), office.new_id(ids.FILE)) if has_files else ("", "")
        record = await office.store.finalize(
            now.id, claim, unrun=unrun, output_file_id=output, error_file_id=error, at=int(office.now())
        )
        if has_files:
            for old in (now.output_file_id, now.error_file_id):  # that a worker which died was to write
                if old:
                    await office.files.delete(record.project, old)
            output = await self._write(record, output, "output", (SUCCEEDED,))
            error = await self._write(record, error, "error", (ERRORED, EXPIRED, CANCELLED))
        ended: Status = CANCELLED if record.status == CANCELLING else EXPIRED if record.counts.expired else COMPLETED
        end = BatchEnd(status=ended, at=int(office.now()), output_file_id=output, error_file_id=error)
        await office.store.end(record.id, claim, end)
        if has_files:
            await office.store.drop_lines(record.id)
        logger.info("batch %s is %s: %s", record.id, ended, record.counts)

    async def _forget_files(self) -> None:
        """Delete files that were written here for a batch which is another worker's, or is gone, and has not these."""
        record, written = self._record, self._written
        if not written:
            return
        try:
            now = await self._office.store.get(record.project, record.id)
            kept = () if now is None else (now.output_file_id, now.error_file_id)
            for file_id in written:
                if file_id not in kept:
                    await self._office.files.delete(record.project, file_id)
        except StoreError as problem:
            logger.warning("files that batch %s does not have could not be deleted: %s", record.id, problem)

    async def _write(self, record: BatchRecord, file_id: str, kind: str, outcomes: Sequence[str]) -> str:
        """Write the file of the lines that ended so; return its id, "" where there are none."""
        office = self._office
        count, size = await office.store.sizes(record.id, outcomes)
        if not count:
            return ""
        # Of lines that were never begun nothing is kept: what is said of them is made here.
        async for line in self._lines(record, [each for each in outcomes if each in NOT_RUN]):
            size += len(line)
        now = int(office.now())
        file = FileRecord(
            id=file_id,
            filename=f"{record.id}_{kind}.jsonl",
            purpose=OUTPUT_PURPOSE,
            bytes=size,
            created_at=now,
            expires_at=None if record.output_seconds is None else now + record.output_seconds,
        )
        self._written.append(file_id)
        try:
            await office.files.create(record.project, file, _pieces(self._lines(record, outcomes)), over_limits=True)
        except ValueError:
            # Lines have gone while they were read. That is so where another worker has ended the batch: then this
            # raises `ClaimLost`, and else something is broken.
            await office.store.step(record.id, self._batch.claim, done=(), after=0, limit=0, max_bytes=0)
            raise
        return file_id

    async def _lines(self, record: BatchRecord, outcomes: Sequence[str]) -> AsyncIterator[bytes]:
        after = 0
        while outcomes:
            found = await self._office.store.results(record.id, after=after, limit=RESULTS_AT_ONCE, outcomes=outcomes)
            for line in found:
                yield _output(record, line)
            if not found:
                return
            after = found[-1].number


def _output(record: BatchRecord, line: ResultLine) -> bytes:
    return line.result or not_run_line(record.id, line.number, line.custom_id, line.outcome)


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
        self, office: BatchOffice, *, worker: str, dead_before: Callable[[], float], ready: Callable[[], bool]
    ) -> None:
        self._office = office
        self._dead_before = dead_before
        self._worker = worker
        self._ready = ready
        self._turns = FairTurns(max_running=office.settings.batch_lines_running)
        self._worked: dict[str, tuple[_Worked, asyncio.Task[None]]] = {}  # by the ids of batches
        self._is_new = asyncio.Event()
        self._looking: list[asyncio.Task[None]] = []
        self._purged_at = time.monotonic()
        self._stopping = False

    def start(self, line_of: LineOf) -> None:
        """Begin to look for batches; `line_of` answers their lines."""
        looking = keep_looking(
            lambda: self._look(line_of), self._is_new, seconds=LOOK_SECONDS, what="looking for batches", logger=logger
        )
        self._looking = [asyncio.create_task(looking, name="batches")]

    def wake(self) -> None:
        """Look at once: a batch was created here."""
        self._is_new.set()

    async def stop(self) -> None:
        """Claim nothing more, and begin no more lines; those that run go on, until `aclose`."""
        self._stopping = True
        await end_tasks(self._looking)
        for worked, _ in self._worked.values():
            worked.stop()

    async def over(self) -> None:
        """Return once no line runs any more, behind `stop`. What is being read, or written out, ends before, too."""
        if tasks := [task for _, task in self._worked.values()]:
            await asyncio.wait(tasks)

    async def aclose(self) -> None:
        """Stop what still runs, and leave the batches to others: what is begun and may not be repeated fails there."""
        await end_tasks([task for _, task in self._worked.values()])
        for batch_id, (worked, _) in list(self._worked.items()):
            try:
                await worked.give_back()
            except StoreError as problem:
                logger.warning("batch %s is taken over after a lease: %s", batch_id, problem)

    async def _look(self, line_of: LineOf) -> None:
        """Claim what nobody works on, and forget what is past its time. Raises `StoreError`."""
        if not self._ready():
            return
        self._worked = {name: each for name, each in self._worked.items() if not each[1].done()}
        if room := max(0, MAX_CLAIMED - len(self._worked)):
            await self._claim(line_of, room)
        while MAX_CLAIMED <= len(self._worked) < MAX_CLAIMED + MAX_CLAIMED_BEYOND:
            if not await self._claim(line_of, 1, without={worked.project for worked, _ in self._worked.values()}):
                break
        if time.monotonic() - self._purged_at >= PURGE_SECONDS:
            self._purged_at = time.monotonic()
            if gone := await self._office.store.purge(created_before=self._office.now() - KEPT_SECONDS):
                logger.info("%d batches past their time were forgotten", gone)

    async def _claim(self, line_of: LineOf, room: int, *, without: Collection[str] = ()) -> bool:
        """Begin to work on up to `room` batches of other projects than these; return whether there was one."""
        store, dead_before, known = self._office.store, self._dead_before(), list(self._worked)
        if not await store.has_work(self._worker, dead_before=dead_before, known=known, without=without):
            return False
        claimed = await store.claim(self._worker, dead_before=dead_before, limit=room, known=known, without=without)
        for batch in claimed:
            worked = _Worked(self._office, batch, self._turns, line_of)
            task = asyncio.create_task(worked.run(), name=f"batch {batch.record.id}")
            self._worked[batch.record.id] = (worked, task)
        return bool(claimed)
