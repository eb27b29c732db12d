"""What the database raised, as a `StoreError` with a message of one line. Drivers write several."""

import logging
import re
from threading import Lock

from django.db import InterfaceError, OperationalError, ProgrammingError

from responses_app.stores.base import NotMigrated, StoreError

logger = logging.getLogger("respsite.stores")

# The database is locked, restarts, or dropped the connection: the same transaction may succeed on a new connection.
PASSING = (OperationalError, InterfaceError)
_LACKS = re.compile(r"no such table: |no such column: \"?responses_app_|has no column named ")  # SQLite
_UNDEFINED = ("42P01", "42703")  # PostgreSQL: a table, a column
_told = Lock()  # taken once it is told, for as long as the process lives


def in_one_line(error: Exception) -> str:
    """Return what an exception is and says."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def store_error(error: Exception) -> StoreError:
    """Return the failure as those who use a store know it; never raised twice, so each caller gets its own."""
    failure = NotMigrated() if is_unmigrated(error) else StoreError(in_one_line(error))
    failure.__cause__ = error
    failure.passing = isinstance(error, PASSING)
    return failure


def is_unmigrated(error: Exception) -> bool:
    """Whether the database lacks a table or a column; the first time that is told. To try again helps nobody."""
    if isinstance(error, ProgrammingError):
        lacks = getattr(error.__cause__, "sqlstate", None) in _UNDEFINED
    else:
        lacks = isinstance(error, OperationalError) and _LACKS.search(str(error)) is not None
    if lacks and _told.acquire(blocking=False):
        logger.error("%s", NotMigrated())
    return lacks


def too_slow(seconds: float) -> StoreError:
    """Return the failure of a database that does not answer in time."""
    failure = StoreError(f"The database did not answer within {seconds:g} s.")
    failure.passing = True
    return failure
