"""The journal: one buffer, many cursors, bounded by its slowest reader; what it keeps, and for whom."""

import asyncio
from collections.abc import Callable

import orjson
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from responses_app.protocol.events.events import Event, EventType
from responses_app.protocol.usage import TurnUsage, as_read, usage
from responses_app.runs.log.journal import (
    COMPRESSED_BYTES,
    GATHERED_BYTES,
    GATHERED_TURNS,
    PACKED_ENTRIES,
    UNLOOKED_WRITES,
    EventJournal,
    EventsForgotten,
    Gathering,
    JournalReader,
    ReaderTooSlow,
    Waiter,
    gather,
)
from tests.unit.protocol.wordings import in_dialect


def event(number: int, text: str = "x" * 50, *, last: bool = False) -> Event:
    return Event(EventType.COMPLETED if last else EventType.TEXT_DELTA, number, {"delta": text})


def journal(
    count: int = 0, *, max_lag_bytes: int = 1_000_000, kept: bool = False, closed: bool = False
) -> EventJournal:
    """Return a journal with this many events, all of one size; the last one is terminal where it is `closed`."""
    made = EventJournal(max_lag_bytes=max_lag_bytes, kept=kept)
    for number in range(count):
        made.extend([event(number, last=closed and number == count - 1)])
    return made


def attach(made: EventJournal, starting_after: int | None = None, *, dialect: str = "openai") -> JournalReader:
    wording = in_dialect(dialect)
    return JournalReader(made, lambda: None, lambda: None, starting_after=starting_after, wording=wording)


def listening(made: EventJournal) -> tuple[JournalReader, list[str]]:
    """Return a reader, and a list of what it is told."""
    told: list[str] = []
    return JournalReader(made, lambda: told.append("news"), lambda: told.append("dropped")), told


def numbers(reader: JournalReader, limit: int = 64) -> list[int]:
    return [entry.number for entry in reader.take(limit)]


SIZE = journal(1).kept_bytes  # of one event, whose number has one digit


def test_a_reader_gets_every_event_once_in_order_and_ends_with_the_terminal_one() -> None:
    made = journal(2)
    reader = attach(made)
    assert numbers(reader) == [0, 1]
    assert numbers(reader) == []
    assert (reader.behind, reader.ended) == (False, False), "it has read all there is"
    made.extend([event(2)])
    made.extend([event(3, last=True)])
    assert not reader.ended
    assert numbers(reader, 1) == [2]
    assert reader.behind
    assert numbers(reader) == [3]
    assert reader.ended
    assert reader.last_number == 3


def test_readers_of_other_dialects_get_the_same_events_by_other_names() -> None:
    made = journal()
    plain, other = attach(made), attach(made, dialect="open-responses")
    made.extend([Event(EventType.REASONING_DELTA, 0, {"delta": "Hm"})])
    made.extend([event(1, "é")])
    (thought, said), (renamed, same) = plain.take(), other.take()
    assert (thought.type, renamed.type) == ("response.reasoning_text.delta", "response.reasoning.delta")
    assert orjson.loads(renamed.json) == {**orjson.loads(thought.json), "type": renamed.type}
    assert (renamed.number, renamed.end) == (thought.number, thought.end)
    assert same is said, "what is worded alike is made once"


@pytest.mark.parametrize("late", [False, True])
def test_the_terminal_event_has_the_usage_of_each_turn_for_those_who_asked_for_it(late: bool) -> None:
    made = journal(1 if late else 0)
    dialects = ("openai", "open-responses", "usage-per-turn", *("usage-per-turn,open-responses",) * 2)
    readers = [attach(made, dialect=dialect) for dialect in dialects]
    if late:  # events are read before the end is known
        assert [numbers(reader) for reader in readers] == [[0]] * 5
    response = {"id": "resp_1", "usage": usage([TurnUsage(7, 0, 3, 1)])}
    made.extend([event(1)])
    made.extend([Event(EventType.COMPLETED, 2, {"response": response})])
    taken = [reader.take() for reader in readers]
    assert all(before is taken[0][0] for before, _ in taken)
    short = as_read(response, usage_per_turn=False)
    assert short != response
    told = [orjson.loads(last.json) for _, last in taken]
    assert [each.pop("response") for each in told] == [short, short, response, response, response]
    assert all(each == told[0] for each in told)
    assert taken[3][1].json is taken[4][1].json, "made once for all who want it"


def test_what_all_have_read_is_forgotten_and_a_late_reader_starts_behind_it() -> None:
    made = journal(3)
    numbers(attach(made), 2)
    assert numbers(attach(made)) == [2]


