"""Reading more rows than memory should hold."""

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connections, transaction


@contextmanager
def read_in_chunks(using: str) -> Iterator[None]:
    """Let `.iterator()` have a chunk of rows in memory at a time; nothing is written in here.

    PostgreSQL's cursors live in a transaction: see its `DatabaseWrapper.chunked_cursor`. SQLite needs none, which would
    keep others from writing.
    """
    if connections[using].vendor != "postgresql" or connections[using].in_atomic_block:
        yield
        return
    with transaction.atomic(using=using):
        yield
        # Not committed: `DatabaseReaders` reads again what an old primary has answered, but does no commit twice.
        transaction.set_rollback(True, using=using)
