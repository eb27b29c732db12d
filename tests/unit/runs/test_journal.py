"""The journal: one buffer, many cursors, bounded by its slowest reader."""

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
    GATHERED_BYTES,
    GATHERED_TURNS,
    UNLOOKED_WRITES,
    EventJournal,
    Gathering,
    JournalReader,
    ReaderTooSlow,
    Waiter,
    gather,
)
from tests.unit.protocol.wordings import in_dialect


def event(number: int, text: str = "", *, last: bool = False) -> Event:
    return Event(EventType.COMPLETED if last else EventType.TEXT_DELTA, number, {"delta": text})


def journal(*numbers: int, max_lag_bytes: int = 10_000) -> EventJournal:
    made = EventJournal(max_lag_bytes=max_lag_bytes)
    for number in numbers:
        made.extend([event(number)])
    return made


def attach(made: EventJournal) -> JournalReader:
    return JournalReader(made, lambda: None, lambda: None)


def numbers(reader: JournalReader, limit: int = 64) -> list[int]:
    return [entry.number for entry in reader.take(limit)]


def test_a_reader_gets_every_event_once_in_order() -> None:
    made = journal(0, 1)
    reader = attach(made)
    assert numbers(reader) == [0, 1]
    assert numbers(reader) == []
    made.extend([event(2)])
    made.extend([event(3, last=True)])
    assert not reader.ended
    assert numbers(reader, 1) == [2]
    assert reader.behind
    assert numbers(reader) == [3]
    assert reader.ended
    assert reader.last_number == 3


def test_an_entry_is_the_event_as_it_is_sent() -> None:
    made = EventJournal(max_lag_bytes=1000)
    made.extend([event(0, "é")])
    [entry] = attach(made).take()
    assert entry.type == "response.output_text.delta"
    assert orjson.loads(entry.json) == {"type": "response.output_text.delta", "delta": "é", "sequence_number": 0}


def test_readers_of_other_dialects_get_the_same_events_by_other_names() -> None:
    made = EventJournal(max_lag_bytes=1000)
    plain, other = attach(made), JournalReader(made, lambda: None, lambda: None, wording=in_dialect("open-responses"))
    made.extend([Event(EventType.REASONING_DELTA, 0, {"delta": "Hm"})])
    made.extend([event(1, "é")])
    (thought, said), (renamed, same) = plain.take(), other.take()
    assert (thought.type, renamed.type) == ("response.reasoning_text.delta", "response.reasoning.delta")
    assert orjson.loads(renamed.json) == {**orjson.loads(thought.json), "type": renamed.type}
    assert (renamed.number, renamed.end) == (thought.number, thought.end)
    assert same is said, "what is worded alike is made once"


def test_the_terminal_event_is_there_with_the_usage_of_each_turn_and_without() -> None:
    made = EventJournal(max_lag_bytes=1000)
    per_turn = "usage-per-turn,open-responses"
    response = {"id": "resp_1", "usage": usage([TurnUsage(7, 0, 3, 1)])}
    plain = attach(made)
    readers = [JournalReader(made, lambda: None, lambda: None, wording=in_dialect(per_turn)) for _ in range(2)]
    made.extend([event(0)])
    made.extend([Event(EventType.COMPLETED, 1, {"response": response})])
    (first, last), *others = (reader.take() for reader in (plain, *readers))
    assert orjson.loads(last.json)["response"] == as_read(response, usage_per_turn=False) != response
    for same, with_lists in others:
        assert same is first
        assert orjson.loads(with_lists.json) == {**orjson.loads(last.json), "response": response}
    assert others[0][1].json is others[1][1].json, "made once for all who want it"


def test_readers_do_not_disturb_each_other() -> None:
    made = journal(0, 1)
    first, second = attach(made), attach(made)
    assert numbers(first) == [0, 1]
    made.extend([event(2)])
    assert numbers(second, 2) == [0, 1]
    assert numbers(first) == [2]
    assert numbers(second) == [2]


def test_what_all_have_read_is_forgotten_and_a_late_reader_starts_behind_it() -> None:
    made = journal(0, 1, 2)
    numbers(attach(made), 2)
    assert numbers(attach(made)) == [2]


def test_nothing_is_forgotten_before_the_first_reader_came() -> None:
    made = journal(*range(100))
    assert numbers(attach(made), 200) == list(range(100))


def test_nothing_follows_a_terminal_event() -> None:
    made = EventJournal(max_lag_bytes=100)
    made.extend([event(0, last=True)])
    assert made.closed
    with pytest.raises(RuntimeError, match="terminal"):
        made.extend([event(1)])


def test_readers_are_woken_on_news() -> None:
    made, woken = journal(), []
    JournalReader(made, lambda: woken.append("a"), lambda: None)
    JournalReader(made, lambda: woken.append("b"), lambda: None)
    made.extend([event(0)])
    assert woken == ["a", "b"]


def test_detaching_twice_is_not_an_error() -> None:
    made = journal()
    reader = attach(made)
    made.detach(reader)
    made.detach(reader)
    assert made.readers == 0


def test_a_reader_that_falls_behind_is_dropped_and_told_once() -> None:
    made, told = journal(max_lag_bytes=300), []
    slow = JournalReader(made, lambda: told.append("news"), lambda: told.append("dropped"))
    quick = attach(made)
    for number in range(10):
        made.extend([event(number, "x" * 50)])
        numbers(quick)
    assert told.count("dropped") == 1
    assert made.readers == 1
    with pytest.raises(ReaderTooSlow):
        slow.take()
    made.extend([event(10, last=True)])
    assert numbers(quick) == [10]


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


async def test_a_waiter_waits_for_news() -> None:
    waiter = Waiter()
    assert await waiter.wait(0.001) is False
    waiter()
    assert await waiter.wait() is True
    waiting = asyncio.create_task(waiter.wait())
    await asyncio.sleep(0)
    assert not waiting.done()
    waiter()
    assert await waiting is True


class AnyOrder(RuleBasedStateMachine):
    """Readers come, read and go in any order: each sees a run of events without a gap."""

    def __init__(self) -> None:
        super().__init__()
        self.journal = EventJournal(max_lag_bytes=10**9)
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


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(deadline=None, max_examples=30, stateful_step_count=30)


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
        made = journal(max_lag_bytes=1_000_000)
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
