"""`LineRunner`: the lines of one batch, run a few at a time.

    store: begun lines ──> tasks, one a line ──> results ──> store, with the next lines, in one transaction

What ended while a transaction commits goes into the next one, together with as many new lines as there are turns. Turns
are had of `FairTurns`: projects share those of a worker equally, however many lines each has.

A line that the server refuses for a time (limits, a full engine) is tried again. One that fails once it has begun is
run again only where it calls no tools, see `LineHandler.may_repeat`.
"""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress

from engine import orjson
from responses_app.kit.errors import StoreError
from responses_app.protocol.api_keys import Caller
from responses_app.protocol.errors import ApiError, server_error
from responses_app.protocol.ids import REQUEST
from responses_app.protocol.messages.errors import error_answer, messages_status, speaks_messages
from responses_app.resources.batches.handlers import LineBroken, LineHandler, LineRequest
from responses_app.resources.batches.lines import IN_PROGRESS, INTERRUPTED, Status, broken_line, output_line
from responses_app.resources.batches.message_lines import is_messages_batch, message_line
from responses_app.resources.batches.office import BatchOffice, KeyGone
from responses_app.resources.batches.records import ERRORED, SUCCEEDED, BegunLine, ClaimedBatch, DoneLine
from responses_app.runs.queues.turns import FairTurns, TurnPlace
from responses_app.stores.base import ClaimLost

logger = logging.getLogger("respsite.runs")

LOOK_SECONDS = 1.0  # between two looks at whether somebody has cancelled the batch
KEY_SECONDS = 5.0  # for which a key's limits are taken to be what they were
CANCEL_SECONDS = 600.0  # that lines which run have to end, once the batch is cancelled; as at OpenAI
MAX_PAUSE = 60.0  # seconds before a line that was refused for a time is tried again
TAKEN_BYTES = 8 << 20  # of lines that are begun at once, or the bytes of one
TIER = "default"


