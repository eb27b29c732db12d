"""`RunLog` and `LiveLogs`: what readers hear when, and what is kept of what runs."""

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass, field

import pytest

from responses_app.kit.errors import StoreError
from responses_app.protocol.events.events import Event, EventType
from responses_app.protocol.response.input_codec import encode
from responses_app.protocol.response.steps import Ended, Enqueued, Input, RunStarted, Sampled, TurnBegan
from responses_app.resources.webhooks.messages import message
from responses_app.runs.log import run_log as logs
from responses_app.runs.log.run_log import LiveLogs, RunLog
from responses_app.stores.base import Appended, Claim, ClaimLost, LogAppend
from tests.kit.waiting import eventually


@dataclass
class Store:
    """Takes appends, one transaction an entry of `appended`; it can be away, or slow."""

    appended: list[list[LogAppend]] = field(default_factory=list)
    answer: Appended = field(default_factory=Appended)
    failures: int = 0
    go_on: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.go_on.set()

    async def append(self, appends: Collection[LogAppend]) -> Appended:
        self.appended.append(list(appends))
        await self.go_on.wait()
        if self.failures:
            self.failures -= 1
            raise StoreError("away")
        return self.answer


@dataclass
class Journal:
    """Notes the numbers of the events that readers hear."""

    heard: list[int]
    readers: int = 0
    closed: bool = False

    def extend(self, events: Sequence[Event]) -> None:
        self.heard += [event.sequence_number for event in events]


class House:
    """The live logs of a process, and what came of them."""

    def __init__(self) -> None:
        self.store = Store()
        self.lost: list[str] = []
        self.gone: list[str] = []
        self.told: list[set[str]] = []
        self.bell = asyncio.Event()
        self.bell.set()
        self.heard: dict[str, list[int]] = {}
        self.live = LiveLogs(
            self.store,  # type: ignore[arg-type]
            lose=self.lost.append,
            gone=self.gone.append,
            tell=self.tell,
        )

    async def tell(self, response_ids: Collection[str]) -> None:
        self.told.append(set(response_ids))
        await self.bell.wait()

    def log(self, response_id: str = "resp_1", *, only_kept: bool = True) -> RunLog:
        heard = self.heard.setdefault(response_id, [])

        journal = Journal(heard)
        return RunLog(response_id, Claim("a"), live=self.live, journal=journal, only_kept=only_kept)  # type: ignore[arg-type]

    @property
    def idle(self) -> bool:
        return self.live._keeping is None and self.live._timer is None


@pytest.fixture
async def house() -> AsyncIterator[House]:
    made = House()
    yield made
    await made.live.aclose()


