"""`EventJournal`: the one buffer of a response's events. Transports are cursors into it.

    run ── extend() ──> journal <── take() ── reader (WebSocket)
                                <── take() ── reader (SSE, JSON)

Events are serialised once, here, and never renumbered or merged. A reader of another dialect gets what its `Wording`
makes of the same bytes; the terminal event, whose content may differ, is serialised once more when the first such
reader comes to it. What every reader has taken is forgotten, unless the journal is kept, so that a stream can be picked
up again: then the older ones are packed, which takes a twentieth of the memory or less. A reader that falls more than
`max_lag_bytes` behind is dropped, so the journal never holds more than that for it, and the largest lot of events that
came at once: an item's last events repeat its whole text, and nobody can take them before all are there.

`EventSource`: what has a response's events: a run of this process, a log that was read, or one that is followed.

`ResponseReader`: what a transport has of one: its events, one behind the other. Whose they are it is not told.
"""

import asyncio
import logging
import math
import sys
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from responses_app.protocol.errors import ApiError
from responses_app.protocol.events.dialects import CallNames, Wording
from responses_app.protocol.events.events import TERMINAL, Delta, Event, EventType
from responses_app.protocol.items.items import Exact
from responses_app.protocol.prompt.chain import ChainLink
from responses_app.protocol.requests.resources import ResponseObject, Status
from responses_app.protocol.response.response import ResponseMachine
from responses_app.protocol.response.steps import StopReason

logger = logging.getLogger("respsite.runs")

ENTRY_BYTES = 180  # of memory beside an entry's JSON: counted too, since deltas are short
PACKED_ENTRIES = 256  # that are packed at once, in 0.1 ms
COMPRESSED_BYTES = 256 * 1024  # that are compressed at once: of more of them, some are pictures, or whole answers
GATHERED_TURNS = 8  # of the loop, see `gather`
UNLOOKED_WRITES = 7  # behind a look that found nothing, see `Gathering`
GATHERED_BYTES = 16 * 1024  # of events; over it they are written, or the reader would fall behind for that


@dataclass(slots=True)  # not frozen: there is one a token, and a frozen one takes four times as long to make
class JournalEntry:
    """An event as it is sent."""

    type: str  # as SSE names it
    number: int  # its `sequence_number`
    json: bytes  # as it is sent
    end: int  # bytes that the journal has had up to and with it

    @property
    def begin(self) -> int:
        """The bytes that the journal has had before it."""
        return self.end - len(self.json) - ENTRY_BYTES


class PackedEntries:
    """Consecutive entries of one journal as one compressed text: deltas differ in a word and a number."""

    __slots__ = ("_begin", "_compressed", "_data", "size")

    def __init__(self, entries: Sequence[JournalEntry]) -> None:
        self.size = len(entries)
        self._begin = entries[0].begin
        text = b"\n".join([entry.json for entry in entries])  # JSON has no line end of its own
        self._compressed = len(text) <= COMPRESSED_BYTES
        self._data = zlib.compress(text, 1) if self._compressed else text  # the other levels save little

    @property
    def bytes(self) -> int:
        """The memory that they take."""
        return sys.getsizeof(self) + sys.getsizeof(self._data)

    def entries(self, begin: int, limit: int) -> list[JournalEntry]:
        """Return up to `limit` of the entries as they were, from the one at `begin` on."""
        lines = (zlib.decompress(self._data) if self._compressed else self._data).split(b"\n")
        end, entries = self._begin + sum(len(line) + ENTRY_BYTES for line in lines[:begin]), []
        for json in lines[begin : begin + limit]:
            end += len(json) + ENTRY_BYTES
            # Every event begins with its type and ends with its number, see `Event.as_json`.
            type, number = json[len(_HEAD) : json.index(b'"', len(_HEAD))], json[json.rindex(b":") + 1 : -1]
            entries.append(JournalEntry(type.decode(), int(number), json, end))
        return entries


_HEAD = b'{"type":"'


class ReaderTooSlow(Exception):
    """The reader fell further behind than the journal waits for."""


class EventsForgotten(Exception):
    """A reader asks for events that are not kept any more."""


