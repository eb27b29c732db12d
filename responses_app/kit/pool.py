"""The connections of a process, of which there are as many as a setting allows, whatever the number of its threads.

A thread borrows one for a query or a transaction. The one that was given back last is lent first, so no more are open
than were needed at once; they stay open. Who finds all of them lent waits its turn.

`within` bounds how long a thread may wait for the database.
"""

import math
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event, Lock

from django.db import Error, OperationalError, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.utils import load_backend

from responses_app.kit.errors import ALL_LENT

URGENT = 2  # that only urgent work gets: leases are to be kept, and responses ended, beside any number of slow reads


@dataclass(slots=True, eq=False)
class _Waiter:
    urgent: bool
    connection: BaseDatabaseWrapper | None = None
    served: Event = field(default_factory=Event)


class ConnectionPool:
    """Lends connections to the database `alias`, at most `MAX_CONNECTIONS` of its entry in DATABASES at once."""

    def __init__(self, alias: str) -> None:
        self.alias = alias
        self._settings = connections.settings[alias]
        most = self._settings.get("MAX_CONNECTIONS")
        self._most: float = math.inf if most is None else most
        self._lock = Lock()  # over all below; never held while anything blocks
        self._idle: list[BaseDatabaseWrapper] = []
        self._lent = 0
        self._lent_for_others = 0  # than urgent work
        self._waiting: deque[_Waiter] = deque()
        self._closed = False
        self.holders = 0  # see `hold`

    def is_of(self, alias: str) -> bool:
        """Whether this is of the database that settings call so now."""
        return self.alias == alias and self._settings is connections.settings[alias]

    @property
    def is_waited_for(self) -> bool:
        """Whether anybody waits for a connection."""
        return bool(self._waiting)

    @contextmanager
    def lent(self, *, ends_at: float, urgent: bool = False) -> Iterator[BaseDatabaseWrapper]:
        """Give this thread a connection, which is Django's `connections[alias]` meanwhile.

        Raises:
            OperationalError: all are lent still at `ends_at`, of `time.monotonic()`.
        """
        connection = self._take(urgent, ends_at)
        connections[self.alias] = connection
        try:
            yield connection
        finally:
            del connections[self.alias]
            self._give_back(connection, urgent)

    def _take(self, urgent: bool, ends_at: float) -> BaseDatabaseWrapper:
        with self._lock:
            if not self._waiting and self._has_one(urgent):
                return self._lend(urgent)
            waiter = _Waiter(urgent)
            self._waiting.append(waiter)
            self._serve()
        left = None if math.isinf(ends_at) else max(0.0, ends_at - time.monotonic())
        if not waiter.served.wait(left):
            with self._lock:
                if not waiter.served.is_set():
                    self._waiting.remove(waiter)
                    raise OperationalError(ALL_LENT)
        assert waiter.connection is not None, "who is served has one"
        return waiter.connection

    def _give_back(self, connection: BaseDatabaseWrapper, urgent: bool) -> None:
        with self._lock:
            self._lent -= 1
            self._lent_for_others -= not urgent
            # One that is open is lent before one that has to connect.
            self._idle.insert(len(self._idle) if connection.connection is not None else 0, connection)
            if self._waiting:
                self._serve()
            closes = self._closed
        if closes:
            self.close()

    def _serve(self) -> None:
        """Lend what there is to those who wait, the urgent ones first."""
        for waiter in sorted(self._waiting, key=lambda each: not each.urgent):
            if not self._has_one(waiter.urgent):
                return
            self._waiting.remove(waiter)
            waiter.connection = self._lend(waiter.urgent)
            waiter.served.set()

    def _has_one(self, urgent: bool) -> bool:
        return self._lent < self._most and (urgent or self._lent_for_others < self._most - URGENT)

    def _lend(self, urgent: bool) -> BaseDatabaseWrapper:
        connection = self._idle.pop() if self._idle else self._new()
        self._lent += 1
        self._lent_for_others += not urgent
        return connection

    def _new(self) -> BaseDatabaseWrapper:
        connection: BaseDatabaseWrapper = load_backend(self._settings["ENGINE"]).DatabaseWrapper(
            self._settings, self.alias
        )
        connection.inc_thread_sharing()  # each time another thread has it
        return connection

    def close(self) -> None:
        """Close the connections, those that are lent once they are given back."""
        with self._lock:
            self._closed, idle, self._idle = True, self._idle, []
        for connection in idle:
            connection.close()


