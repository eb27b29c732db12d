"""`Followers`: the responses that other workers run, as far as somebody reads them here.

A worker that does not run a response has its machine all the same: it makes one of the response as it began, and gives
it the inputs that the log in the store has. So its readers get the same events, with the same ids and numbers.

    owner ── appends to the log ──> store ──────────── log_since(position) ──> follower ──> its reader
      └───── "there is more of resp_1" (the bell) ──> relay ──> wakes it ─────────┘

The bell is only for speed. A worker that hears none (Redis is away, or there is none) looks at the log every
`LOOK_SECONDS`. Without Redis the owner of a foreground response does not hear either that somebody follows it, and
keeps its log with its end: followers get all of it then.

Where a worker dies, the one that takes its response over may have readers that follow it. They read what runs here from
then on, and look at its log no more; should it leave this worker again, they go on by the log:

    dead owner's log in the store ──> follower ──> its reader
                run here, its journal ──┘ (from the takeover on)
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Protocol

from responses_app.kit.duty import end_tasks
from responses_app.kit.errors import StoreClosed, StoreError
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.events.events import Event, EventType
from responses_app.protocol.requests.resources import RUNNING, ResponseObject, Status
from responses_app.protocol.response.input_codec import decode
from responses_app.protocol.response.response import ResponseMachine
from responses_app.protocol.response.steps import Input
from responses_app.runs.log.journal import EventJournal, EventSource, JournalEntry, JournalReader, ReaderTooSlow, Waiter
from responses_app.runs.log.run_log import INTEREST_SECONDS, Machines, end_of_failure
from responses_app.runs.plan.settings import RunSettings
from responses_app.stores.base import BaseResponseStore, LogNews, StoredLog

logger = logging.getLogger("respsite.runs")


class OtherWorkers(Protocol):
    """What reaches the other workers."""

    @property
    def reaches_others(self) -> bool:
        """Whether there is a way to them."""

    async def ask_to_cancel(self, response_id: str) -> bool:
        """Tell them to cancel a response; return whether the word went out."""

    async def ask_to_take(self, told: JsonObject) -> JsonObject | None:
        """Give them an output of a tool; return what the one that runs its response says, None where none answers."""

    async def ask_to_follow(self, response_id: str) -> bool:
        """Tell them that somebody here follows a response of theirs; return whether the word went out."""

    async def ask_to_forget(self, response_ids: Collection[str]) -> bool:
        """Tell them that responses were deleted; return whether the word went out."""

    async def tell_followers(self, response_ids: Collection[str]) -> bool:
        """Tell them that there is more of these responses in the store; return whether the word went out."""


LOOK_SECONDS = 0.25  # between looks at a log of which nothing is heard
BELL_SECONDS = 2.0  # between looks at one of which something is: a word may get lost
RETRY_SECONDS = 1.0  # after the store has failed
INPUTS_A_STEP = 200  # 1 ms of the loop
LOOKS_AT_ONCE = 2  # of all followers: the store's other readers are for requests

_Place = tuple[str, str, int]  # project, response, and how much of its log is known


class PacedJournal(EventJournal):
    """A journal that is filled no faster than its one reader takes: what is not read yet lies in the store anyway."""

    def __init__(self, *, max_lag_bytes: int, first: int) -> None:
        super().__init__(max_lag_bytes=max_lag_bytes, first=first)
        self._room_bytes = max_lag_bytes // 2  # so nobody is dropped who only reads more slowly than a log is read
        self._taken = Waiter()

    def take(self, reader: JournalReader, limit: int) -> list[JournalEntry]:
        """Return up to `limit` events, and wake whoever waits for room."""
        taken = super().take(reader, limit)
        self._taken()
        return taken

    async def room(self) -> None:
        """Return when there is room for more."""
        while self.kept_bytes > self._room_bytes:
            await self._taken.wait()


class FollowedResponse(EventSource):
    """A response of another worker, for one reader here, from the event number `first` on."""

    def __init__(self, response_id: str, machine: ResponseMachine, journal: PacedJournal, *, first: int) -> None:
        super().__init__(response_id, journal, machine)
        self.journal: PacedJournal = journal
        self.hears = False  # of what its worker keeps, as far as is known
        self.task: asyncio.Task[None] | None = None
        self.bell = Waiter()
        self._first = first  # number of the first event that its reader gets
        self._here: EventSource | None = None  # what it reads in place of the log, since it runs here now

    @property
    def status(self) -> Status:
        return super().status if self._here is None else self._here.status

    @property
    def has_begun(self) -> bool:
        """Whether its log tells anything."""
        return self._machine.stream.has_begun

    def response(self) -> ResponseObject:
        return super().response() if self._here is None else self._here.response()

    async def read(self, here: EventSource) -> None:
        """Go on by what runs here, until it ends, or leaves this worker, or the reader here is too slow for that."""
        news = Waiter()
        # Nothing is awaited between the check that `here` has what follows and this, so nothing is forgotten
        # meanwhile.
        cursor = JournalReader(here.journal, news, news, starting_after=self.journal.last_number)
        self._here = here
        try:
            while not cursor.ended:
                if entries := cursor.take():
                    self.journal.repeat(entries, here.journal)
                    await self.journal.room()
                else:
                    await news.wait()
        # Its own reader is not dropped for that: it goes on by the log.
        except ReaderTooSlow:
            logger.info("response %s: a reader that follows it falls behind what runs here", self.response_id)
        finally:
            here.journal.detach(cursor)
        if not self.journal.closed:
            # The machine here has not seen what came meanwhile. The log tells it, and what was read already is not
            # told again.
            self._here, self._first = None, self.journal.last_number + 1

    async def take(self, inputs: Iterable[Input]) -> None:
        """Go on by what the log has. Raises `BrokenLog`, or anything else, for what is not its log."""
        for number, input_ in enumerate(inputs, start=1):
            events = self._machine.receive(input_).events
            self._publish(events)
            if number % INPUTS_A_STEP == 0:
                await asyncio.sleep(0)
            await self.journal.room()

    def _publish(self, events: Sequence[Event]) -> None:
        for event in events:
            # Later events of such an item do not repeat the names of its call.
            if event.sequence_number < self._first and event.type is EventType.ITEM_ADDED:
                self.journal.note(event)
        self.journal.extend([event for event in events if event.sequence_number >= self._first])

    def leave(self) -> None:
        """Follow no longer: nobody reads it."""
        if self.task is not None:
            self.task.cancel()


class Followers:
    """The followed responses of this process. `machines` makes their machines.

    `follow_here` asks this process itself to keep the logs of what it runs. `here` returns a response that runs here
    now, and has all behind the event of a number in its journal.
    """

    def __init__(
        self,
        store: BaseResponseStore,
        *,
        machines: Machines,
        settings: RunSettings,
        follow_here: Callable[[Collection[str]], None],
        here: Callable[[str, int], EventSource | None],
        others: OtherWorkers,
    ) -> None:
        self._store = store
        self._machines = machines
        self._settings = settings
        self._follow_here = follow_here
        self._here = here
        self._others = others
        self._followed: set[FollowedResponse] = set()  # all that have a reader
        self._looks: dict[_Place, asyncio.Task[LogNews | None]] = {}  # that have not begun
        self._looking: set[asyncio.Task[LogNews | None]] = set()  # all that have not ended
        self._at_once = asyncio.Semaphore(LOOKS_AT_ONCE)
        self._away = False  # the store, and it was said

    def follow(self, project: str, stored: StoredLog, *, starting_after: int | None) -> FollowedResponse:
        """Begin to follow a response of another worker; the caller attaches its reader before it awaits anything.

        One that has ended is read to the end of its log.
        """
        response = stored.response
        first = 0 if starting_after is None else starting_after + 1
        followed = FollowedResponse(
            response["id"],
            self._machines.begun(project, response),
            PacedJournal(max_lag_bytes=self._settings.stream_max_lag_bytes, first=first),
            first=first,
        )
        self._followed.add(followed)
        followed.task = asyncio.create_task(self._follow(project, followed, stored), name=f"follow {response['id']}")
        followed.task.add_done_callback(lambda _: self._ended(followed))
        return followed

    def ring(self, response_ids: Collection[str]) -> None:
        """Look at the logs of these responses: their workers say that there is more."""
        rung = frozenset(response_ids)
        for followed in self._followed:
            if followed.response_id in rung:
                followed.bell()

    async def aclose(self) -> None:
        """Stop all; their readers' streams end."""
        await end_tasks([*(followed.task for followed in self._followed), *self._looking])

    def _ended(self, followed: FollowedResponse) -> None:
        self._followed.discard(followed)
        # However its task ended: a reader must not wait for ever.
        if not followed.journal.closed:
            followed.journal.end()

    async def _follow(self, project: str, followed: FollowedResponse, stored: StoredLog) -> None:
        asking: asyncio.Task[None] | None = None
        if stored.response["status"] in RUNNING:
            # Before the log is read, which may take long: what its worker keeps meanwhile is there then.
            asking = asyncio.create_task(self._keep_asking(followed), name=f"ask for {followed.response_id}")
        try:
            await followed.take(decode(stored.data))
            await self._go_on(project, followed, len(stored.data))
        except Exception:  # whatever it is that a damaged log breaks
            logger.exception("the log of response %s cannot be read", followed.response_id)
        finally:
            if asking is not None:
                asking.cancel()

    async def _go_on(self, project: str, followed: FollowedResponse, position: int) -> None:
        """Look at the log until it ends, or read what runs here."""
        while not followed.journal.closed:
            here = self._here(followed.response_id, followed.journal.last_number)
            if here is not None:
                await followed.read(here)
                continue
            try:
                news = await self._look((project, followed.response_id, position))
                if news is None:  # it was deleted
                    return
                await followed.take(decode(news.data))
                # Positions are bytes of the log. They move on only once the bytes were read.
                position += len(news.data)
                if news.status not in RUNNING and not followed.journal.closed:
                    # Its worker left it: its log tells no end, its body does.
                    response = await self._store.response(project, followed.response_id)
                    if response is not None:
                        await followed.take(end_of_failure(response, has_begun=followed.has_begun))
                    return
            except StoreError:
                await asyncio.sleep(RETRY_SECONDS)
                continue
            if not followed.journal.closed:
                await self._news(followed)

    async def _news(self, followed: FollowedResponse) -> None:
        """Return when there may be more of a response: the bell rings, it runs here, or it is time to look."""
        # Short waits, since `hears` and `here` may change without a ring.
        for _ in range(max(1, round(BELL_SECONDS / LOOK_SECONDS))):
            rung = await followed.bell.wait(min(BELL_SECONDS, LOOK_SECONDS))
            if rung or not followed.hears or self._here(followed.response_id, followed.journal.last_number) is not None:
                break

    async def _look(self, place: _Place) -> LogNews | None:
        """Return what a log has behind a place: one query for all who ask for the same before it begins."""
        looking = self._looks.get(place)
        if looking is None:
            looking = self._looks[place] = asyncio.create_task(self._look_in_turn(place), name=f"look at {place[1]}")
            self._looking.add(looking)
            looking.add_done_callback(self._looked)
        # Others may wait for the same look: whoever leaves does not end it.
        return await asyncio.shield(looking)

    def _looked(self, looking: "asyncio.Task[LogNews | None]") -> None:
        """Forget a look, and take notice of one that failed: whoever asked for it may have left."""
        self._looking.discard(looking)
        if not looking.cancelled():
            looking.exception()

    async def _look_in_turn(self, place: _Place) -> LogNews | None:
        async with self._at_once:
            del self._looks[place]  # what comes from now on may not be seen: whoever asks for it looks again
            try:
                news = await self._store.log_since(*place)
            except StoreError as problem:
                # One line an outage, not one a reader and second; a stop is not an outage.
                if not self._away and not isinstance(problem, StoreClosed):
                    logger.warning("the responses of other workers cannot be followed now: %s", problem)
                self._away = True
                raise
            self._away = False
            return news

    async def _keep_asking(self, followed: FollowedResponse) -> None:
        """Ask the owner again and again to keep the log while the response runs; a word may take long to go out.

        The owner may be this worker: it forgets the events of a response that nobody can pick up, but not its log.
        """
        while True:
            self._follow_here([followed.response_id])
            if self._others.reaches_others:
                followed.hears = await self._others.ask_to_follow(followed.response_id)
            await asyncio.sleep(INTEREST_SECONDS / 2)