class EventJournal:
    """Events of one response, from the first that a reader has not taken; from the very first where it is `kept`.

    `first` is the number of the first event that it will get.
    """

    def __init__(self, *, max_lag_bytes: int, kept: bool = False, first: int = 0) -> None:
        self._max_lag_bytes = max_lag_bytes
        self._kept = kept  # nothing is forgotten, so that the stream can be picked up again
        self._entries: list[JournalEntry] = []  # the first of them has the number `_first`
        self._first = first  # number of the first entry that is not packed
        self._packs: deque[PackedEntries] = deque()  # those kept before it
        self._packed_bytes = 0  # of memory
        self._oldest = first  # number of the first entry kept, packed or not
        self.appended_bytes = 0  # ever appended
        self._largest_lot = 0  # bytes
        self._readers: list[JournalReader] = []
        self.closed = False  # nothing follows: a terminal event was appended, or the run went elsewhere
        self.last_number = first - 1
        self._ending: Event | None = None  # the terminal event, and its JSON with the usage of each turn
        self._ending_per_turn: bytes | None = None
        # By their items' ids: events tell a call's name once, dialects more often.
        self.calls: dict[str, CallNames] = {}

    @property
    def readers(self) -> int:
        """How many readers are attached."""
        return len(self._readers)

    @property
    def next_position(self) -> int:
        """The place of the event that comes next: its number, unless one before it could not be written."""
        return self._first + len(self._entries)

    @property
    def is_whole(self) -> bool:
        """Whether the terminal event is here: no stream that goes on elsewhere, or broke, has it."""
        return self._ending is not None

    def extend(self, events: Sequence[Event]) -> None:
        """Add events that come at once, and wake the readers. After a terminal event nothing may follow."""
        before = self.appended_bytes
        self.fill(events)
        if len(events) > 1:
            self._largest_lot = max(self._largest_lot, self.appended_bytes - before)
        if events:
            self._tell_readers()
        if self._kept and len(self._entries) >= 2 * PACKED_ENTRIES:
            self._pack(len(self._entries) - PACKED_ENTRIES)  # readers take most before: the newest stay as they are

    def pack(self) -> None:
        """Pack all that is kept: nothing follows, and nobody reads it for now."""
        self._pack(len(self._entries))

    def _pack(self, count: int) -> None:
        """Pack the first `count` entries."""
        for begin in range(0, count, PACKED_ENTRIES):
            pack = PackedEntries(self._entries[begin : min(begin + PACKED_ENTRIES, count)])
            self._packs.append(pack)
            self._packed_bytes += pack.bytes
        del self._entries[:count]
        self._first += count

    def fill(self, events: Iterable[Event]) -> None:
        """Add events, and wake nobody: alone, it is for a journal that has no readers yet."""
        entries, end = self._entries, self.appended_bytes
        for event in events:
            if self.closed:
                raise RuntimeError(f"{event.type} after the terminal event")
            json = event.as_json()
            # Never counted down: what is kept, and how far a reader is behind, are differences between two such counts.
            self.appended_bytes = end = end + len(json) + ENTRY_BYTES
            self.last_number = number = event.sequence_number
            entries.append(JournalEntry(event.type, number, json, end))
            if isinstance(event, Delta):  # nearly always
                continue
            if event.type in TERMINAL:
                self.closed, self._ending = True, event
            elif event.type is EventType.ITEM_ADDED:
                self.note(event)

    def repeat(self, entries: Sequence[JournalEntry], origin: "EventJournal") -> None:
        """Add events that another journal of the same response has written, and wake the readers."""
        before = self.appended_bytes
        self.calls.update(origin.calls)
        for entry in entries:
            self.appended_bytes = end = self.appended_bytes + len(entry.json) + ENTRY_BYTES
            self._entries.append(JournalEntry(entry.type, entry.number, entry.json, end))
            self.last_number = entry.number
            if entry.type in TERMINAL:
                self.closed, self._ending = True, origin._ending
        if entries:
            self._largest_lot = max(self._largest_lot, self.appended_bytes - before)
            self._tell_readers()

    def note(self, event: Event) -> None:
        """Remember what later events do not tell again, of an item that begins; also of one that nobody reads here."""
        item = event.fields["item"]
        if isinstance(item, dict) and "call_id" in item and "name" in item:
            self.calls[str(item["id"])] = CallNames(str(item["call_id"]), str(item["name"]))

    def _tell_readers(self) -> None:
        # A lot is given to readers whole, so one that had taken everything before is behind by the lot at once: that
        # does not count. After the end nobody is dropped: nothing more will come, and what is there is bounded.
        oldest = self.appended_bytes - self._max_lag_bytes - self._largest_lot
        for reader in tuple(self._readers):  # a copy: who is dropped, or detaches when it is woken, leaves the list
            try:
                if reader.taken_bytes < oldest and not self.closed:
                    reader.too_slow = True
                    self.detach(reader)
                    reader.dropped()
                reader.wake()
            except Exception:  # a transport's own bug: the run and its other readers go on
                logger.exception("a reader cannot be told that there are events")

    @property
    def kept_bytes(self) -> int:
        """How much memory its events take."""
        return self._packed_bytes + (self.appended_bytes - self._entries[0].begin if self._entries else 0)

    def attach(self, reader: "JournalReader", *, starting_after: int | None, wording: Wording | None) -> None:
        """Add a reader, as it begins: at the first event kept, or behind the event `starting_after`.

        What lies in the journal when a reader comes does not count as its lag. Raises `EventsForgotten`.
        """
        # Numbers have no gaps.
        start = self._oldest if starting_after is None else starting_after + 1
        if start < self._oldest:
            raise EventsForgotten
        # Behind the last event: it gets what comes.
        start = min(start, self.next_position)
        # One that picks a stream up may be megabytes behind; that it came late is not slowness. So its lag is counted
        # from here on: from all that was ever appended, not from what it has taken.
        reader.position, reader.taken_bytes = start, self.appended_bytes
        if wording is not None and start > self._oldest:
            last = self._entries_from(start - 1, 1)[0]
            reader.again = [
                JournalEntry(type, last.number, json, last.end)
                for type, json in wording.behind(last.type, last.number, last.json)
            ]
        self._readers.append(reader)

    def has_after(self, number: int | None) -> bool:
        """Whether all events behind this one are here, or are yet to come; None stands for all events."""
        return self._oldest <= (0 if number is None else number + 1)

    def keep_no_longer(self) -> None:
        """Forget from now on what all readers have had."""
        self._kept = False
        self._forget()
        if self.closed and not self._readers:
            self._forget_before(self.next_position)

    def end(self) -> None:
        """Close without a terminal event: the run goes on elsewhere."""
        self.closed = True
        self._tell_readers()

    def detach(self, reader: "JournalReader") -> None:
        """Remove a reader; detaching twice is not an error."""
        if reader in self._readers:
            self._readers.remove(reader)
            self._forget()

    def take(self, reader: "JournalReader", limit: int) -> list[JournalEntry]:
        """Return up to `limit` events the reader has not had yet, and forget what all readers have had."""
        start = reader.position - self._first
        if start == 0 and len(self._entries) <= limit and len(self._readers) == 1 and not (self._kept or self._packs):
            taken, self._entries = self._entries, []  # the usual case, without a copy: one reader, nothing to keep
            self._first = self._oldest = self._first + len(taken)
        else:
            taken = self._entries_from(reader.position, limit)
        if taken:
            reader.position += len(taken)
            reader.taken_bytes = max(reader.taken_bytes, taken[-1].end)  # one that catches up counts as further
            self._forget()
        return taken

    def worded(self, entry: JournalEntry, wording: Wording) -> list[JournalEntry]:
        """Return what an entry is in another dialect."""
        json = entry.json
        if wording.usage_per_turn and self._ending is not None and entry.number == self._ending.sequence_number:
            if self._ending_per_turn is None:
                self._ending_per_turn = self._ending.as_json(usage_per_turn=True)
            json = self._ending_per_turn
        worded = wording.of(entry.type, entry.number, json)
        # `is`, not `==`: a dialect that changes nothing gives the same object back.
        if len(worded) == 1 and worded[0][1] is entry.json:
            return [entry]
        return [JournalEntry(type, entry.number, json, entry.end) for type, json in worded]

    def _forget(self) -> None:
        """Forget what all readers have had. Without a reader nothing is forgotten: the first one may yet come."""
        if self._kept or not self._readers or self._oldest == self.next_position:
            return
        oldest = min(reader.position for reader in self._readers)
        if self._oldest < oldest:
            self._forget_before(oldest)

    def _forget_before(self, number: int) -> None:
        """Forget the events before this one; of a pack that has some of them and others, all stay."""
        while self._packs and self._oldest + self._packs[0].size <= number:
            pack = self._packs.popleft()
            self._packed_bytes -= pack.bytes
            self._oldest += pack.size
        if not self._packs:
            del self._entries[: number - self._first]
            self._first = self._oldest = number

    def _entries_from(self, number: int, limit: int) -> list[JournalEntry]:
        """Return up to `limit` events from this number on, at least one where there is one."""
        if number >= self._first:
            return self._entries[number - self._first : number - self._first + limit]
        first = self._oldest
        for pack in self._packs:
            if number < first + pack.size:
                return pack.entries(number - first, limit)
            first += pack.size
        raise AssertionError("a reader is not before the oldest event")