class LineRunner:
    """Runs the lines of a batch; `turns` are those of the worker."""

    def __init__(self, office: BatchOffice, batch: ClaimedBatch, turns: FairTurns, line: LineHandler) -> None:
        self._office = office
        self._line = line
        self._record = batch.record
        self._claim = batch.claim
        self._turns = turns
        self._status = batch.record.status
        self._after = 0  # the number of the line that was begun last
        self._all_begun = False
        self._running: dict[int, asyncio.Task[None]] = {}  # by the number of their lines
        self._untouched: set[int] = set()  # of these, lines of which nothing was done: they may be run by others
        self._paused: set[int] = set()  # lines that wait until they may be tried again
        self._done: list[DoneLine] = []  # not kept yet
        self._news = asyncio.Event()
        self._asking: asyncio.Task[TurnPlace] | None = None  # for a turn
        self._paused_until = 0.0  # by the loop's clock: until then no more lines are begun
        self._stopping = False
        self._caller = Caller(project=batch.record.project)
        self._caller_at = -KEY_SECONDS

    async def run(self) -> None:
        """Return when no line runs, and none is to be begun: all have ended, or the batch has. Raises `ClaimLost`."""
        try:
            while await self._step() and not (self._all_begun and not self._running and not self._done):
                await self._wait()
            await self._let_end()
        finally:
            await self._stop_lines()

    @property
    def is_stopping(self) -> bool:
        """Whether the batch is left to other workers."""
        return self._stopping

    def stop(self) -> None:
        """Begin no more lines; those that run may end, until `run` is cancelled."""
        self._stopping = True
        self._news.set()

    async def give_back(self) -> None:
        """Keep what has ended, and leave the batch to others. Raises `StoreError`."""
        await self._keep([])
        await self._office.store.give_back(self._record.id, self._claim, pending=sorted(self._untouched))

    async def _step(self) -> bool:
        """Keep what has ended and begin more; return whether more may be begun later."""
        places = self._places()
        try:
            self._status = await self._keep(places)
        except ClaimLost:
            raise
        except StoreError as problem:
            logger.warning("batch %s waits for the store: %s", self._record.id, problem)
            await asyncio.sleep(LOOK_SECONDS)
        finally:
            for place in places:  # those that got no line
                place.leave()
        return self._status == IN_PROGRESS and not self._is_over and not self._stopping

    @property
    def _is_over(self) -> bool:
        return self._office.now() >= self._record.expires_at

    async def _keep(self, places: list[TurnPlace]) -> Status:
        """Keep what has ended, and begin a line for each of these turns; return the status of the batch."""
        done, self._done = self._done, []
        try:
            if places:
                await self._renew_caller()
            step = await self._office.store.step(
                self._record.id,
                self._claim,
                done=done,
                after=self._after,
                limit=len(places),
                max_bytes=TAKEN_BYTES,
            )
        except BaseException:
            self._done = done + self._done
            raise
        if places and not step.lines and step.status == IN_PROGRESS:
            self._all_begun = True
        for line in step.lines:
            self._after = line.number
            self._begin(line, places.pop())
        return step.status

    def _places(self) -> list[TurnPlace]:
        """Return turns for more lines, as far as they are free; where none is, one is asked for."""
        most = self._office.settings.batch_lines_running - len(self._running)
        places: list[TurnPlace] = []
        if self._asking is not None and self._asking.done():
            places.append(self._asking.result())
            self._asking = None
        if self._all_begun or self._stopping or self._is_over or most <= 0 or _clock() < self._paused_until:
            for place in places:
                place.leave()
            return []
        if self._asking is not None:
            return []
        while len(places) < most:
            place = self._turns.place(self._record.project, TIER, 0)
            if not self._turns.has_room(place):
                break
            place.ask()
            places.append(place)
        if not places:
            self._asking = asyncio.create_task(self._ask(), name="turn of a batch")
        return places

    async def _ask(self) -> TurnPlace:
        place = self._turns.place(self._record.project, TIER, 0)
        await place.wait()
        self._news.set()
        return place

    def _begin(self, line: BegunLine, place: TurnPlace) -> None:
        self._untouched.add(line.number)
        task = asyncio.create_task(self._run_line(line, place), name=f"{self._record.id} {line.number}")
        self._running[line.number] = task

        def over(_: "asyncio.Task[None]") -> None:
            place.leave()
            del self._running[line.number]
            self._news.set()

        task.add_done_callback(over)

    async def _run_line(self, line: BegunLine, place: TurnPlace) -> None:
        done = await self._answered(line, place)
        if done is not None:
            self._untouched.discard(line.number)
            self._done.append(done)

    async def _answered(self, line: BegunLine, place: TurnPlace) -> DoneLine | None:
        """Return what came of a line; None where it is for another worker."""
        record, request_id = self._record, self._office.new_id(REQUEST)
        repeats = self._line.may_repeat(orjson.loads(line.body))
        if line.again and not repeats:
            self._untouched.discard(line.number)
            return self._as_broken(line, request_id)
        while True:
            asked = LineRequest(endpoint=record.endpoint, body=line.body, caller=self._caller, request_id=request_id)
            if not repeats:
                self._untouched.discard(line.number)
            try:
                answer = await self._line.answer(asked)
                result = (
                    message_line(line.custom_id, answer.content)
                    if is_messages_batch(record.id)
                    else output_line(request_id, line.custom_id, status=200, content=answer.content)
                )
                return DoneLine(number=line.number, outcome=SUCCEEDED, result=result, tokens=answer.tokens)
            except ApiError as error:  # before anything of it was done
                self._untouched.add(line.number)
                problem, again = error, error.helps_to_wait
            except LineBroken as error:
                problem, again = error.problem, error.problem.helps_to_wait and repeats
            except Exception:
                logger.exception("line %d of batch %s broke", line.number, record.id)
                problem, again = server_error(request_id), False
            if self._stopping and problem.status >= 500:
                return None  # it is the stop that has broken it
            if not again:
                return self._as_error(line, request_id, problem)
            await self._pause(line, problem, place)
            if self._stopping or self._status != IN_PROGRESS:
                return None  # it has not begun, and is not to begin any more

    async def _pause(self, line: BegunLine, problem: ApiError, place: TurnPlace) -> None:
        """Wait until a line may be tried again; its turn is for others meanwhile."""
        place.leave()
        seconds = min(MAX_PAUSE, problem.retry_after or 1)
        self._paused_until = max(self._paused_until, _clock() + seconds)
        self._paused.add(line.number)
        try:
            await asyncio.sleep(seconds)
            await place.wait()
        finally:
            self._paused.discard(line.number)

    def _as_error(self, line: BegunLine, request_id: str, problem: ApiError) -> DoneLine:
        speaks = speaks_messages(self._record.endpoint, {})
        if is_messages_batch(self._record.id):
            result = message_line(line.custom_id, orjson.dumps(error_answer(problem, request_id)), errored=True)
        else:
            told = error_answer(problem, request_id) if speaks else {"error": problem.body()}
            status = messages_status(problem.status) if speaks else problem.status
            result = output_line(request_id, line.custom_id, status=status, content=orjson.dumps(told))
        return DoneLine(number=line.number, outcome=ERRORED, result=result)

    def _as_broken(self, line: BegunLine, request_id: str) -> DoneLine:
        """Return a line of which nobody knows how far it came, and that is not to be run twice."""
        if is_messages_batch(self._record.id):
            return self._as_error(line, request_id, ApiError(INTERRUPTED, status=500, type="server_error"))
        result = broken_line(request_id, line.custom_id, INTERRUPTED)
        return DoneLine(number=line.number, outcome=ERRORED, result=result)

    async def _renew_caller(self) -> None:
        if _clock() - self._caller_at >= KEY_SECONDS:
            self._caller_at = _clock()
            try:
                self._caller = await self._office.caller(self._record)
            except KeyGone as gone:
                # As if a client had: no more lines are begun, and those that run may end.
                logger.warning("batch %s is cancelled: %s", self._record.id, gone)
                at = int(self._office.now())
                await self._office.store.cancel(self._record.project, self._record.id, at=at)

    async def _wait(self) -> None:
        """Wait for a line that ends, a turn, or the time to look again."""
        until = min(_clock() + LOOK_SECONDS, _clock() + max(0.0, self._record.expires_at - self._office.now()))
        if _clock() < self._paused_until:
            until = min(until, self._paused_until)
        with suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                await self._news.wait()
        self._news.clear()

    async def _let_end(self) -> None:
        """Let the lines that run end, as long as the batch allows, and keep what came of them.

        Those that are paused are not tried again.
        """
        for number in self._paused:
            self._running[number].cancel()
        until = _clock() + CANCEL_SECONDS
        while (self._running or self._done) and not self._is_over and _clock() < until:
            if self._done:
                await self._step()
            elif self._running:
                await self._wait()
        await self._stop_lines()
        while self._done and not self._stopping:
            await self._step()

    async def _stop_lines(self) -> None:
        """Stop what still runs; the lines stay begun."""
        tasks: Sequence[asyncio.Task[object]] = [*self._running.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._asking is not None:
            self._asking.cancel()
            with suppress(asyncio.CancelledError):
                (await self._asking).leave()
            self._asking = None


def _clock() -> float:
    return asyncio.get_running_loop().time()
