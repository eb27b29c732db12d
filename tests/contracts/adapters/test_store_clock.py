"""The time of the store: what it follows, and what a worker with a wrong clock makes of others' responses."""

import time
from dataclasses import replace

import pytest

from responses_app.stores.base import RetentionSettings, WorkerState
from responses_app.stores.clock import StoreClock, own_clock
from tests.contracts.store import Turn, exchange
from tests.contracts.store_life import OpenStore

TTL = 300.0


class TestStoreClock:
    def test_it_goes_by_this_machine_until_the_store_was_heard(self) -> None:
        assert abs(StoreClock()() - time.time()) < 60

    def test_then_it_goes_by_the_store(self) -> None:
        clock, now = StoreClock(), own_clock()
        clock.heard(1_000_000.0, asked=now, answered=now)
        assert 1_000_000.0 <= clock() < 1_000_060.0

    @pytest.mark.parametrize(
        ("told", "asked", "answered", "expected"),
        [
            (1000.0, 0.0, 0.5, 1000.0),  # within what a slow answer may mean
            (1000.0, -10.0, 0.0, 1000.0),  # so is one of a database that hung for 10 s
            (1600.0, 0.0, 0.0, 1600.0),  # it was set
            (1003.0, 0.0, 2.0, 1001.0),  # it is ahead by 1 s at the least
            (997.0, -2.0, 0.0, 999.0),
        ],
    )
    def test_an_answer_bounds_it(self, told: float, asked: float, answered: float, expected: float) -> None:
        clock, now = StoreClock(), own_clock()
        clock.heard(1000.0, asked=now, answered=now)
        clock.heard(told, asked=now + asked, answered=now + answered)
        assert expected <= clock() < expected + 0.5


class TestOnPostgres:
    @pytest.fixture
    def url(self, postgres_url: str) -> str:
        return postgres_url

    @pytest.mark.parametrize("ahead", [600.0, -600.0])
    async def test_a_worker_with_a_wrong_clock(
        self, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch, ahead: float
    ) -> None:
        """Of another worker's response it knows how old it is, and it dates its own as the others do."""
        right, turn = time.time, Turn()
        monkeypatch.setattr(time, "time", lambda: right() + ahead)
        clock = StoreClock()
        store = await open_store(settings=RetentionSettings(responses_store_ttl=TTL), clock=clock)
        await store.beat(WorkerState(id="worker_1", started_at=right(), connections=0, in_flight=0))
        stored = turn.saying(*exchange(1))
        await store.save(replace(stored, response={**stored.response, "created_at": int(right())}))
        assert await store.response(turn.project, turn.response_id) is not None
        await store.purge()
        assert await store.knows(turn.project, turn.response_id)
        assert abs(clock() - right()) < TTL / 2
        old = Turn(project=turn.project)
        stored = old.saying(*exchange(1))
        await store.save(replace(stored, response={**stored.response, "created_at": int(right() - TTL - 60)}))
        assert await store.response(old.project, old.response_id) is None
