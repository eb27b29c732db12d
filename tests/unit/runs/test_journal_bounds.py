"""What the journal keeps, for whom, and how far behind a reader may be."""

import asyncio

import orjson
import pytest

from responses_app.protocol.events.events import Event, EventType
from responses_app.protocol.usage import TurnUsage, as_read, usage
from responses_app.runs.log.journal import EventJournal, EventsForgotten, JournalReader, ReaderTooSlow, Waiter
from tests.unit.protocol.wordings import in_dialect

MANY = 1_000_000


def event(number: int, *, last: bool = False) -> Event:
    return Event(EventType.COMPLETED if last else EventType.TEXT_DELTA, number, {"delta": "x" * 50})


def journal(count: int, *, max_lag_bytes: int = MANY, kept: bool = False, closed: bool = False) -> EventJournal:
    """Return a journal with this many events, all of one size; the last one is terminal where it is `closed`."""
    made = EventJournal(max_lag_bytes=max_lag_bytes, kept=kept)
    for number in range(count):
        made.extend([event(number, last=closed and number == count - 1)])
    return made


def attach(made: EventJournal, starting_after: int | None = None) -> JournalReader:
    return JournalReader(made, lambda: None, lambda: None, starting_after=starting_after)


def numbers(reader: JournalReader, limit: int = 64) -> list[int]:
    return [entry.number for entry in reader.take(limit)]


SIZE = journal(1).kept_bytes  # of one event, whose number has one digit


class TestLag:
    def test_a_reader_may_be_as_far_behind_as_the_bound_and_no_byte_further(self) -> None:
        """An event that comes alone is not a lot of events that came at once."""
        for bound, count in ((3 * SIZE, 3), (3 * SIZE - 1, 2)):
            made = journal(0, max_lag_bytes=bound)
            reader = attach(made)
            for number in range(4):
                made.extend([event(number)])
                assert reader.too_slow == (number >= count)

    def test_the_largest_lot_is_added_to_the_bound(self) -> None:
        for bound, count in ((3 * SIZE, 5), (3 * SIZE - 1, 4)):
            made = journal(0, max_lag_bytes=bound)
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
    def test_a_kept_journal_has_all_its_events_for_every_reader(self) -> None:
        made = journal(3, kept=True)
        assert numbers(attach(made)) == numbers(attach(made)) == [0, 1, 2]
        assert made.kept_bytes == 3 * SIZE
        assert made.has_after(None)

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

    def test_keeping_no_longer_leaves_a_live_stream_to_its_first_reader(self) -> None:
        made = journal(3, kept=True)
        made.keep_no_longer()
        assert numbers(attach(made)) == [0, 1, 2]

    def test_keeping_no_longer_leaves_what_a_reader_has_not_taken_of_a_finished_stream(self) -> None:
        made = journal(3, kept=True, closed=True)
        reader = attach(made)
        made.keep_no_longer()
        assert numbers(reader) == [0, 1, 2]

    def test_a_finished_stream_that_nobody_reads_is_forgotten_whole(self) -> None:
        made = journal(3, kept=True, closed=True)
        made.keep_no_longer()
        assert made.kept_bytes == 0
        assert not made.has_after(None)
        assert not made.has_after(1)
        with pytest.raises(EventsForgotten):
            attach(made, 0)


class TestEnds:
    def test_a_reader_ends_with_the_terminal_event_and_not_by_having_read_all_there_is(self) -> None:
        made = journal(2)
        reader = attach(made)
        numbers(reader)
        assert not reader.behind
        assert not reader.ended
        made.extend([event(2, last=True)])
        assert reader.behind
        assert not reader.ended
        numbers(reader)
        assert reader.ended

    def test_a_run_that_goes_on_elsewhere_ends_its_readers_where_they_are(self) -> None:
        made, woken = journal(2), []
        reader = JournalReader(made, lambda: woken.append("news"), lambda: woken.append("dropped"))
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

    def test_a_dropped_reader_is_woken_so_that_it_learns_of_it(self) -> None:
        made, told = journal(0, max_lag_bytes=0), []
        reader = JournalReader(made, lambda: told.append("news"), lambda: told.append("dropped"))
        made.extend([event(0)])
        assert sorted(told) == ["dropped", "news"]
        with pytest.raises(ReaderTooSlow):
            reader.take()

    def test_events_that_come_at_once_wake_once_and_no_events_wake_nobody(self) -> None:
        made, woken = journal(0), []
        JournalReader(made, lambda: woken.append("news"), lambda: None)
        made.extend([event(0), event(1)])
        assert woken == ["news"]
        made.extend([])
        assert woken == ["news"]


class TestDialects:
    @pytest.mark.parametrize(
        ("named", "per_turn"),
        [("open-responses", False), ("usage-per-turn", True), ("usage-per-turn,open-responses", True)],
    )
    def test_only_who_asked_for_it_gets_the_usage_of_each_turn(self, named: str, per_turn: bool) -> None:
        made = journal(1)
        reader = JournalReader(made, lambda: None, lambda: None, wording=in_dialect(named))
        [before] = reader.take()
        assert before.number == 0, "events are read before the end is known"
        response = {"id": "resp_1", "usage": usage([TurnUsage(7, 0, 3, 1)])}
        made.extend([Event(EventType.COMPLETED, 1, {"response": response})])
        [last] = reader.take()
        assert orjson.loads(last.json)["response"] == as_read(response, usage_per_turn=per_turn)


class TestWaiting:
    async def test_news_that_came_before_the_wait_end_it_at_once(self) -> None:
        waiter = Waiter()
        waiter()
        async with asyncio.timeout(1):
            assert await waiter.wait() is True
        assert await waiter.wait(0.001) is False, "news count once"

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

    async def test_a_wait_with_a_time_follows_one_without(self) -> None:
        waiter, loop = Waiter(), asyncio.get_running_loop()
        loop.call_soon(waiter)
        assert await waiter.wait() is True
        async with asyncio.timeout(1):
            assert await waiter.wait(0.005) is False

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
