"""A few threads that read, each with a database connection of its own that stays open."""

import asyncio
import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import local
from typing import TypeVar

from django.db import Error, connections
from django.db.backends.base.base import BaseDatabaseWrapper

from responses_app.stores.base import StoreError
from responses_app.stores.database.deadline import within
from responses_app.stores.database.failures import PASSING, store_error, too_slow

Found = TypeVar("Found")

THREADS = 4  # and so connections; more would not read faster, since they share the interpreter's lock


class DatabaseReaders:
    """Runs queries off the event loop; at most `THREADS` at once, the others wait their turn.

    A query whose connection turns out to be broken is done once more, on a new one: so it may be called twice. To ask
    before each query whether its connection still works would cost another round trip to the database.
    `timeout` bounds, in seconds, how long a query and its turn may take.
    """

    def __init__(self, using: str, *, timeout: float = math.inf) -> None:
        self._using = using
        self._timeout = timeout
        self._executor = ThreadPoolExecutor(THREADS, thread_name_prefix="store-reader")
        self._thread = local()
        self._connections: list[BaseDatabaseWrapper] = []

    async def run(self, query: Callable[[BaseDatabaseWrapper], Found]) -> Found:
        """Return what `query` returns, called on a reader's thread with that thread's connection.

        Raises:
            StoreError: the database failed or did not answer in time, or the readers are closed.
        """
        try:
            running = asyncio.get_running_loop().run_in_executor(self._executor, self._query, query)
        except RuntimeError as error:
            raise StoreError("The readers are closed.") from error
        try:
            async with asyncio.timeout(None if math.isinf(self._timeout) else self._timeout):
                return await running
        except TimeoutError:
            raise too_slow(self._timeout) from None

    async def aclose(self) -> None:
        """Let running queries end, then end the threads and their connections. Safe to call twice."""
        await asyncio.to_thread(self._close)

    def _query(self, query: Callable[[BaseDatabaseWrapper], Found]) -> Found:
        ends_at = time.monotonic() + self._timeout
        try:
            connection = self._own_connection()
            with within(connection, self._timeout, ends_at=ends_at):
                try:
                    return query(connection)
                except PASSING:
                    connection.close_if_unusable_or_obsolete()
                    if connection.connection is not None or time.monotonic() >= ends_at:
                        raise
            # The connection broke while it was idle: the database was started again, say.
            with within(connection, self._timeout, ends_at=ends_at):
                return query(connection)
        except Error as error:
            raise store_error(error) from error

    def _own_connection(self) -> BaseDatabaseWrapper:
        connection = connections[self._using]
        if not hasattr(self._thread, "known"):
            self._thread.known = True
            connection.inc_thread_sharing()  # so that another thread may close it, once this one has ended
            self._connections.append(connection)
        return connection

    def _close(self) -> None:
        self._executor.shutdown(wait=True)
        while self._connections:
            self._connections.pop().close()
