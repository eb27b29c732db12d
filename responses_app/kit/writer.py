"""`CoalescingWriter`: one thread that writes. Whatever is asked while a transaction commits goes into the next one.

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
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, islice, repeat
from threading import Lock
from typing import Generic, TypeVar

from django.db import transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from responses_app.kit.errors import StoreClosed, StoreError, is_full
from responses_app.kit.pool import hold, let_go, process_ends_at, within
from responses_app.kit.threads import FULL_SECONDS, PASSING, in_one_line, is_unmigrated, store_error, too_slow

logger = logging.getLogger("respsite.stores")

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
