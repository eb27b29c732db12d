"""Django's PostgreSQL for servers that hang, restart and change places: DATABASES names this package as its ENGINE.

A server that hangs, or a process of it that does, keeps its TCP connections and answers nothing: no timeout of
PostgreSQL's own is honoured then, and the client's driver would wait for ever. So connections have a deadline.

A failure that passes is an `OperationalError`, and its connection is not used again. The driver tells by its class what
it thinks of a SQLSTATE, and takes some of those that pass for a fault of the statement: `PASSING_STATES`.

In a failover the server that was the primary may go on answering, and only lets read. Behind a proxy, a virtual address
or a list of hosts, a new connection leads to the new primary: so one to a server that only lets read is made anew. An
idle connection is told of that with its next answer, which may be of the past by then: see `DatabaseReaders`.

A pooler as PgBouncer may lend each transaction another session of the server's. So nothing is left in a session that is
not the connection's own: no setting (`deadline`), and no cursor.
"""

import math
import time
from collections.abc import Callable, Generator
from functools import partial
from typing import Any

from django.db import Error
from django.db import OperationalError as PassingError
from django.db.backends.postgresql import base
from django.db.utils import DatabaseErrorWrapper
from django.utils.functional import cached_property
from psycopg import InternalError, OperationalError
from psycopg.pq import ConnStatus

from responses_app.kit.pool import BOUND_TRANSACTION, process_ends_at

MIN_CONNECT_SECONDS = 2  # what libpq takes at least
PASSING_STATES = frozenset(
    {
        "25006",  # read_only_sql_transaction: a standby, or a server that was told to take no writes
        "25P03",  # idle_in_transaction_session_timeout
        "25P04",  # transaction_timeout
        "XX000",  # a process of the server is ending, or met what another one has left half done
    }
)
# PostgreSQL reports these, and each change of them, on every connection.
_ONLY_READS = (b"in_hot_standby", b"default_transaction_read_only")
ANEW_SECONDS = 1.0  # the least time between two connections of a thread to servers that only let read


class DatabaseWrapper(base.DatabaseWrapper):
    """`deadline` (of `time.monotonic()`) is when whatever waits for the server's answer raises `OperationalError`.

    So does the end of the process's own time, also where a connection has no deadline.

    The connection is closed then: nobody knows what the server has done, or will do yet. See `kit.pool`.
    """

    deadline: float | None = None
    connected_at = math.inf  # of `time.monotonic()`; still to come while it connects, which asks the server too
    has_failed = False  # in a way that passes, on the present connection
    commits = 0  # of transactions, so far
    # In milliseconds, that of statements and of pauses between them; None where the session has it, or none was given.
    limit_of_transactions: str | None = None

    @cached_property
    def wrap_database_errors(self) -> DatabaseErrorWrapper:
        """What raises the driver's errors as Django's."""
        return _Errors(self)

    def ensure_connection(self) -> None:
        """Connect, and anew to a server that only lets read."""
        if not self.in_atomic_block and self.is_stale:
            self.close()
        super().ensure_connection()

    @property
    def is_stale(self) -> bool:
        """Whether a new connection may do what the present one does not, or has newer answers."""
        if self.connection is None:
            return False
        is_old = time.monotonic() - self.connected_at > ANEW_SECONDS
        return self.has_failed or (is_old and self.only_reads)

    @property
    def only_reads(self) -> bool:
        """Whether the server of the open connection has said that it only lets read."""
        driver = self.connection.pgconn
        return driver.status == ConnStatus.OK and any(driver.parameter_status(name) == b"on" for name in _ONLY_READS)

    def connect(self) -> None:
        """Connect, and note when."""
        self.connected_at, self.has_failed, self.limit_of_transactions = math.inf, False, None
        super().connect()
        self.connected_at = time.monotonic()

    def chunked_cursor(self) -> Any:
        """Return a cursor that the server keeps, in a transaction; outside of one, a cursor that has read it all.

        A server's cursor that outlives its transaction would be left in a session that a pooler lends to others, and be
        gone with a connection that is made anew beside it. `read_in_chunks` has a transaction.
        """
        return super().chunked_cursor() if self.in_atomic_block else self.cursor()

    def _set_autocommit(self, autocommit: bool) -> None:
        super()._set_autocommit(autocommit)
        if autocommit or self.limit_of_transactions is None:
            return
        try:
            with self.wrap_database_errors:
                self.connection.execute(BOUND_TRANSACTION, {"limit": self.limit_of_transactions})
        except Error:
            self.close()  # it is in no state that Django knows
            raise

    def _commit(self) -> None:
        super()._commit()
        self.commits += 1

    def get_new_connection(self, conn_params: dict[str, Any]) -> Any:
        """Connect; `connect_timeout` bounds that, or what is left to a process that stops."""
        left = process_ends_at() - time.monotonic()
        if left <= 0:
            raise OperationalError("this process stops, and its time is up")
        if not math.isinf(left):
            seconds = max(MIN_CONNECT_SECONDS, math.floor(left))
            conn_params = {**conn_params, "connect_timeout": min(seconds, conn_params["connect_timeout"])}
        connection = super().get_new_connection(conn_params)
        connection.wait = partial(self._wait, connection, connection.wait)  # all of the driver's waiting is done there
        return connection

    def _wait(self, connection: Any, wait: Callable[..., Any], gen: Generator[Any, Any, Any], *args: Any) -> Any:
        deadline = math.inf if self.deadline is None else self.deadline
        try:
            return wait(_until(deadline, gen), *args)
        except _DeadlinePassed as passed:
            # The server may still answer: nobody would know to which question.
            connection.close()
            raise OperationalError("the database server did not answer in time") from passed


class _Errors(DatabaseErrorWrapper):
    """Raises the driver's errors as Django's, and those that pass as `OperationalError`."""

    def __exit__(self, exc_type: Any, exc_value: Any, traceback: Any) -> None:
        # Without a SQLSTATE it is the driver's own: a pooler whose server is gone has answered what nobody asked.
        if isinstance(exc_value, InternalError) and (not exc_value.sqlstate or exc_value.sqlstate in PASSING_STATES):
            self.wrapper.errors_occurred = True
            self.wrapper.has_failed = True
            raise PassingError(*exc_value.args).with_traceback(traceback) from exc_value
        super().__exit__(exc_type, exc_value, traceback)


class _DeadlinePassed(Exception):
    """The server has not answered."""


def _until(deadline: float, gen: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
    """Yield what the driver's generator waits for. The driver comes back with nothing every 0.1 s."""
    try:
        waits_for = next(gen)
        while True:
            # The driver's loop waits for the socket, and gives back what is ready: nothing where its 0.1 s were over.
            ready = yield waits_for
            if not ready and time.monotonic() >= min(deadline, process_ends_at()):
                raise _DeadlinePassed
            waits_for = gen.send(ready)
    except StopIteration as end:
        return end.value
