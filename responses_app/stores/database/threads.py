"""The threads that speak to the database, and its errors as `StoreError`s, whose text has one line.

`DatabaseReaders`: a few threads that read, with connections that `pool` lends; what is asked there every second goes
together into one statement. `ThreadedStore` is what stores have in common that read and write there.

`CoalescingWriter`: one thread that writes: whatever is asked while a transaction commits goes into the next, together.

A commit costs far more than a row, and there is one writer to a SQLite file at a time anyway; so fifty responses that
end at once cost one transaction, not fifty. Nothing waits for others to come: an idle writer commits at once.

The thread is an executor's. It sleeps while there is nothing to write. It is not a daemon: an interpreter that ends
without `close` still lets it finish what is queued.

How a record gets through: `write` puts it in the queue and, where no drain is under way, submits one. `_drain` takes
what is queued, at most 500 records, commits it, answers those who wait, and takes what has come meanwhile, until there
is nothing. Example, with commits of 4 ms: of 50 records that come within one millisecond, the first goes into a
transaction of its own, which starts at once; the other 49 go into the second. The last of them waits 8 ms, where a
transaction each would take 200.

What can fail, and who learns of it:

- The database is locked, restarts or is away: the same transaction is tried again, on a new connection, as long as the
  timeout allows. Then all records of the batch fail with `StoreError`.
- It has no connection left: that is waited for, by readers too.
- One record is at fault (a value that a column does not take): the batch fails as a whole, so each record is written by
  itself, and only the bad one fails.
- The answer to a COMMIT is lost: nobody knows whether it went through. It is tried again, so writing a record twice
  must not be an error.
- A caller's time is up: what still waits in the queue is withdrawn and never written. What is being committed cannot be
  withdrawn, and may be written after its caller was told that it failed.
"""

import asyncio
import logging
import math
import re
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain, islice, repeat
from threading import Lock
from typing import Generic, TypeVar

from django.db import Error, InterfaceError, OperationalError, ProgrammingError, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from engine.errors import reason_of
from responses_app.stores.base import NotMigrated, StoreClosed, StoreError
from responses_app.stores.clock import StoreClock
from responses_app.stores.database.causes import ALL_LENT, cause_of, is_full
from responses_app.stores.database.deadline import process_ends_at, within
from responses_app.stores.database.polling import Question, Row, answers
from responses_app.stores.database.pool import hold, let_go
from responses_app.stores.retention import Retentions

logger = logging.getLogger("respsite.stores")

# The database is locked, restarts, or dropped the connection: the same transaction may succeed on a new connection.
PASSING = (OperationalError, InterfaceError)
# For example `no such table: responses_app_response`.
_LACKS = re.compile(r"no such table: |no such column: \"?responses_app_|has no column named ")  # SQLite
_UNDEFINED = ("42P01", "42703")  # PostgreSQL: a table, a column
_lack_is_logged = Lock()  # taken once it is told, for as long as the process lives


def in_one_line(error: Exception) -> str:
    """Return what an exception is and says."""
    return f"{type(error).__name__}: {reason_of(error)}"


def store_error(error: Exception) -> StoreError:
    """Return the failure as those who use a store know it; never raised twice, so each caller gets its own."""
    failure = NotMigrated() if is_unmigrated(error) else StoreError(in_one_line(error))
    failure.__cause__ = error
    failure.passing = isinstance(error, PASSING)
    failure.cause = cause_of(error)
    return failure


def is_unmigrated(error: Exception) -> bool:
    """Whether the database lacks a table or a column; the first time that is told. To try again helps nobody."""
    if isinstance(error, ProgrammingError):
        lacks = getattr(error.__cause__, "sqlstate", None) in _UNDEFINED
    else:
        lacks = isinstance(error, OperationalError) and _LACKS.search(str(error)) is not None
    # The lock is never released: whoever gets it tells, and nobody after.
    if lacks and _lack_is_logged.acquire(blocking=False):
        logger.error("%s", NotMigrated())
    return lacks


def too_slow(seconds: float) -> StoreError:
    """Return the failure of a database that does not answer in time."""
    failure = StoreError(f"The database did not answer within {seconds:g} s.")
    failure.passing = True
    return failure


Result = TypeVar("Result")

