"""`UnsavedEnds`: how responses ended that the store could not keep, until it can.

Their clients have been told. What each of them used of its key's limits is counted by whoever ends it in the store:
here, once it is kept, or by the worker that has taken it over meanwhile.

`UsageBook`: tells the store what was used by all that is not stored itself.

    a run, a completion, … ends ── note() ──> entries that wait ── a task, a few times a second ──> the store

Nobody waits for that: a database that is away holds up no answer. A worker that is killed loses what waits, a second's
worth at most while the database answers; a stop writes it. What a stored response has used is kept with its end.
"""

import asyncio
import json
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence

from responses_app.kit.duty import attempted, end_tasks
from responses_app.kit.errors import NotMigrated, StoreError
from responses_app.limits.rates import FREE, Ticket
from responses_app.observing.metrics import Metrics
from responses_app.protocol import ids
from responses_app.protocol.rate_limits import NOTHING, Amount
from responses_app.resources.usage.fields import BATCH, Source, UsageEntry, UsedTokens
from responses_app.runs.plan.plan import Origin
from responses_app.runs.plan.settings import RunSettings
from responses_app.stores.base import BaseResponseStore, ClaimLost, StoredResponse

logger = logging.getLogger("respsite.runs")

MAX_ENDS = 10_000  # a short end takes 2 KiB


class UnsavedEnd:
    """An end of a response that waits for the store; `size` is in bytes."""

    __slots__ = ("_elsewhere", "_is_kept", "_ticket", "_used", "size", "stored")

    def __init__(self, stored: StoredResponse) -> None:
        self.stored = stored
        tokens = sum(len(item.message.tokens) for item in stored.sampled)
        # About what it takes in memory; a token is a 4-byte integer in an array.
        self.size = _json_bytes(stored.response) + _json_bytes(stored.input_items) + len(stored.log) + 4 * tokens
        if stored.recorded is not None:
            self.size += stored.recorded.size
        self._ticket = FREE  # what it holds of its key's limits
        self._used = NOTHING  # of the limits, by its response
        self._elsewhere = False  # a worker that takes it over counts it
        self._is_kept: bool | None = None  # None while it waits

    def count(self, ticket: Ticket, used: Amount, *, elsewhere: bool) -> None:
        """Count what its response used, now or once it is known who does; its slots are free at once.

        `elsewhere`: a worker that takes the response over counts it.
        """
        ticket.release()
        self._ticket, self._used, self._elsewhere = ticket, used, elsewhere
        self._settle()

    def over(self, *, kept: bool) -> None:
        """It waits no more: it is `kept`, or left to another worker."""
        self._is_kept = kept
        self._settle()

    def _settle(self) -> None:
        # Both have to be known, in either order: what it used, and who counts it. Before `count`, its ticket is free.
        if self._is_kept is None:
            return
        if self._is_kept or not self._elsewhere:
            self._ticket.settle(self._used)
        else:
            self._ticket.hand_over()


class UnsavedEnds:
    """The ends of responses here that wait for the store: at most `MAX_ENDS` and RESPONSES_MAX_UNSAVED_BYTES."""

    def __init__(self, store: BaseResponseStore, settings: RunSettings) -> None:
        self._store = store
        self.settings = settings
        self._ends: deque[UnsavedEnd] = deque()
        self.size = 0  # bytes

    def __len__(self) -> int:
        return len(self._ends)

    def __iter__(self) -> Iterator[StoredResponse]:
        return (end.stored for end in self._ends)

    def add(self, stored: StoredResponse) -> UnsavedEnd | None:
        """Keep an end later; None where it does not fit, and how the response ended is lost."""
        end = UnsavedEnd(stored)
        if len(self._ends) >= MAX_ENDS or self.size + end.size > self.settings.responses_max_unsaved_bytes:
            logger.error(
                "response %s: how it ended is lost: %d ends of %d bytes wait for the store already "
                "(RESPONSES_MAX_UNSAVED_BYTES)",
                stored.response["id"],
                len(self._ends),
                self.size,
            )
            return None
        self._ends.append(end)
        self.size += end.size
        return end

    async def save(self) -> None:
        """Keep all of them, if the store takes them now. Raises `StoreError`, or what else the store raised.

        One that it does not take, for a reason of that end's own, holds up no other.
        """
        refused: Exception | None = None
        # Each is tried once. One that is refused goes to the back, so the next one is at the front again.
        for _ in range(len(self._ends)):
            end = self._ends[0]
            try:
                await self._store.save(end.stored)
                kept = True
            except ClaimLost:
                logger.warning("response %s ended here and runs elsewhere", end.stored.response["id"])
                kept = False
            except Exception as problem:
                if isinstance(problem, StoreError) and problem.passing:
                    raise
                refused = problem
                self._ends.rotate(-1)
                continue
            self._ends.popleft()  # only now: a stop may come while it is saved
            self.size -= end.size
            end.over(kept=kept)
        if refused is not None:
            raise refused

    def leave(self) -> None:
        """This worker stops: others find what still waits, once this one is dead to them."""
        for end in self._ends:
            end.over(kept=False)


def _json_bytes(value: object) -> int:
    return len(json.dumps(value))


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