class JournalReader:
    """A cursor into a journal. Not a queue: what it has not taken lies in the journal, once for all readers.

    `wording` is how it hears events, None for as they are. `wake` is called on news, `dropped` once if the reader falls
    too far behind; both must return at once. Raises `EventsForgotten` where events behind `starting_after` are missing.
    """

    def __init__(
        self,
        journal: EventJournal,
        wake: Callable[[], None],
        dropped: Callable[[], None],
        *,
        starting_after: int | None = None,
        wording: Wording | None = None,
    ) -> None:
        self.wake = wake
        self.dropped = dropped
        self.position = 0  # the place of the event that it takes next
        self.taken_bytes = 0  # of all that was ever appended; what was there when it came counts as taken
        self.too_slow = False
        self.again: list[JournalEntry] = []  # what its dialect puts behind the event that it begins behind
        self._journal = journal
        self._wording = wording
        journal.attach(self, starting_after=starting_after, wording=wording)

    @property
    def ended(self) -> bool:
        """Whether the terminal event has been taken, or all there is of a stream that is not whole."""
        return self._journal.closed and self.position >= self._journal.next_position

    @property
    def is_whole(self) -> bool:
        """Whether the terminal event is among its events, once it has ended: else it goes on elsewhere, or broke."""
        return self._journal.is_whole

    @property
    def lag_bytes(self) -> int:
        """How far it is behind."""
        return self._journal.appended_bytes - self.taken_bytes

    @property
    def behind(self) -> bool:
        """Whether there are events it has not taken."""
        return self.position < self._journal.next_position

    @property
    def has_little(self) -> bool:
        """Whether there are events it has not taken, and so few that more may come with them."""
        return self.position < self._journal.next_position and self.lag_bytes < GATHERED_BYTES

    @property
    def last_number(self) -> int:
        """The number of the last event taken, -1 before the first."""
        return self.position - 1

    def take(self, limit: int = 64) -> list[JournalEntry]:
        """Return the next events, without waiting; of up to `limit` in the journal, a dialect may make more.

        Raises `ReaderTooSlow` once the reader was given up.
        """
        if self.too_slow:
            raise ReaderTooSlow
        taken = self._journal.take(self, limit)
        if self._wording is None:
            return taken
        again, self.again = self.again, []
        return [*again, *(worded for entry in taken for worded in self._journal.worded(entry, self._wording))]


