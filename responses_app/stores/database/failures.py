"""What the database raised, as a `StoreError` with a message of one line. Drivers write several."""

from responses_app.stores.base import StoreError


def in_one_line(error: Exception) -> str:
    """Return what an exception is and says."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def store_error(error: Exception) -> StoreError:
    """Return the failure as those who use a store know it; never raised twice, so each caller gets its own."""
    failure = StoreError(in_one_line(error))
    failure.__cause__ = error
    return failure
