"""`RetentionWatch` and `Expiry`: what a process knows of the retention of projects, and what it removes by that."""

import asyncio
import logging
from collections.abc import Collection, Mapping

import pytest

from responses_app.kit.errors import NotMigrated, StoreError
from responses_app.kit.retention import FOR_EVER, NEVER, Retentions
from responses_app.runs import retention
from responses_app.runs.retention import Expiry, RetentionWatch
from tests.kit.waiting import eventually

NOW = 1_000_000.0


class Database:
    """Says what it is told to say."""

    def __init__(self, **hours: int) -> None:
        self.hours = hours
        self.problem: Exception | None = None
        self.answers = asyncio.Event()  # while it is not set, it hangs
        self.answers.set()
        self.asked = 0

    async def read(self) -> Mapping[str, int]:
        self.asked += 1
        await self.answers.wait()
        if self.problem is not None:
            raise self.problem
        return dict(self.hours)


def watch_of(database: Database) -> RetentionWatch:
    return RetentionWatch(Retentions(), database.read)


async def test_a_change_is_known_without_being_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "REFRESH_SECONDS", 0.01)
    database = Database(quiet=NEVER)
    watch = watch_of(database)
    await watch.start()
    assert watch.table.keeps_nothing("quiet")
    database.hours = {"loud": NEVER}
    await eventually(lambda: watch.table.keeps_nothing("loud"))
    assert not watch.table.keeps_nothing("quiet")
    await watch.aclose()


async def test_who_stood_still_reads_it_before_anything_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "MAX_AGE_SECONDS", -1.0)  # whatever is known is too old
    database = Database()
    watch = watch_of(database)
    assert not (await watch.current()).keeps_nothing("team")
    database.hours["team"] = NEVER
    assert (await watch.current()).keeps_nothing("team")
    assert database.asked == 2


async def test_many_who_want_it_at_once_cost_one_question() -> None:
    database = Database(team=NEVER)
    watch = watch_of(database)
    tables = await asyncio.gather(*(watch.current() for _ in range(50)))
    assert all(table.keeps_nothing("team") for table in tables)
    assert database.asked == 1


async def test_nobody_guesses_before_the_database_was_heard() -> None:
    database = Database(team=NEVER)
    database.problem = StoreError("it is away")
    watch = watch_of(database)
    with pytest.raises(StoreError, match="not known yet which projects keep nothing"):
        await watch.current()
    database.problem = None
    assert (await watch.current()).keeps_nothing("team")


async def test_a_slow_first_answer_holds_up_no_start_and_refuses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "ANSWER_SECONDS", 0.01)
    database = Database(team=NEVER)
    database.answers.clear()
    watch = watch_of(database)
    await watch.start()
    asked = asyncio.create_task(watch.current())
    await asyncio.sleep(0)
    assert not asked.done()
    database.answers.set()
    assert (await asked).keeps_nothing("team")
    assert database.asked == 1
    await watch.aclose()


async def test_a_database_that_hangs_later_counts_as_away(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(retention, "ANSWER_SECONDS", 0.01)
    monkeypatch.setattr(retention, "MAX_AGE_SECONDS", -1.0)
    database = Database(team=NEVER)
    watch = watch_of(database)
    await watch.current()
    database.answers.clear()
    assert (await watch.current()).keeps_nothing("team")
    assert caplog.messages == ["the retention of projects cannot be read (no answer in time)"]


async def test_while_the_database_is_away_what_is_known_holds(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(retention, "MAX_AGE_SECONDS", -1.0)
    database = Database(team=NEVER)
    watch = watch_of(database)
    await watch.current()
    database.problem = StoreError("it is away")
    for _ in range(3):
        assert (await watch.current()).keeps_nothing("team")
    assert [record.levelno for record in caplog.records] == [logging.WARNING], "it is said once"


async def test_a_database_of_before_has_no_retention() -> None:
    database = Database()
    database.problem = NotMigrated()
    assert not (await watch_of(database).current()).bounded


class Removed:
    """What an `Expiry` has removed."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, float, bool]] = []
        self.told: list[str] = []
        self.ended: list[tuple[str, float]] = []

    async def expire(self, project: str, oldest: float, *, nothing: bool) -> Collection[str]:
        self.calls.append((project, oldest, nothing))
        return [f"resp_of_{project}"] if nothing else []

    async def forget(self, ids: Collection[str]) -> None:
        self.told += ids

    async def end(self, project: str, oldest: float) -> None:
        self.ended.append((project, oldest))


def expiry_of(table: Retentions, removed: Removed) -> Expiry:
    return Expiry(table, expire=removed.expire, forget=removed.forget, expire_tools=removed.end, now=lambda: NOW)


async def test_each_project_has_its_own_time() -> None:
    table, removed = Retentions(), Removed()
    table.learn({"quiet": NEVER, "day": 24, "long": FOR_EVER})
    await expiry_of(table, removed).run()
    assert removed.calls == [("quiet", NOW, True), ("day", NOW - 86_400, False)]
    assert removed.told == ["resp_of_quiet"], "those who run them have to stop"
    assert removed.ended == [("quiet", NOW), ("day", NOW - 86_400)]


async def test_a_change_is_acted_on_at_once_and_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "REFRESH_SECONDS", 0.01)
    monkeypatch.setattr(retention, "AGAIN_SECONDS", 0.02)
    table, removed = Retentions(), Removed()
    expiry = expiry_of(table, removed)
    expiry.start()
    table.learn({"quiet": NEVER})
    await eventually(lambda: len(removed.calls) == 2)  # what others accepted meanwhile, too
    await expiry.aclose()


async def test_containers_of_a_response_are_never_past_their_time() -> None:
    table = Retentions()
    table.learn({"quiet": NEVER, "day": 24})
    assert not table.past("quiet", NOW, now=lambda: NOW)
    assert table.past("day", NOW - 86_400, now=lambda: NOW)
    assert not table.past("day", NOW - 86_399, now=lambda: NOW)
    assert not table.past("other", 0.0, now=lambda: NOW)
