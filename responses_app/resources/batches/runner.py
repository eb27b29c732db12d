"""`LineRunner`: the lines of one batch, run a few at a time.

    store: begun lines ──> tasks, one a line ──> results ──> store, with the next lines, in one transaction

What ended while a transaction commits goes into the next one, together with as many new lines as there are turns. Turns
are had of `FairTurns`: projects share those of a worker equally, however many lines each has.

A line that the server refuses for a time (limits, a full engine) is tried again. One that fails once it has begun is
run again only where it calls no tools, see `LineHandler.may_repeat`.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from engine import orjson
from responses_app.kit.clock import unix
from responses_app.kit.errors import StoreError
from responses_app.protocol.api_keys import Caller, is_by_session
from responses_app.protocol.errors import ApiError, server_error
from responses_app.protocol.ids import REQUEST
from responses_app.protocol.messages.errors import error_answer, messages_status, speaks_messages
from responses_app.resources.batches.fields import BatchSettings
from responses_app.resources.batches.handlers import LineBroken, LineHandler, LineRequest
from responses_app.resources.batches.lines import (
    ERRORED,
    INTERRUPTED,
    SUCCEEDED,
    NewLine,
    broken_line,
    message_line,
    output_line,
)
from responses_app.resources.batches.model import BEGUN, IN_PROGRESS, Batch, BatchLine
from responses_app.resources.batches.store import Batches, DoneLine
from responses_app.runs.plan.turns import FairTurns, TurnPlace
from responses_app.stores.base import ClaimLost

if TYPE_CHECKING:
    from responses_app.resources.files.store import Files
    from responses_app.resources.projects.callers import KeyStore

logger = logging.getLogger("respsite.runs")

LOOK_SECONDS = 1.0  # between two looks at whether somebody has cancelled the batch
KEY_SECONDS = 5.0  # for which a key's limits are taken to be what they were
CANCEL_SECONDS = 600.0  # that lines which run have to end, once the batch is cancelled; as at OpenAI
MAX_PAUSE = 60.0  # seconds before a line that was refused for a time is tried again
TAKEN_BYTES = 8 << 20  # of lines that are begun at once, or the bytes of one
TIER = "default"


class KeyGone(Exception):
    """The key that a batch was created with was deleted."""


class ReadLines(Protocol):
    """Reads a part of a project's input, which counts as running for that time; see `JsonReader.read`."""

    def __call__(
        self, project: str, size: int, content: Callable[[], bytes], parse: Callable[[bytes], Sequence[NewLine]], /
    ) -> Awaitable[Sequence[NewLine]]:
        """Return the lines that `parse` reads in the content. Raises `EndsWorkers` for content that ends workers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchContext:
    """What the work on batches needs of the rest of the server."""

    store: Batches
    files: "Files"
    keys: "KeyStore"
    settings: BatchSettings
    max_line_bytes: int
    read: ReadLines
    loads: Callable[[bytes], object]  # reads a body; raises `ApiError` and `orjson.JSONDecodeError`
    check_model: Callable[[str, str | None, Caller], None]  # raises `ApiError` for a model that an endpoint has not
    new_id: Callable[[str], str]
    now: Callable[[], float]  # Unix seconds

    async def caller(self, batch: Batch) -> Caller:
        """Return who a batch works for: its project by the key that it was created with, whether that still opens.

        So a batch goes on as a background response does. Raises `KeyGone` where the key was deleted: nobody knows any
        more what it might do. Raises `StoreError`.
        """
        if batch.key_id and not is_by_session(batch.key_id):
            key = await self.keys.get(batch.key_id)
            if key is None:
                raise KeyGone(f"the key {batch.key_id} of batch {batch.id} was deleted")
            return Caller.by_key(key)
        if not batch.key_id:
            return Caller(project=batch.project)
        return Caller(project=batch.project, limited=await self.keys.limits_of_project(batch.project))


class LineRunner:
    """Runs the lines of a batch; `turns` are those of the worker."""

    def __init__(self, context: BatchContext, batch: Batch, turns: FairTurns, line: LineHandler) -> None:
        self._context = context
        self._line = line
        self._batch = batch  # as it was claimed
        self._expires_at = unix(batch.expires_at)
        self._turns = turns
        self._status = batch.status
        self._after = 0  # the number of the line that was begun last
        self._all_begun = False
        self._running: dict[int, asyncio.Task[None]] = {}  # by the number of their lines
        self._untouched: set[int] = set()  # of these, lines of which nothing was done: they may be run by others
        self._paused: set[int] = set()  # lines that wait until they may be tried again
        self._done: list[DoneLine] = []  # not kept yet
        self._news = asyncio.Event()
        self._turn: asyncio.Task[TurnPlace] | None = None  # that is waited for
        self._paused_until = 0.0  # by the loop's clock: until then no more lines are begun
        self._stopping = False
        self._caller = Caller(project=batch.project)
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
        await self._context.store.give_back(self._batch, pending=sorted(self._untouched))

    async def _step(self) -> bool:
        """Keep what has ended and begin more; return whether more may be begun later."""
        places = self._places()
        try:
            self._status = await self._keep(places)
        except ClaimLost:
            raise
        except StoreError as problem:
            logger.warning("batch %s waits for the store: %s", self._batch.pk, problem)
            await asyncio.sleep(LOOK_SECONDS)
        finally:
            for place in places:  # those that got no line
                place.leave()
        return self._status == IN_PROGRESS and not self._is_over and not self._stopping

    @property
    def _is_over(self) -> bool:
        return self._context.now() >= self._expires_at

    async def _keep(self, places: list[TurnPlace]) -> str:
        """Keep what has ended, and begin a line for each of these turns; return the status of the batch."""
        done, self._done = self._done, []
        try:
            if places:
                await self._renew_caller()
            status, lines = await self._context.store.step(
                self._batch, done=done, after=self._after, limit=len(places), max_bytes=TAKEN_BYTES
            )
        except BaseException:
            self._done = done + self._done
            raise
        if places and not lines and status == IN_PROGRESS:
            self._all_begun = True
        for line in lines:
            self._after = line.number
            self._begin(line, places.pop())
        return status

    def _places(self) -> list[TurnPlace]:
        """Return turns for more lines, as far as they are free; where none is, one is asked for."""
        most = self._context.settings.batch_lines_running - len(self._running)
        places: list[TurnPlace] = []
        if self._turn is not None and self._turn.done():
            places.append(self._turn.result())
            self._turn = None
        if self._all_begun or self._stopping or self._is_over or most <= 0 or _clock() < self._paused_until:
            for place in places:
                place.leave()
            return []
        if self._turn is not None:
            return []
        while len(places) < most:
            place = self._turns.place(self._batch.project, TIER, 0)
            if not self._turns.has_room(place):
                break
            place.ask()
            places.append(place)
        if not places:
            self._turn = asyncio.create_task(self._next_turn(), name="turn of a batch")
        return places

    async def _next_turn(self) -> TurnPlace:
        place = self._turns.place(self._batch.project, TIER, 0)
        await place.wait()
        self._news.set()
        return place

    def _begin(self, line: BatchLine, place: TurnPlace) -> None:
        self._untouched.add(line.number)
        task = asyncio.create_task(self._run_line(line, place), name=f"{self._batch.pk} {line.number}")
        self._running[line.number] = task

        def over(_: "asyncio.Task[None]") -> None:
            place.leave()
            del self._running[line.number]
            self._news.set()

        task.add_done_callback(over)

    async def _run_line(self, line: BatchLine, place: TurnPlace) -> None:
        done = await self._answered(line, place)
        if done is not None:
            self._untouched.discard(line.number)
            self._done.append(done)

    async def _answered(self, line: BatchLine, place: TurnPlace) -> DoneLine | None:
        """Return what came of a line; None where it is for another worker."""
        batch, request_id = self._batch, self._context.new_id(REQUEST)
        repeats = self._line.may_repeat(orjson.loads(line.body))
        if line.state == BEGUN and not repeats:  # by a process that may be dead: nobody knows how far it came
            self._untouched.discard(line.number)
            return self._as_broken(line, request_id)
        while True:
            request = LineRequest(endpoint=batch.endpoint, body=line.body, caller=self._caller, request_id=request_id)
            if not repeats:
                self._untouched.discard(line.number)
            try:
                answer = await self._line.answer(request)
                result = (
                    message_line(line.custom_id, answer.content)
                    if batch.is_of_messages
                    else output_line(request_id, line.custom_id, status=200, content=answer.content)
                )
                return DoneLine(number=line.number, outcome=SUCCEEDED, result=result, tokens=answer.tokens)
            except ApiError as error:  # before anything of it was done
                self._untouched.add(line.number)
                problem, again = error, error.helps_to_wait
            except LineBroken as error:
                problem, again = error.problem, error.problem.helps_to_wait and repeats
            except Exception:
                logger.exception("line %d of batch %s broke", line.number, batch.pk)
                problem, again = server_error(request_id), False
            if self._stopping and problem.status >= 500:
                return None  # it is the stop that has broken it
            if not again:
                return self._as_error(line, request_id, problem)
            await self._pause(line, problem, place)
            if self._stopping or self._status != IN_PROGRESS:
                return None  # it has not begun, and is not to begin any more

    async def _pause(self, line: BatchLine, problem: ApiError, place: TurnPlace) -> None:
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

    def _as_error(self, line: BatchLine, request_id: str, problem: ApiError) -> DoneLine:
        speaks = speaks_messages(self._batch.endpoint, {})
        if self._batch.is_of_messages:
            result = message_line(line.custom_id, orjson.dumps(error_answer(problem, request_id)), errored=True)
        else:
            error = error_answer(problem, request_id) if speaks else {"error": problem.body()}
            status = messages_status(problem.status) if speaks else problem.status
            result = output_line(request_id, line.custom_id, status=status, content=orjson.dumps(error))
        return DoneLine(number=line.number, outcome=ERRORED, result=result)

    def _as_broken(self, line: BatchLine, request_id: str) -> DoneLine:
        """Return a line of which nobody knows how far it came, and that is not to be run twice."""
        if self._batch.is_of_messages:
            return self._as_error(line, request_id, ApiError(INTERRUPTED, status=500, type="server_error"))
        result = broken_line(request_id, line.custom_id, INTERRUPTED)
        return DoneLine(number=line.number, outcome=ERRORED, result=result)

    async def _renew_caller(self) -> None:
        if _clock() - self._caller_at >= KEY_SECONDS:
            self._caller_at = _clock()
            try:
                self._caller = await self._context.caller(self._batch)
            except KeyGone as gone:
                # As if a client had: no more lines are begun, and those that run may end.
                logger.warning("batch %s is cancelled: %s", self._batch.pk, gone)
                await self._context.store.cancel(self._batch.project, self._batch.pk)

    async def _wait(self) -> None:
        """Wait for a line that ends, a turn, or the time to look again."""
        until = min(_clock() + LOOK_SECONDS, _clock() + max(0.0, self._expires_at - self._context.now()))
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
        if self._turn is not None:
            self._turn.cancel()
            with suppress(asyncio.CancelledError):
                (await self._turn).leave()
            self._turn = None


def _clock() -> float:
    return asyncio.get_running_loop().time()
