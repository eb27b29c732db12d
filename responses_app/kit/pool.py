"""The connections of a process, of which there are as many as a setting allows, whatever the number of its threads.

A thread borrows one for a query or a transaction. The one that was given back last is lent first, so no more are open
than were needed at once; they stay open. Who finds all of them lent waits its turn.
"""

import math
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event, Lock

from django.db import OperationalError, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.utils import load_backend

from responses_app.kit.causes import ALL_LENT

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