def test_nothing_follows_a_terminal_event() -> None:
    made = journal(1, closed=True)
    assert made.closed
    with pytest.raises(RuntimeError, match="terminal"):
        made.extend([event(1)])


def test_events_that_come_at_once_drop_nobody_who_was_not_behind_before() -> None:
    made = journal(max_lag_bytes=1000)
    quick, slow = attach(made), attach(made)
    made.extend([event(0, "x" * 500)])
    assert numbers(quick) == [0]
    made.extend([event(number, "x" * 5000) for number in (1, 2, 3)])
    assert made.readers == 2
    assert numbers(quick) == [1, 2, 3]
    made.extend([event(4, "x" * 500)])
    with pytest.raises(ReaderTooSlow):
        slow.take()
    made.extend([])
    assert numbers(quick) == [4]


def test_the_terminal_event_drops_nobody() -> None:
    made = journal(max_lag_bytes=60)
    reader = attach(made)
    made.extend([event(0, "x" * 500, last=True)])
    assert numbers(reader) == [0]


class TestLag:
    def test_a_reader_may_be_as_far_behind_as_the_bound_and_no_byte_further(self) -> None:
        """An event that comes alone is not a lot of events that came at once."""
        for bound, count in ((3 * SIZE, 3), (3 * SIZE - 1, 2)):
            made = journal(max_lag_bytes=bound)
            reader = attach(made)
            for number in range(4):
                made.extend([event(number)])
                assert reader.too_slow == (number >= count)

    def test_the_largest_lot_is_added_to_the_bound(self) -> None:
        for bound, count in ((3 * SIZE, 5), (3 * SIZE - 1, 4)):
            made = journal(max_lag_bytes=bound)
            quick, reader = attach(made), attach(made)
            made.extend([event(0), event(1)])
            for number in range(2, 6):
                numbers(quick)
                made.extend([event(number)])
                assert reader.too_slow == (number >= count)
            assert not quick.too_slow

    @pytest.mark.parametrize("starting_after", [None, -1, 1])
    def test_what_lay_there_when_a_reader_came_is_not_a_lag(self, starting_after: int | None) -> None:
        made = journal(5, max_lag_bytes=2 * SIZE, kept=True)
        reader = attach(made, starting_after)
        assert reader.lag_bytes == 0
        made.extend([event(5)])
        assert reader.lag_bytes == SIZE
        made.extend([event(6)])
        assert not reader.too_slow
        made.extend([event(7)])
        assert reader.too_slow

    def test_the_lag_is_what_came_and_was_not_taken(self) -> None:
        made = journal(0)
        reader = attach(made)
        for number in range(3):
            made.extend([event(number)])
        assert reader.lag_bytes == 3 * SIZE
        reader.take(1)
        assert reader.lag_bytes == 2 * SIZE
        reader.take()
        assert reader.lag_bytes == 0

    def test_who_reads_what_lay_there_before_it_came_does_not_fall_behind_by_it(self) -> None:
        made = journal(8, max_lag_bytes=SIZE, kept=True)
        reader = attach(made, 0)
        assert numbers(reader, 2) == [1, 2]
        made.extend([event(8)])
        assert not reader.too_slow
        assert numbers(reader) == list(range(3, 9))


