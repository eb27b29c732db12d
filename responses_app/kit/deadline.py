"""How long a thread may wait for the database."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager

from django.db import Error, OperationalError
from django.db.backends.base.base import BaseDatabaseWrapper

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