THREADS = 4  # of each `DatabaseReaders`; more would not read faster, since they share the interpreter's lock
IMPATIENT_SECONDS = 1.0  # how long a query that is not to wait for a connection does so: less than `/ready` waits
FULL_SECONDS = 0.25  # until a database that has no connection left is asked for one again
GATHER_SECONDS = 0.005  # how long a question that is polled waits for others: duties that wake together take 1 ms
APART_SECONDS = 60.0  # how long each is asked alone behind a failure: a lock on one table may last, and hold up all


class DatabaseReaders:
    """Runs queries off the event loop; at most `THREADS` at once, the others wait their turn.

    A query whose connection turns out to be broken, or to lead to a server that is not the primary any more, is done
    once more, on a new one: so it may be called twice. To ask before each query whether its connection still works
    would cost another round trip to the database.
    `timeout` bounds, in seconds, how long a query and its turn may take. Several stores may hold the same readers: the
    last one to close them ends them. `urgent` queries get a connection before others.
    """

    def __init__(self, using: str, *, timeout: float = math.inf, urgent: bool = False) -> None:
        self._holders = 0  # stores that share these, and have not closed them
        self.using = using
        self._timeout = timeout
        self._urgent = urgent
        self._executor = ThreadPoolExecutor(THREADS, thread_name_prefix="store-reader")
        self._pool = hold(using)
        self._closed = False
        self._trouble: str | None = None  # why no connection was to be had, as long as none is
        self._apart_until = -math.inf  # of a loop's time
        # The questions that wait to be asked together, and what asks them.
        self._polling: tuple[dict[Question, None], asyncio.Task[_Answers]] | None = None
        self._asks: set[asyncio.Task[_Answers]] = set()  # all that run

    async def run(self, query: Callable[[BaseDatabaseWrapper], Result], *, waits: bool = True) -> Result:
        """Return what `query` returns, called on a reader's thread with a connection.

        It `waits` for a connection where none is to be had, or fails with the reason before long.

        Raises:
            StoreError: the database failed or did not answer in time, or the readers are closed.
        """
        try:
            running = asyncio.get_running_loop().run_in_executor(self._executor, self._query, query, waits)
        except RuntimeError as error:
            raise StoreClosed("The readers are closed.") from error
        try:
            async with asyncio.timeout(None if math.isinf(self._timeout) else self._timeout):
                # Where the time is up the thread goes on, until `within` ends its query.
                return await running
        except TimeoutError:
            failure = too_slow(self._timeout)
            # Its own thread may wait for a connection still, or has not begun to.
            failure.cause = cause_of(OperationalError(ALL_LENT)) if self._pool.is_waited_for else self._trouble
            raise failure from None

    async def poll(self, question: Question) -> Sequence[Row]:
        """Return the rows of a question, asked with all others that come within `GATHER_SECONDS`, and after this call.

        Where that has failed each is asked alone, for `APART_SECONDS`.

        Raises:
            StoreError: as `run`.
        """
        loop = asyncio.get_running_loop()
        if loop.time() < self._apart_until:
            return await self.run(lambda connection: _answer(connection, question))
        # One that waits in another loop may wait there for ever.
        if self._polling is None or self._polling[1].get_loop() is not loop:
            questions: dict[Question, None] = {}
            self._polling = questions, loop.create_task(self._ask(questions), name="poll the database")
            self._asks.add(self._polling[1])
            self._polling[1].add_done_callback(self._asks.discard)
        questions, asking = self._polling
        questions[question] = None
        # `shield`: a caller that is cancelled ends only its own wait.
        answer = (await asyncio.shield(asking))[question]
        if isinstance(answer, StoreError):
            raise _once_more(answer)
        return answer

    async def _ask(self, questions: dict[Question, None]) -> "_Answers":
        await asyncio.sleep(GATHER_SECONDS)
        self._polling = None  # whoever comes from now on is not in the statement
        try:
            return await self.run(lambda connection: _answers(connection, list(questions)))
        except StoreError as problem:
            self._apart_until = asyncio.get_running_loop().time() + APART_SECONDS
            return dict.fromkeys(questions, problem)

    def held(self) -> "DatabaseReaders":
        """Return them for one more store, which closes them once."""
        self._holders += 1
        return self

    async def aclose(self) -> None:
        """Let running queries end, then end the threads and their connections. Safe to call twice, if nobody shares."""
        self._holders -= 1
        if self._holders <= 0:
            await asyncio.to_thread(self._close)
            # Whoever has asked may be gone. They end now: there is nobody to ask any more.
            loop = asyncio.get_running_loop()
            await asyncio.gather(*(task for task in self._asks if task.get_loop() is loop), return_exceptions=True)

    def _query(self, query: Callable[[BaseDatabaseWrapper], Result], waits: bool) -> Result:
        ends_at = time.monotonic() + self._timeout
        gives_up_at = min(ends_at if waits else time.monotonic() + IMPATIENT_SECONDS, process_ends_at())
        while True:
            try:
                with self._pool.lent(ends_at=gives_up_at, urgent=self._urgent or not waits) as connection:
                    result = self._queried(connection, query, ends_at)
                self._trouble = None
                return result
            except Error as error:
                failure = store_error(error)
                if is_full(error) and not self._trouble:
                    logger.warning("a query has to wait: %s", failure.cause)
                self._trouble = failure.cause
                if time.monotonic() + FULL_SECONDS >= gives_up_at or not is_full(error):
                    raise failure from error
                time.sleep(FULL_SECONDS)

    def _queried(
        self, connection: BaseDatabaseWrapper, query: Callable[[BaseDatabaseWrapper], Result], ends_at: float
    ) -> Result:
        with within(connection, self._timeout, ends_at=ends_at):
            commits = _commits(connection)
            try:
                result = query(connection)
                # The server has told with this very answer that it is not the primary any more. Where that was the
                # answer to a COMMIT, the query has written, and is not done twice.
                if not _is_stale(connection) or _commits(connection) > commits or time.monotonic() >= ends_at:
                    return result
                connection.close()
            except PASSING:
                if _is_stale(connection):
                    connection.close()
                # It closes the connection only if that is broken; else the query itself has failed.
                connection.close_if_unusable_or_obsolete()
                if connection.connection is not None or time.monotonic() >= ends_at:
                    raise
        # The connection broke while it was idle: the database was started again, say.
        with within(connection, self._timeout, ends_at=ends_at):
            return query(connection)

    def _close(self) -> None:
        self._executor.shutdown(wait=True)
        if not self._closed:
            self._closed = True
            let_go(self._pool)


