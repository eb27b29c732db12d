"""`UsageBook`: tells the store what was used by all that is not stored itself.

    a run, a completion, … ends ── note() ──> entries that wait ── a task, a few times a second ──> the store

Nobody waits for that: a database that is away holds up no answer. A worker that is killed loses what waits, a second's
worth at most while the database answers; a stop writes it. What a stored response has used is kept with its end.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from responses_app.kit.duty import attempted, end_tasks
from responses_app.kit.errors import NotMigrated, StoreError
from responses_app.observing.metrics import Metrics
from responses_app.protocol import ids
from responses_app.resources.usage.fields import BATCH, Source, UsageEntry, UsedTokens
from responses_app.runs.plan.plan import Origin

logger = logging.getLogger("respsite.runs")

MAX_WAITING = 20_000  # entries, of about 500 bytes, while the database is away; further ones are lost, and counted
AT_ONCE = 500  # entries in one transaction
GATHER_SECONDS = 0.5  # what ends within this time is written together
AGAIN_SECONDS = 2.0  # between attempts where the store fails


class UsageBook:
    """What was used and is not kept yet, of one worker. `keep` is the store's, `now` its Unix time."""

    def __init__(
        self,
        keep: Callable[[Sequence[UsageEntry]], Awaitable[None]],
        *,
        new_id: Callable[[str], str],
        now: Callable[[], float],
        metrics: Metrics,
    ) -> None:
        self._keep = keep
        self._new_id = new_id
        self._now = now
        self._lost_entries = metrics.usage_lost
        self._waiting: deque[UsageEntry] = deque()
        self._news = asyncio.Event()
        self._lost = 0  # entries since the log told of some
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to write."""
        self._task = asyncio.create_task(self._keep_writing(), name="usage")

    async def aclose(self) -> None:
        """Write what waits, as far as the store takes it, and stop. Safe to call twice."""
        await end_tasks([self._task])
        await attempted(self._write, what="keeping usage", logger=logger)
        if self._waiting:
            self._lose(len(self._waiting))
            self._waiting.clear()
        self._tell_lost()

    def note(self, origin: Origin, model: str, source: Source, tokens: UsedTokens, *, of: str = "") -> None:
        """Take down what was used; `of` is the id of what was made, if it has one: it counts once."""
        if len(self._waiting) >= MAX_WAITING:
            self._lose(1)
            return
        self._waiting.append(
            UsageEntry(
                id=of or self._new_id(ids.USAGE),
                at=int(self._now()),
                project=origin.project,
                key_id=origin.key_id,
                model=model,
                source=source,
                batch=origin.transport == BATCH,
                tokens=tokens,
            )
        )
        self._news.set()

    async def _keep_writing(self) -> None:
        while True:
            await self._news.wait()
            await asyncio.sleep(GATHER_SECONDS)
            self._news.clear()
            await attempted(self._write, what="keeping usage", logger=logger)
            if self._waiting:
                await asyncio.sleep(AGAIN_SECONDS)
                self._news.set()
            else:
                self._tell_lost()

    async def _write(self) -> None:
        """Write all that waits. Raises `StoreError`."""
        while self._waiting:
            some = [self._waiting[place] for place in range(min(AT_ONCE, len(self._waiting)))]
            try:
                await self._keep(some)
            except StoreError as problem:
                if problem.passing or isinstance(problem, NotMigrated):
                    raise
                # What the database refuses for good would stand before all others for ever.
                logger.error("usage is refused by the database: %s", problem)
                self._lose(len(some))
            # Taken away only now: who is cancelled before writes them again, which changes nothing.
            for _ in some:
                self._waiting.popleft()

    def _lose(self, entries: int) -> None:
        self._lost += entries
        self._lost_entries.count(by=entries)

    def _tell_lost(self) -> None:
        if self._lost:
            logger.error("what %d requests used could not be kept, and is not counted", self._lost)
            self._lost = 0
