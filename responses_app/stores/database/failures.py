"""What the database raised, as a `StoreError` with a message of one line. Drivers write several."""

from django.db import InterfaceError, OperationalError

from responses_app.stores.base import StoreError

# The database is locked, restarts, or dropped the connection: the same transaction may succeed on a new connection.
PASSING = (OperationalError, InterfaceError)


def in_one_line(error: Exception) -> str:
    """Return what an exception is and says."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def store_error(error: Exception) -> StoreError:
    """Return the failure as those who use a store know it; never raised twice, so each caller gets its own."""
    failure = StoreError(in_one_line(error))
    failure.__cause__ = error
    failure.passing = isinstance(error, PASSING)
    return failure


def too_slow(seconds: float) -> StoreError:
    """Return the failure of a database that does not answer in time."""
    failure = StoreError(f"The database did not answer within {seconds:g} s.")
    failure.passing = True
    return failure