async def gather(has_little: Callable[[], bool]) -> bool:
    """Let others have their turn after something was written, and let what comes all the time come together.

    Writing an event costs as much as making it. So where there is news again within a turn of the loop, which is to say
    that it comes faster than it can be written, that of a few turns is written at once; `has_little` says whether there
    is news, and so little that more may come with it. Turns are short where there is little to do: then nobody waits
    for longer than some microseconds. Returns whether any came.
    """
    for turn in range(GATHERED_TURNS):
        await asyncio.sleep(0)
        if not has_little():
            return turn > 0
    return True


class Gathering:
    """`gather`, for one writer. News that comes alone is not looked out for behind each write.

    An engine at its usual pace gives a stream a token every some milliseconds. Each look would cost the stream's task
    a step, and the loop a turn, for nothing.
    """

    def __init__(self, has_little: Callable[[], bool]) -> None:
        self._has_little = has_little
        self._unlooked = 0  # how many writes more nobody looks behind

    async def pause(self, *, is_behind: bool) -> None:
        """To be awaited behind a write; `is_behind`: there is more to write already."""
        if self._unlooked and not is_behind:
            self._unlooked -= 1
        elif not await gather(self._has_little):
            self._unlooked = UNLOOKED_WRITES


class Waiter:
    """A `wake` for a reader that is one coroutine: `await waiter.wait()` returns when there is news."""

    def __init__(self) -> None:
        self._news = False
        self._loop = asyncio.get_running_loop()
        self._waiting: asyncio.Future[None] | None = None
        self._due = 0.0
        self._timer: asyncio.TimerHandle | None = None  # one for many waits: there is a wait for every event

    def __call__(self) -> None:
        self._news = True  # stays until a `wait` takes it, so news that come between two waits are not lost
        self._end_wait()

    async def wait(self, timeout: float | None = None) -> bool:
        """Wait for news, at most `timeout` seconds; return whether there is any."""
        if not self._news:
            loop = self._loop
            self._waiting = loop.create_future()
            self._due = loop.time() + timeout if timeout is not None else math.inf
            # A timer that an earlier wait left will do: a reader's waits have the same timeout, so it rings before this
            # one is due, and `_ring` sets the next one.
            if self._timer is None and timeout is not None:
                self._timer = loop.call_at(self._due, self._ring)
            await self._waiting
        # Also after a wait that has timed out: news may have come in the same turn of the loop.
        news, self._news = self._news, False
        return news

    def _ring(self) -> None:
        """The timer is up: end a wait whose time is over, look again at the end of a later one."""
        self._timer = None
        if self._waiting is None or self._waiting.done():
            return
        if self._loop.time() >= self._due:
            self._end_wait()
        elif self._due < math.inf:
            self._timer = self._loop.call_at(self._due, self._ring)

    def _end_wait(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)