def _is_stale(connection: BaseDatabaseWrapper) -> bool:
    return getattr(connection, "is_stale", False)  # SQLite's never is


def _commits(connection: BaseDatabaseWrapper) -> int:
    return getattr(connection, "commits", 0)


_Answers = Mapping[Question, Sequence[Row] | StoreError]


def _answer(connection: BaseDatabaseWrapper, question: Question) -> Sequence[Row]:
    with connection.cursor() as cursor:
        return answers(cursor, [question])[0]


def _answers(connection: BaseDatabaseWrapper, questions: Sequence[Question]) -> _Answers:
    """Return the answer to each question, or why there is none."""
    with connection.cursor() as cursor:
        try:
            return dict(zip(questions, answers(cursor, questions), strict=True))
        except Error as error:
            if len(questions) == 1 or (isinstance(error, PASSING) and not is_unmigrated(error)):
                raise
    # One asks for a table that is not there, or that it may not read: no reason to answer none of the others.
    alone: dict[Question, Sequence[Row] | StoreError] = {}
    for question in questions:
        try:
            alone[question] = _answer(connection, question)
        except Error as error:
            alone[question] = store_error(error)
    return alone


def _once_more(problem: StoreError) -> StoreError:
    """Return a failure that several wait for, for one of them."""
    failure = NotMigrated() if isinstance(problem, NotMigrated) else StoreError(reason_of(problem))
    failure.__cause__ = problem
    failure.passing, failure.cause = problem.passing, problem.cause
    return failure


Own = TypeVar("Own")


class ThreadedStore(Generic[Own]):
    """A store in the database `using` whose readers write, too: its writes are too rare to be gathered.

    `timeout` bounds, in seconds, whatever waits for the database. `now` is Unix time. `shared` are the readers of
    several stores that are asked seldom, in place of `using` and `timeout`: each has threads. `polls` are those of
    all stores that are asked every second, whether there is anything to do.
    """

    unlimited: Own  # the settings of a store that is given none

    def __init__(  # noqa: PLR0913 - all that stores are made of
        self,
        *,
        using: str = "default",
        settings: Own | None = None,
        now: Callable[[], float] | None = None,
        timeout: float = math.inf,
        retentions: Retentions | None = None,
        shared: DatabaseReaders | None = None,
        polls: DatabaseReaders | None = None,
    ) -> None:
        self._using = using if shared is None else shared.using
        self._settings = self.unlimited if settings is None else settings
        self._now = now or StoreClock()
        self._retentions = retentions or Retentions()
        self._threads = (shared or DatabaseReaders(using, timeout=timeout)).held()
        self._polls = (polls or self._threads).held()
        self._closed = False

    async def aclose(self) -> None:
        """Let go of everything. Safe to call twice."""
        if not self._closed:
            self._closed = True
            await self._polls.aclose()
            await self._threads.aclose()

    def _since(self, project: str) -> float:
        """Return the time, in Unix seconds, from which on things of a project are known; below 0 for all of them."""
        return self._retentions.oldest(project, self._now())

    def _mine(self, project: str, *, dated: str = "created_at") -> dict[str, object]:
        """Return what rows of a project have that are not past its retention; `dated` tells how old one is."""
        since = self._since(project)
        young = {} if since < 0 else {f"{dated}__gt": datetime.fromtimestamp(since, UTC)}
        return {"project": project, **young}