@pytest.fixture
def log(house: House) -> RunLog:
    """The log of a response in the background."""
    return house.log()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is waited for but what a test itself waits for."""
    for name in ("BACKGROUND_SECONDS", "FOLLOWED_SECONDS", "RETRY_SECONDS"):
        monkeypatch.setattr(logs, name, 0.001)
    monkeypatch.setattr(logs, "INTEREST_SECONDS", 3600.0)  # on a busy machine ten seconds may be over at once


def event(number: int) -> Event:
    return Event(EventType.TEXT_DELTA, number, {"delta": "x"})


BEGUN: list[Input] = [Enqueued(), RunStarted()]


@pytest.mark.usefixtures("quick")
class TestReaders:
    async def test_of_a_background_response_only_its_beginning_is_heard_before_it_is_kept(
        self, house: House, log: RunLog
    ) -> None:
        house.store.go_on.clear()
        for number, given in enumerate([*BEGUN, Sampled([1]), Sampled([2])]):
            log.take(given, [event(number)])
        await eventually(lambda: bool(house.store.appended))
        assert house.heard["resp_1"] == [0, 1]
        log.take(Sampled([3]), [event(4)])
        house.store.go_on.set()
        await eventually(lambda: house.heard["resp_1"] == [0, 1, 2, 3, 4])
        kept = b"".join(append.data for [append] in house.store.appended)
        assert kept == encode([*BEGUN, Sampled([1]), Sampled([2]), Sampled([3])])

    async def test_webhooks_are_told_with_each_append_until_one_is_kept(self, house: House, log: RunLog) -> None:
        told = message("response.completed", "resp_1")
        house.store.failures = 1
        log.tell("p", told)
        await eventually(lambda: len(house.store.appended) == 2)
        log.take(TurnBegan(9), [])
        await eventually(lambda: len(house.store.appended) == 3)
        assert [append.messages for [append] in house.store.appended] == [(told,), (told,), ()]

    async def test_the_end_tells_what_was_held_back_and_nothing_is_held_back_then(
        self, house: House, log: RunLog
    ) -> None:
        for number in range(3):
            log.take(Sampled([number]), [event(number)])
        log.end()
        assert log.closed
        assert house.heard["resp_1"] == [0, 1, 2]
        log.take(Ended(1), [event(3)])
        assert house.heard["resp_1"] == [0, 1, 2, 3]
        await eventually(lambda: house.idle)
        assert house.store.appended == [], "its end was kept with the whole log"


class TestBytes:
    async def test_what_is_kept_is_not_sent_again(self) -> None:
        log = House().log(only_kept=False)
        log.take(Sampled([1]), [])
        first = log.news()
        assert (first.position, first.data, first.claim) == (0, encode([Sampled([1])]), Claim("a"))
        log.take(Sampled([2]), [])
        assert log.news().data == encode([Sampled([1]), Sampled([2])]), "nothing of it is kept for sure"
        log.has_kept(first)
        assert (log.news().position, log.news().data) == (len(first.data), encode([Sampled([2])]))
        log.has_kept(log.news())
        assert log.news().data == b""
        log.has_kept(first)
        assert log.news().data == b"", "an older answer that comes late takes nothing back"

    async def test_only_what_was_kept_is_told(self, house: House, log: RunLog) -> None:
        house.store.go_on.clear()
        log.take(Sampled([1]), [event(0)])
        first = log.news()
        log.take(Sampled([2]), [event(1)])
        log.has_kept(first)
        assert house.heard["resp_1"] == [0]

    async def test_it_goes_on_behind_what_another_worker_kept(self) -> None:
        log = House().log(only_kept=False)
        before = encode([RunStarted(), TurnBegan(9)])
        log.go_on_behind(before)
        assert (log.news().position, log.news().data) == (len(before), b"")
        log.take(Sampled([1]), [])
        assert log.news().data == encode([Sampled([1])])
        assert log.whole(Ended(1)) == encode([RunStarted(), TurnBegan(9), Sampled([1]), Ended(1)])
        assert log.news().data == encode([Sampled([1])]), "a last input that is asked for is not taken"


class TestFlush:
    async def test_where_another_worker_has_it_that_is_said_and_nothing_is_told(
        self, house: House, log: RunLog
    ) -> None:
        house.store.answer = Appended(lost=frozenset(["resp_1"]))
        log.take(Sampled([1]), [event(0)])
        with pytest.raises(ClaimLost):
            await log.flush()
        assert (house.lost, house.heard["resp_1"]) == (["resp_1"], [])
        await house.live.aclose()


@pytest.mark.usefixtures("quick")
class TestKeeping:
    async def test_all_that_has_news_is_kept_in_one_transaction(self, house: House) -> None:
        for name in ("resp_1", "resp_2", "resp_3"):
            house.log(name).take(Sampled([1]), [event(0)])
        await eventually(lambda: house.idle)
        assert [[append.response_id for append in each] for each in house.store.appended] == [
            ["resp_1", "resp_2", "resp_3"]
        ]
        assert set(map(tuple, house.heard.values())) == {(0,)}

    async def test_what_is_lost_or_gone_is_said_and_told_to_nobody(self, house: House) -> None:
        house.store.answer = Appended(lost=frozenset(["resp_1"]), gone=frozenset(["resp_2"]))
        for name in ("resp_1", "resp_2", "resp_3"):
            house.log(name).take(Sampled([1]), [event(0)])
        await eventually(lambda: house.idle)
        assert (house.lost, house.gone) == (["resp_1"], ["resp_2"])
        assert house.heard == {"resp_1": [], "resp_2": [], "resp_3": [0]}

    async def test_a_store_that_is_away_is_tried_again_and_the_log_says_it_once(
        self, house: House, log: RunLog, caplog: pytest.LogCaptureFixture
    ) -> None:
        for outage in (1, 2):
            house.store.failures = 3
            log.take(Sampled([outage]), [event(outage)])
            await eventually(lambda: house.idle)
            assert house.heard["resp_1"][-1] == outage
            assert caplog.text.count("cannot be kept now") == outage

    async def test_meanwhile_it_is_left_in_peace_and_nobody_is_told(
        self, house: House, log: RunLog, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(logs, "RETRY_SECONDS", 60.0)
        house.store.failures = 1
        log.follow()
        log.take(Sampled([1]), [event(0)])
        await eventually(lambda: bool(house.store.appended))
        await asyncio.sleep(0.02)
        assert len(house.store.appended) == 1
        assert house.told == []

    @pytest.mark.parametrize("failures", [0, 1])
    async def test_what_ended_while_it_was_being_kept_tells_nothing_twice_and_is_not_tried_again(
        self, house: House, log: RunLog, failures: int
    ) -> None:
        house.store.failures = failures
        house.store.go_on.clear()
        log.take(Sampled([1]), [event(0)])
        await eventually(lambda: bool(house.store.appended))
        log.end()
        house.store.go_on.set()
        await eventually(lambda: house.idle)
        assert len(house.store.appended) == 1
        assert house.heard["resp_1"] == [0]

    async def test_closing_leaves_no_task(self, house: House) -> None:
        await house.live.aclose()
        house.store.go_on.clear()
        house.bell.clear()
        house.log().take(Sampled([1]), [])
        house.live.ring("resp_2")
        await eventually(lambda: bool(house.store.appended))
        await house.live.aclose()
        assert asyncio.all_tasks() == {asyncio.current_task()}


class TestWhoWaits:
    """`keep` is answered by an append that begins behind the question, and at once."""

    async def test_what_is_kept_already_is_asked_for_again_since_it_may_be_anothers_by_now(self, house: House) -> None:
        log = house.log(only_kept=False)
        log.take(Sampled([1]), [])
        await log.keep()
        await log.keep()
        assert [[each.data for each in appends] for appends in house.store.appended] == [
            [encode([Sampled([1])])],
            [b""],
        ]
        house.store.answer = Appended(lost=frozenset(["resp_1"]))
        with pytest.raises(ClaimLost):
            await log.keep()

    async def test_an_append_that_had_begun_before_answers_nobody_and_the_next_one_begins_at_once(
        self, house: House, log: RunLog, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("BACKGROUND_SECONDS", "FOLLOWED_SECONDS"):
            monkeypatch.setattr(logs, name, 60.0)
        house.store.go_on.clear()
        log.take(Sampled([1]), [])
        await eventually(lambda: bool(house.store.appended))
        keeping = asyncio.create_task(log.keep())
        await asyncio.sleep(0)
        house.store.go_on.set()
        await eventually(lambda: keeping.done())
        assert len(house.store.appended) == 2

    async def test_while_the_store_is_away_it_waits_and_then_says_that_it_may_work_later(
        self, house: House, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(logs, "KEEP_SECONDS", 60.0)
        monkeypatch.setattr(logs, "RETRY_SECONDS", 0.001)
        house.store.failures = 3
        log = house.log(only_kept=False)
        await log.keep()
        monkeypatch.setattr(logs, "KEEP_SECONDS", 0.05)
        house.store.failures = 10**6
        with pytest.raises(StoreError) as away:
            await log.keep()
        assert away.value.passing
        await house.live.aclose()


@pytest.mark.usefixtures("quick")
class TestFollowers:
    async def test_while_somebody_follows_a_foreground_response_it_is_kept_and_the_bell_is_rung(
        self, house: House
    ) -> None:
        log = house.log(only_kept=False)
        log.take(Sampled([1]), [event(0)])
        assert not log.is_followed
        log.follow()
        assert log.is_followed
        await eventually(lambda: house.idle)
        assert [[append.data for append in each] for each in house.store.appended] == [[encode([Sampled([1])])]]
        assert house.told == [{"resp_1"}]
        log.take(Sampled([2]), [event(1)])
        assert house.heard["resp_1"] == [0, 1], "its own readers hear it at once"
        await eventually(lambda: house.idle)
        assert house.store.appended[-1][0].data == encode([Sampled([2])])
        assert house.told == [{"resp_1"}, {"resp_1"}]

    async def test_a_follower_that_asks_no_more_is_forgotten(
        self, house: House, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(logs, "INTEREST_SECONDS", 0.0)
        log = house.log(only_kept=False)
        log.follow()
        await eventually(lambda: house.idle)
        log.take(Sampled([1]), [event(0)])
        assert not log.is_followed
        assert house.idle
        assert house.told == []

    async def test_nobody_is_told_of_what_nobody_follows(self, house: House) -> None:
        house.log().take(Sampled([1]), [event(0)])
        await eventually(lambda: house.idle)
        assert house.told == []

    async def test_the_end_is_told_to_followers_and_keeps_nothing(self) -> None:
        for followed in (True, False):
            house = House()
            log = house.log(only_kept=False)
            if followed:
                log.follow()
                await eventually(lambda: house.idle)  # noqa: B023
                house.told.clear()
            log.take(Sampled([1]), [event(0)])
            log.end()
            log.take(Ended(1), [event(1)])
            log.follow()
            await eventually(lambda: house.idle)  # noqa: B023
            assert house.told == ([{"resp_1"}] if followed else [])
            assert [append for each in house.store.appended for append in each] == []

    async def test_what_comes_while_the_bell_is_rung_is_told_the_next_time(self, house: House) -> None:
        house.bell.clear()
        house.live.ring("resp_1")
        await eventually(lambda: house.told == [{"resp_1"}])
        house.live.ring("resp_2")
        house.live.ring("resp_3")
        await asyncio.sleep(0.02)
        assert house.told == [{"resp_1"}]
        house.bell.set()
        await eventually(lambda: house.told == [{"resp_1"}, {"resp_2", "resp_3"}])
        await eventually(lambda: house.idle)

    @pytest.mark.parametrize("followed", [True, False])
    async def test_what_is_followed_is_kept_more_often(
        self, house: House, log: RunLog, monkeypatch: pytest.MonkeyPatch, followed: bool
    ) -> None:
        monkeypatch.setattr(logs, "FOLLOWED_SECONDS" if not followed else "BACKGROUND_SECONDS", 60.0)
        if followed:
            log.follow()
        for number in range(3):
            log.take(Sampled([number]), [event(number)])
            await eventually(lambda: len(house.heard["resp_1"]) == number + 1)  # noqa: B023
