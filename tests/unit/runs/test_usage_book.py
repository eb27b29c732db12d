"""Usage that is not kept with a response: what becomes of it while the database is away, and at a stop."""

import asyncio
import logging
from collections.abc import Sequence

import pytest

from responses_app.kit.errors import StoreError
from responses_app.observing.metrics import Metrics
from responses_app.resources.usage.fields import UsageEntry, UsedTokens
from responses_app.runs.driving import unsaved as book_module
from responses_app.runs.driving.unsaved import UsageBook
from responses_app.runs.plan.plan import Origin
from tests.kit.laws import counting_ids
from tests.unit.runs.readers import away

USED = UsedTokens(input=3, cached=1, output=2)
ORIGIN = Origin(transport="batch", project="p", key_id="key_1")


class Faulty:
    """Keeps usage, and fails as often as it is told to."""

    def __init__(self, *failures: StoreError) -> None:
        self.entries: list[UsageEntry] = []
        self.failures = list(failures)
        self.has_kept, self.has_failed = asyncio.Event(), asyncio.Event()

    async def keep(self, entries: Sequence[UsageEntry]) -> None:
        if self.failures:
            self.has_failed.set()
            raise self.failures.pop(0)
        self.entries += entries
        self.has_kept.set()


def book_of(store: Faulty) -> UsageBook:
    """Return a book at second 7."""
    return UsageBook(store.keep, new_id=counting_ids(), now=lambda: 7.5, metrics=Metrics())


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(book_module, "GATHER_SECONDS", 0.0)
    monkeypatch.setattr(book_module, "AGAIN_SECONDS", 0.0)


async def test_what_is_noted_is_kept_in_order() -> None:
    store = Faulty()
    book = book_of(store)
    book.start()
    for number in range(1200):
        book.note(ORIGIN, "m", "completions", USED, of=f"cmpl-{number}")
    await store.has_kept.wait()
    await book.aclose()
    assert [entry.id for entry in store.entries] == [f"cmpl-{number}" for number in range(1200)]
    first = store.entries[0]
    assert (first.at, first.project, first.key_id, first.model, first.source) == (7, "p", "key_1", "m", "completions")
    assert (first.batch, first.tokens) == (True, USED)


async def test_what_made_nothing_with_an_id_gets_one_of_its_own() -> None:
    store = Faulty()
    book = book_of(store)
    for _ in range(3):
        book.note(Origin(transport="json", project="p"), "m", "embeddings", USED)
    await book.aclose()
    assert len({entry.id for entry in store.entries}) == 3
    assert not any(entry.batch for entry in store.entries)


async def test_a_database_that_is_away_is_asked_again() -> None:
    store = Faulty(away(), away(), away())
    book = book_of(store)
    book.start()
    book.note(ORIGIN, "m", "decisions", USED)
    await store.has_kept.wait()
    await book.aclose()
    assert len(store.entries) == 1


async def test_what_does_not_fit_is_counted_as_lost(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(book_module, "MAX_WAITING", 5)
    store = Faulty()
    book = book_of(store)
    for _ in range(8):
        book.note(ORIGIN, "m", "decisions", USED)
    with caplog.at_level(logging.ERROR):
        await book.aclose()
    assert len(store.entries) == 5
    assert "what 3 requests used could not be kept" in caplog.text


async def test_a_stop_does_not_wait_for_a_database_that_is_away(caplog: pytest.LogCaptureFixture) -> None:
    store = Faulty(away())
    book = book_of(store)
    book.note(ORIGIN, "m", "decisions", USED)
    await book.aclose()
    assert "what 1 requests used could not be kept" in caplog.text
    assert not store.entries


async def test_what_is_refused_for_good_does_not_stand_before_all_others(caplog: pytest.LogCaptureFixture) -> None:
    store = Faulty(StoreError("a value that cannot be kept"))
    book = book_of(store)
    book.start()
    book.note(ORIGIN, "m", "decisions", USED)
    await store.has_failed.wait()
    book.note(ORIGIN, "m", "completions", USED)
    await store.has_kept.wait()
    await book.aclose()
    assert [entry.source for entry in store.entries] == ["completions"]
    assert "refused" in caplog.text
