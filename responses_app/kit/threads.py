"""`DatabaseReaders`: a few threads that speak to the database. Its errors become `StoreError`s of one line.

Their connections are lent by `pool`. What workers ask again and again, whether there is anything for them to do:

    each second   webhooks, batches, orphans, … ── a question each ──> one statement on one thread

Nearly always there is nothing. Then a call on a thread and a statement cost far more than the answer, so the questions
that come together are asked together (`DatabaseReaders.poll`).
"""

import asyncio
import logging
import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from threading import Lock
from typing import TypeVar

from django.db import Error, InterfaceError, OperationalError, ProgrammingError
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.utils import CursorWrapper

from engine.errors import reason_of
from responses_app.kit.errors import ALL_LENT, NotMigrated, StoreClosed, StoreError, cause_of, is_full
from responses_app.kit.pool import hold, let_go, process_ends_at, within

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


Row = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Question:
    """A SELECT of a text and a number, without an order and without a limit."""

    columns: str
    rest: str  # from FROM on
    values: tuple[str | datetime, ...] = ()  # of its parameters


def any_of(rest: str, *values: str | datetime) -> Question:
    """Return the question whether there is any row; `rest` is behind FROM. Its answer has one row, or none."""
    return Question("'', 1", f"WHERE EXISTS (SELECT 1 FROM {rest})", values)


def answers(cursor: CursorWrapper, questions: Sequence[Question]) -> Sequence[Sequence[Row]]:
    """Return the rows of each question, of all with one statement."""
    parts = (f"SELECT {place}, {each.columns} {each.rest}" for place, each in enumerate(questions))
    values = (value for each in questions for value in each.values)
    adapted = cursor.db.ops.adapt_datetimefield_value  # not every driver takes a time
    cursor.execute(
        " UNION ALL ".join(parts), [adapted(value) if isinstance(value, datetime) else value for value in values]
    )
    found: list[list[Row]] = [[] for _ in questions]
    for place, text, number in cursor.fetchall():
        found[place].append((text, number))
    return found


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
            commits = getattr(connection, "commits", 0)
            try:
                result = query(connection)
                # The server has told with this very answer that it is not the primary any more. Where that was the
                # answer to a COMMIT, the query has written, and is not done twice.
                has_written = getattr(connection, "commits", 0) > commits
                if has_written or not getattr(connection, "is_stale", False) or time.monotonic() >= ends_at:
                    return result
                connection.close()
            except PASSING:
                if getattr(connection, "is_stale", False):
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