Record = TypeVar("Record")

MAX_BATCH = 500  # records a transaction; bounds how long others wait for a SQLite file, and the rows built at once
RETRY_PAUSES = (0.05, 0.25, 1.0)  # seconds before another attempt: 4 attempts, at most 1.3 s of pauses a transaction


@dataclass(frozen=True, slots=True, eq=False)
class _Pending(Generic[Record]):
    """A record, and the loop and future of whoever waits for it."""

    record: Record
    loop: asyncio.AbstractEventLoop
    future: "asyncio.Future[None]"


class CoalescingWriter(Generic[Record]):
    """Commits records in the order they came, all that are queued in one transaction.

    `commit` gets them in a list, at most `MAX_BATCH`, inside `transaction.atomic()` of the database `using`, on the
    writer's thread. It may be called again with the same records, after a failure or in parts, so writing a record
    twice must not be an error. `max_pending` bounds the records that wait beside those being committed, `timeout`
    (seconds) how long one waits, and how long a transaction goes on being tried.
    """

    def __init__(
        self,
        commit: Callable[[Sequence[Record]], None],
        *,
        using: str = "default",
        max_pending: int = 10_000,
        timeout: float = math.inf,
    ) -> None:
        self._commit = commit
        self._using = using
        self._max_pending = max_pending
        self._timeout = timeout
        self._lock = Lock()  # over all below; never held while anything blocks
        self._queue: deque[_Pending[Record]] = deque()
        self._draining = False
        self._executor: ThreadPoolExecutor | None = None
        self._pool = hold(using)
        self._closed = False

    def start(self) -> None:
        """Get ready; the thread starts with the first write.

        Raises:
            StoreError: it was closed before.
        """
        with self._lock:
            if self._closed:
                raise StoreClosed("The writer was closed.")
            if self._executor is None:
                self._executor = ThreadPoolExecutor(1, thread_name_prefix="store-writer")

    async def write(self, record: Record) -> None:
        """Return when the record is committed. A caller that is cancelled stops waiting; the record is written still.

        Raises:
            StoreError: it could not be committed, `max_pending` records wait already, or the writer does not run. Or
                the time was up: if it was being committed then, nobody knows whether it is or will be; else it never
                is.
        """
        loop = asyncio.get_running_loop()
        pending = _Pending(record, loop, loop.create_future())
        self._enqueue(pending)
        try:
            async with asyncio.timeout(None if math.isinf(self._timeout) else self._timeout):
                await pending.future
        except TimeoutError:
            self._withdraw(pending)
            raise too_slow(self._timeout) from None

    def close(self) -> None:
        """Commit what is queued, then end the thread. Safe to call twice, from any thread.

        Blocks for as long as the commits take, which `RETRY_PAUSES` and the database's own timeouts bound. Not for the
        event loop: use `aclose` there.
        """
        with self._lock:
            first, self._closed = not self._closed, True
            executor = self._executor
        if executor is not None:
            executor.shutdown(wait=True)
        if first:
            let_go(self._pool)

    async def aclose(self) -> None:
        """Do what `close` does without blocking the loop."""
        await asyncio.to_thread(self.close)

    def _enqueue(self, pending: _Pending[Record]) -> None:
        with self._lock:
            if self._executor is None or self._closed:
                raise StoreError("The writer does not run.")
            if len(self._queue) >= self._max_pending:
                raise StoreError(f"{self._max_pending} records wait to be written already.")
            self._queue.append(pending)
            if not self._draining:
                self._draining = True
                # Under the lock: two callers must not both find that nobody drains.
                self._executor.submit(self._drain)

    def _withdraw(self, pending: _Pending[Record]) -> None:
        # By identity (`eq=False`), so it is this very record.
        with self._lock, suppress(ValueError):  # not in the queue: it is being committed
            self._queue.remove(pending)

    # What follows runs on the writer's thread.

    def _drain(self) -> None:
        while batch := self._take():
            try:
                self._write(batch)
            except Exception as error:
                logger.exception("the writer failed in an unforeseen way")
                self._settle(batch, error)

    def _take(self) -> list[_Pending[Record]]:
        with self._lock:
            batch = list(islice(self._queue, MAX_BATCH))
            for _ in batch:
                self._queue.popleft()
            # Under the same lock as the look at the queue: a record that comes now either is in the batch, or sees that
            # nobody drains and submits another drain. None is left behind.
            self._draining = bool(batch)
        return batch

    def _write(self, batch: list[_Pending[Record]]) -> None:
        """Commit a batch and tell those who wait for it."""
        try:
            self._attempt(batch)
        except Exception as error:
            if _is_of_all(error):
                self._give_up(batch, error)
            elif len(batch) > 1:
                logger.warning("%d records failed together, trying one by one: %s", len(batch), in_one_line(error))
                self._write_singly(batch)
            else:
                logger.error("a record could not be written", exc_info=error)
                self._settle(batch, error)
        else:
            self._settle(batch, None)

    def _write_singly(self, batch: list[_Pending[Record]]) -> None:
        """Commit each record by itself, so that a bad one does not fail its neighbours."""
        for index, pending in enumerate(batch):
            try:
                self._attempt([pending])
            except Exception as error:
                if _is_of_all(error):  # the rest would only wait as long again, each
                    self._give_up(batch[index:], error)
                    return
                logger.error("a record could not be written", exc_info=error)
                self._settle([pending], error)
            else:
                self._settle([pending], None)

    def _give_up(self, batch: list[_Pending[Record]], error: Exception) -> None:
        if not is_unmigrated(error):  # which is told once
            logger.error("%d records could not be written: %s", len(batch), in_one_line(error))
        self._settle(batch, error)

    def _attempt(self, batch: list[_Pending[Record]]) -> None:
        """Run one transaction, again on a new connection while it fails for a passing reason."""
        records = [pending.record for pending in batch]
        # A batch that has waited for its turn has its time anew: its callers' own timeouts run beside it.
        ends_at = time.monotonic() + self._timeout  # of all attempts together
        connects_anew = False
        for pause in chain(RETRY_PAUSES, repeat(None)):
            try:
                with self._pool.lent(ends_at=ends_at, urgent=True) as connection:
                    if connects_anew:
                        connection.close()
                    self._try_once(connection, records, ends_at)
                return
            except PASSING as error:
                # Where the server was started again, each that was idle is as broken as this one.
                connects_anew = not is_full(error)
                if pause is None and is_full(error):
                    pause = FULL_SECONDS
                if is_unmigrated(error) or pause is None or time.monotonic() + pause >= min(ends_at, process_ends_at()):
                    raise
                logger.warning("the database failed, trying again in %.2f s: %s", pause, in_one_line(error))
                time.sleep(pause)

    def _try_once(self, connection: BaseDatabaseWrapper, records: Sequence[Record], ends_at: float) -> None:
        try:
            with within(connection, self._timeout, ends_at=ends_at), transaction.atomic(using=self._using):
                self._commit(records)
        except PASSING:
            # Whatever state it is in: the next attempt connects anew.
            connection.close()
            raise

    def _settle(self, batch: Sequence[_Pending[Record]], error: Exception | None) -> None:
        """Answer those who wait, with one call into each of their loops."""
        by_loop: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
        for pending in batch:
            by_loop.setdefault(pending.loop, []).append(pending.future)
        # Futures belong to loops, and this is another thread: each loop gets one call, not one for each future.
        for loop, futures in by_loop.items():
            try:
                loop.call_soon_threadsafe(_resolve, futures, error)
            except RuntimeError:  # the loop is closed, so nobody waits any more
                logger.warning("%d records were settled after their event loop had ended", len(futures))


def _is_of_all(error: Exception) -> bool:
    """Whether no single record is at fault. One may be where PostgreSQL has met what it did not foresee."""
    unforeseen = getattr(error.__cause__, "sqlstate", None) == "XX000"
    return (isinstance(error, PASSING) and not unforeseen) or is_unmigrated(error)


def _resolve(futures: "Sequence[asyncio.Future[None]]", error: Exception | None) -> None:
    for future in futures:
        if future.done():  # its caller was cancelled
            continue
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(store_error(error))