_pools: list[ConnectionPool] = []
_pools_lock = Lock()


def hold(alias: str) -> ConnectionPool:
    """Return this process's pool of a database, for one more who lets go of it."""
    with _pools_lock:
        pool = next((each for each in _pools if each.is_of(alias)), None)
        if pool is None:
            pool = ConnectionPool(alias)
            _pools.append(pool)
        pool.holders += 1
    return pool


def let_go(pool: ConnectionPool) -> None:
    """Close a pool, once everybody has let go of it."""
    with _pools_lock:
        pool.holders -= 1
        if pool.holders:
            return
        _pools.remove(pool)
    pool.close()


# For the session (`false`), where that is the connection's own: PgBouncer and its like lend sessions to all of their
# clients, by the transaction, and tell clients of processes that are not the server's.
_BOUND_SESSION = """
SELECT set_config('statement_timeout', %(limit)s, false),
    set_config('idle_in_transaction_session_timeout', %(limit)s, false)
WHERE pg_backend_pid() = %(process)s
"""
BOUND_TRANSACTION = """
SELECT set_config('statement_timeout', %(limit)s, true),
    set_config('idle_in_transaction_session_timeout', %(limit)s, true)
"""

_process_ends_at = math.inf  # of `time.monotonic()`


def end_within(seconds: float) -> None:
    """Bound all that this process still asks the database, together: it stops. There is no way back."""
    global _process_ends_at
    _process_ends_at = min(_process_ends_at, time.monotonic() + seconds)


def process_ends_at() -> float:
    """Return when, by `time.monotonic()`, nothing of this process waits for the database any more."""
    return _process_ends_at


@contextmanager
def within(connection: BaseDatabaseWrapper, seconds: float, *, ends_at: float | None = None) -> Iterator[None]:
    """Bound all that is done with a connection in here, connecting apart, which DATABASES bounds.

    It ends after `seconds`, or at `ends_at` (of `time.monotonic()`) where it had begun before. What is still waited for
    then raises Django's `OperationalError`, and the connection is closed. PostgreSQL gives up by itself too, in a
    statement and between two of a transaction: a process that stops there, with rows locked, would keep everybody else
    from them. Behind a pooler it does so in transactions alone. SQLite only ever waits for its file, and DATABASES says
    how long.
    Once `end_within` has been called, its time ends all of this too, and nothing begins behind it.
    """
    if time.monotonic() >= _process_ends_at:
        raise OperationalError("this process stops, and its time is up")
    if connection.vendor != "postgresql" or math.isinf(seconds):
        yield
        return
    connection.deadline = time.monotonic() + seconds if ends_at is None else ends_at  # type: ignore[attr-defined]
    try:
        connection.ensure_connection()
        _bound_server(connection, seconds)
        yield
    finally:
        connection.deadline = None  # type: ignore[attr-defined]


def _bound_server(connection: BaseDatabaseWrapper, seconds: float) -> None:
    """Tell the server too, once a connection, or behind a pooler with each transaction."""
    # Django keeps its wrapper when it connects anew: the driver's connection tells whether this one was told.
    if connection.connection is not getattr(connection, "bounded", None):
        limit = str(max(1, round(seconds * 1000)))
        try:
            with connection.cursor() as cursor:
                driver = connection.connection  # maybe another one by now
                cursor.execute(_BOUND_SESSION, {"limit": limit, "process": driver.info.backend_pid})
                is_own = cursor.fetchone() is not None
        except Error:
            # It broke behind the login. Django would keep it, and each query to come would fail on it.
            connection.close()
            raise
        connection.bounded = driver  # type: ignore[attr-defined]
        connection.limit_of_transactions = None if is_own else limit  # type: ignore[attr-defined]