class EventSource:
    """A response's events, and the machine that they come of; as it is, that of one which has ended, or runs elsewhere.

    `link` and `problem` hold once it has ended.
    """

    link: ChainLink | None = None  # what continues it in a connection; None for what cannot be continued, or not here
    problem: ApiError | None = None  # why it failed
    deleted = False  # somebody has deleted the response while it ran here
    has_spoken = True  # the model has said anything

    def __init__(self, response_id: str, journal: EventJournal, machine: ResponseMachine) -> None:
        self.response_id = response_id
        self.journal = journal
        self._machine = machine

    @property
    def status(self) -> Status:
        """The status as far as readers know it."""
        return self._machine.status

    @property
    def known_as(self) -> str:
        """The id by which clients know the response."""
        return self._machine.stream.known_as

    @property
    def said(self) -> Exact | None:
        """What the model has sampled so far, as it reads it in a later turn; None for what does not run here."""
        return None

    def response(self) -> ResponseObject:
        """Return the response object as it stands."""
        return self._machine.stream.snapshot()

    def stop(self, reason: StopReason) -> bool:
        """End it before the model does; return whether its end was not decided yet. What runs elsewhere goes on."""
        return False


class ResponseReader(JournalReader):
    """One reader. Whoever has it lets go of it with `leave`; then nothing is to be asked of it but how it ended.

    `take`, `listen` and `cancel` return at once. `cancel` ends what runs here, with a reason for the log.
    """

    def __init__(
        self,
        source: EventSource,
        *,
        cancel: Callable[[str], None],
        left: Callable[["ResponseReader", str], None],
        starting_after: int | None = None,
        wording: Wording | None = None,
    ) -> None:
        super().__init__(source.journal, _unheard, self._dropped, starting_after=starting_after, wording=wording)
        self.source = source
        self.cancel = cancel
        self._left = left

    def listen(self, wake: Callable[[], None]) -> None:
        """Call `wake`, which must return at once, on news from now on."""
        self.wake = wake

    def leave(self, reason: str = "its reader left") -> None:
        """Let go; the last one to do so ends a response that is not in the background. Twice is not an error."""
        self._left(self, reason)
        self.wake = self.dropped = _unheard  # its own method and its transport know it, as it knows them

    def _dropped(self) -> None:
        logger.warning(
            "response %s: a reader fell more than STREAM_MAX_LAG_BYTES behind and was dropped", self.source.response_id
        )
        self._left(self, "its reader was too slow")


def _unheard() -> None:
    """Nobody listens to a reader yet, or any more."""
