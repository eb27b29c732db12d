"""`WordReader`: has what was stored read into the index that the admin searches, beside everything else.

Nobody waits for it: a response is found some seconds after its end. It takes a third of one thread's time at most, also
while it reads what was stored before there was an index.
"""

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from responses_app.kit.duty import end_tasks, keep_looking

if TYPE_CHECKING:
    from responses_app.stores.database.words import DatabaseWords

logger = logging.getLogger("respsite.stores")

LOOK_SECONDS = 5.0  # between looks, where there was nothing
RESTS = 2.0  # times as long as a step has taken, between two


class WordReader:
    """The duty of one worker."""

    def __init__(self, index: "DatabaseWords", *, seconds: float = LOOK_SECONDS) -> None:
        self._index = index
        self._seconds = seconds
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to look."""
        what = "reading what is searched in the admin"
        self._task = keep_looking(self._read_all, asyncio.Event(), seconds=self._seconds, what=what, logger=logger)

    async def aclose(self) -> None:
        """Stop; what is not read yet is read by others, or later. Safe to call twice."""
        await end_tasks([self._task])

    async def _read_all(self) -> None:
        began = time.monotonic()
        while await self._index.read_some():
            await asyncio.sleep(RESTS * (time.monotonic() - began))
            began = time.monotonic()
