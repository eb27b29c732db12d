"""How long a thread may wait for the database."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager

from django.db import Error, OperationalError
from django.db.backends.base.base import BaseDatabaseWrapper

# `false`: for the session, not only for the present transaction.
_BOUND = """
SELECT set_config('statement_timeout', %s, false), set_config('idle_in_transaction_session_timeout', %s, false)
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
    from them. SQLite only ever waits for its file, and DATABASES says how long.
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
    """Tell the server too, once a connection."""
    driver = connection.connection
    # Django keeps its wrapper when it connects anew: the driver's connection tells whether this one was told.
    if driver is not getattr(connection, "bounded", None):
        milliseconds = str(max(1, round(seconds * 1000)))
        try:
            with connection.cursor() as cursor:
                cursor.execute(_BOUND, [milliseconds, milliseconds])
        except Error:
            # It broke behind the login. Django would keep it, and each query to come would fail on it.
            connection.close()
            raise
        connection.bounded = driver  # type: ignore[attr-defined]