class TestKeeping:
    @pytest.mark.parametrize("size", [50, COMPRESSED_BYTES // PACKED_ENTRIES])  # the larger ones are not compressed
    def test_older_events_of_a_kept_journal_are_packed_and_read_as_they_were(self, size: int) -> None:
        texts = [f"{number} é\u2028 " * (size // 9) for number in range(3 * PACKED_ENTRIES)]
        made, plain = (EventJournal(max_lag_bytes=10**9, kept=kept) for kept in (True, False))
        for journal in (made, plain):
            for number, text in enumerate(texts):
                journal.extend([event(number, text, last=number == len(texts) - 1)])
        events = list(iter(attach(plain).take, []))
        assert [each for lot in iter(attach(made).take, []) for each in lot] == [each for lot in events for each in lot]
        made.pack()
        for behind in (-1, 0, PACKED_ENTRIES - 2, PACKED_ENTRIES, len(texts) - 2):
            [first, *_] = attach(made, behind, dialect="open-responses").take()
            assert (first.number, made.has_after(behind)) == (behind + 1, True)
        assert numbers(attach(made, len(texts) - 1)) == []
        assert size > 50 or made.kept_bytes < made.appended_bytes / 10
        made.keep_no_longer()
        assert (made.kept_bytes, made.has_after(len(texts) - 2)) == (made.kept_bytes, True)

    def test_what_all_have_read_takes_no_memory(self) -> None:
        made = journal(4)
        first, second = attach(made), attach(made)
        numbers(first)
        assert made.kept_bytes == 4 * SIZE
        numbers(second, 3)
        assert made.kept_bytes == SIZE
        made.detach(second)
        assert made.kept_bytes == 0, "the one that had not read it is gone"

    @pytest.mark.parametrize("number", [-1, 0, 1, 2, 3])
    def test_a_reader_begins_behind_the_event_it_names(self, number: int) -> None:
        reader = attach(journal(4), number)
        assert reader.last_number == number
        assert numbers(reader) == list(range(number + 1, 4))

    def test_it_says_whose_events_are_still_here(self) -> None:
        made = journal(4)
        assert made.has_after(None)
        assert made.has_after(-1)
        numbers(attach(made), 3)
        assert [made.has_after(number) for number in (None, 0, 1, 2, 3)] == [False, False, False, True, True]
        with pytest.raises(EventsForgotten):
            attach(made, 1)
        assert numbers(attach(made, 2)) == [3]

    def test_one_event_that_is_forgotten_is_one_too_many_for_a_new_reader(self) -> None:
        made = journal(4)
        numbers(attach(made), 1)
        assert not made.has_after(None)
        assert not made.has_after(-1)
        assert made.has_after(0)

    def test_keeping_no_longer_forgets_what_has_been_read_and_nothing_else(self) -> None:
        made = journal(3, kept=True)
        reader = attach(made)
        numbers(reader, 2)
        made.keep_no_longer()
        assert made.kept_bytes == SIZE
        assert not made.has_after(0)
        made.extend([event(3, last=True)])
        assert numbers(reader) == [2, 3]
        assert made.kept_bytes == 0, "from now on what all have had is forgotten"

    @pytest.mark.parametrize("closed", [False, True])
    def test_keeping_no_longer_leaves_what_nobody_has_taken(self, closed: bool) -> None:
        made = journal(3, kept=True, closed=closed)
        reader = attach(made) if closed else None  # the first reader of a live stream may come later
        made.keep_no_longer()
        assert numbers(reader or attach(made)) == [0, 1, 2]

    def test_a_finished_stream_that_nobody_reads_is_forgotten_whole(self) -> None:
        made = journal(3, kept=True, closed=True)
        made.keep_no_longer()
        assert made.kept_bytes == 0
        assert not made.has_after(None)
        assert not made.has_after(1)
        with pytest.raises(EventsForgotten):
            attach(made, 0)


class TestEnds:
    def test_a_run_that_goes_on_elsewhere_ends_its_readers_where_they_are(self) -> None:
        made = journal(2)
        reader, woken = listening(made)
        made.end()
        assert woken == ["news"]
        assert not reader.ended, "it has not taken what there is"
        assert numbers(reader) == [0, 1]
        assert reader.ended
        with pytest.raises(RuntimeError):
            made.extend([event(2)])

    def test_one_without_a_single_event_has_ended_too(self) -> None:
        made = journal(0)
        reader = attach(made)
        assert not reader.behind
        made.end()
        assert reader.ended
        assert (made.last_number, reader.last_number) == (-1, -1)

    def test_a_reader_that_falls_behind_is_dropped_and_told_once(self) -> None:
        made = journal(max_lag_bytes=300)
        (slow, told), quick = listening(made), attach(made)
        for number in range(10):
            made.extend([event(number)])
            numbers(quick)
        assert (told, made.readers) == (["news", "dropped", "news"], 1), "it is woken to learn of it"
        with pytest.raises(ReaderTooSlow):
            slow.take()
        made.extend([event(10, last=True)])
        assert numbers(quick) == [10]


class TestWaiting:
    async def test_each_wait_has_its_own_time(self) -> None:
        """One timer serves many waits: it must not end a later wait by the time of an earlier one."""
        waiter, loop = Waiter(), asyncio.get_running_loop()
        loop.call_soon(waiter)
        assert await waiter.wait(0.02) is True
        began = loop.time()
        assert await waiter.wait(0.06) is False
        assert loop.time() - began >= 0.05

    async def test_a_wait_without_a_time_outlasts_the_timer_of_the_one_before(self) -> None:
        waiter, loop = Waiter(), asyncio.get_running_loop()
        loop.call_soon(waiter)
        assert await waiter.wait(0.01) is True
        waiting = asyncio.create_task(waiter.wait())
        await asyncio.sleep(0.03)
        assert not waiting.done()
        waiter()
        assert await waiting is True
        async with asyncio.timeout(1):
            assert await waiter.wait(0.005) is False, "and a later one has its time again"

    async def test_a_timer_that_rings_between_two_waits_disturbs_neither(self) -> None:
        waiter, loop = Waiter(), asyncio.get_running_loop()
        loop.call_soon(waiter)
        assert await waiter.wait(0.005) is True
        await asyncio.sleep(0.01)
        async with asyncio.timeout(1):
            assert await waiter.wait(0.001) is False, "a new timer was set"

    async def test_many_waits_that_end_by_news_share_one_timer(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """There is a wait for every event; a timer for each would lie in the loop until its time."""
        waiter, loop = Waiter(), asyncio.get_running_loop()
        timers: list[float] = []
        call_at = loop.call_at
        monkeypatch.setattr(loop, "call_at", lambda when, *args: timers.append(when) or call_at(when, *args))
        for _ in range(20):
            loop.call_soon(waiter)
            assert await waiter.wait(60) is True
        assert len(timers) == 1


class AnyOrder(RuleBasedStateMachine):
    """Readers come, read and go in any order: each sees a run of events without a gap."""

    kept = False

    def __init__(self) -> None:
        super().__init__()
        self.journal = EventJournal(max_lag_bytes=10**9, kept=self.kept)
        self.readers: list[tuple[JournalReader, list[int]]] = []
        self.count = 0

    @rule(amount=st.integers(1, 5))
    def append(self, amount: int) -> None:
        for _ in range(amount):
            self.journal.extend([event(self.count)])
            self.count += 1

    @rule()
    def come(self) -> None:
        self.readers.append((attach(self.journal), []))

    @precondition(lambda self: self.readers)
    @rule(data=st.data(), limit=st.integers(1, 4))
    def read(self, data: st.DataObject, limit: int) -> None:
        reader, seen = data.draw(st.sampled_from(self.readers))
        taken = numbers(reader, limit)
        assert taken or not reader.behind
        seen += taken
        assert seen == list(range(reader.last_number - len(seen) + 1, reader.last_number + 1))
        assert reader.last_number < self.count

    @precondition(lambda self: self.readers)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        reader, _ = self.readers.pop(data.draw(st.integers(0, len(self.readers) - 1)))
        self.journal.detach(reader)


class AnyOrderKept(AnyOrder):
    """The same of events that are packed at any time, and kept no longer from any time on."""

    kept = True

    @rule()
    def pack(self) -> None:
        self.journal.pack()

    @rule()
    def keep_no_longer(self) -> None:
        self.journal.keep_no_longer()


TestAnyOrder, TestAnyOrderKept = AnyOrder.TestCase, AnyOrderKept.TestCase
TestAnyOrder.settings = TestAnyOrderKept.settings = settings(deadline=None, max_examples=30, stateful_step_count=30)


class TestGather:
    async def turns(self, has_little: Callable[[], bool]) -> int:
        """Return how many turns of the loop passed until `gather` was through."""
        gathering = asyncio.create_task(gather(has_little))
        await asyncio.sleep(0)
        turns = 0
        while not gathering.done():
            await asyncio.sleep(0)
            turns += 1
        return turns

    async def test_what_comes_all_the_time_is_waited_for_some_turns(self) -> None:
        assert await self.turns(lambda: True) == GATHERED_TURNS

    async def test_where_nothing_came_it_is_over_at_once(self) -> None:
        assert await self.turns(lambda: False) == 1

    async def test_it_says_whether_any_came(self) -> None:
        assert await gather(lambda: True)
        assert await gather(iter([True, False]).__next__)
        assert not await gather(lambda: False)

    def test_a_reader_has_little_until_it_has_much(self) -> None:
        made = journal()
        reader = attach(made)
        assert not reader.has_little
        made.extend([event(0)])
        assert reader.has_little
        made.extend([event(1, "x" * GATHERED_BYTES)])
        assert not reader.has_little
        reader.take()
        made.extend([event(2)])
        assert reader.has_little


class TestGathering:
    def looks(self, gathering: Gathering, *, is_behind: bool = False) -> bool:
        """Return whether a pause lets others have their turn."""
        pause = gathering.pause(is_behind=is_behind)
        try:
            pause.send(None)
        except StopIteration:
            return False
        pause.close()
        return True

    async def test_behind_a_look_that_found_nothing_some_writes_go_without(self) -> None:
        gathering = Gathering(lambda: False)
        await gathering.pause(is_behind=False)
        assert [self.looks(gathering) for _ in range(UNLOOKED_WRITES + 1)] == [False] * UNLOOKED_WRITES + [True]

    async def test_where_news_comes_all_the_time_each_write_looks(self) -> None:
        gathering = Gathering(lambda: True)
        for _ in range(3):
            await gathering.pause(is_behind=False)
            assert self.looks(gathering)

    async def test_who_has_more_to_write_always_lets_others_have_their_turn(self) -> None:
        gathering = Gathering(lambda: False)
        await gathering.pause(is_behind=False)
        assert self.looks(gathering, is_behind=True)
