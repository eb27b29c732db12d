"""The requests that ran when a worker died: who reads the table of `limits.suspects` then, and where it is kept.

A supervisor has the table in memory that its workers inherit. With WORKERS=1 nobody outlives the one process, so its
table is a file in DATA_DIR: the next process finds there which requests ran when the last one died.
"""

import fcntl
import logging
import mmap
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from engine.errors import reason_of
from responses_app.limits.suspects import Stage, SuspectTable

logger = logging.getLogger("respsite.supervisor")

FILE = "running-1"  # in DATA_DIR; another layout of the table has another number


def look_for_suspects(table: SuspectTable, number: int, *, whose: str) -> None:
    """Suspect the requests that a dead worker was running, and log them."""
    suspects = table.died(number, time.monotonic())
    if suspects:
        count, s = len(suspects), "s" * (len(suspects) != 1)
        logger.warning("%s was running %d request%s: each has a trial when it comes again", whose, count, s)
    for each in suspects:
        if each.stage is Stage.CONDEMNED:
            which = (each.name.hex(), each.project or "default")
            logger.error("request %s of project %s was running at two deaths of workers: it is refused now", *which)


@contextmanager
def kept_table(folder: Path) -> Iterator[SuspectTable | None]:
    """Yield the table of a folder for its only worker, with number 0, whose last process may have died.

    It is None where the folder cannot be written, or another server uses it. A process that leaves without an exception
    was stopped, and no request is suspected for that.
    """
    with ExitStack() as opened:
        try:
            table = _table(folder / FILE, opened)
        except OSError as error:
            logger.info("which requests run here is not kept for the next process of this server: %s", reason_of(error))
            table = None
        if table is not None:
            look_for_suspects(table, 0, whose="the last process of this server")
        yield table
        if table is not None:
            table.forget(0)


def _table(file: Path, opened: ExitStack) -> SuspectTable:
    """Return the table in a file, empty where the file has another layout. Raises `OSError`, also if it is in use."""
    size = SuspectTable.size(1)
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    opened.callback(os.close, descriptor)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    opened.callback(fcntl.flock, descriptor, fcntl.LOCK_UN)  # the memory below has a descriptor of its own
    if os.fstat(descriptor).st_size != size:
        os.ftruncate(descriptor, 0)
    os.posix_fallocate(descriptor, 0, size)  # a page that a full disk has no room for would end the process
    table = SuspectTable(mmap.mmap(descriptor, size), 1)
    table.begin_anew(time.monotonic())
    return table
