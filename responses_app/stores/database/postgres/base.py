"""Django's PostgreSQL, whose connections can be given a deadline: DATABASES names this package as its ENGINE.

A server that hangs, or a process of it that does, keeps its TCP connections and answers nothing: no timeout of
PostgreSQL's own is honoured then, and the client's driver would wait for ever.
"""

import math
import time
from collections.abc import Callable, Generator
from functools import partial
from typing import Any

from django.db.backends.postgresql import base
from psycopg import OperationalError

from responses_app.stores.database.deadline import process_ends_at

MIN_CONNECT_SECONDS = 2  # what libpq takes at least


class DatabaseWrapper(base.DatabaseWrapper):
    """`deadline` (of `time.monotonic()`) is when whatever waits for the server's answer raises `OperationalError`.

    So does the end of the process's own time, also where a connection has no deadline.

    The connection is closed then: nobody knows what the server has done, or will do yet. See `stores.deadline`.
    """

    deadline: float | None = None

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
