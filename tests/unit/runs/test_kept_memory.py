"""What is kept in memory: it is counted as what it takes, and what is over is gone without the collector."""

import asyncio
import gc
import os
import tracemalloc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from engine.formats.base import MessageKind, RenderedMessage, as_tokens
from responses_app.protocol.items.items import Exact
from responses_app.protocol.prompt.replaying import KnownTurn
from responses_app.protocol.sealing import Sealer
from responses_app.runs.known_turns import KnownTurns
from responses_app.runs.log.journal import EventJournal
from responses_app.runs.plan.reading import FileReading
from responses_app.runs.plan.settings import RunSettings
from responses_app.tools.browser.fetching import PageCache, WebPage
from tests.kit.clock import Clock
from tests.kit.fakes import FakeEngine, Site
from tests.kit.waiting import eventually
from tests.unit.runs.test_journal import event

COUNT = 300
Counted = Callable[[], int]  # what a cache says that it takes, in bytes


def turns(tokens: int) -> Counted:
    """Keep turns of so many tokens, in two messages."""
    known = KnownTurns(RunSettings(), sealer=Sealer(["a secret"], random_bytes=os.urandom), clock=Clock())
    for number in range(COUNT):
        messages = [RenderedMessage(MessageKind.FINAL, as_tokens(range(tokens // 2))) for _ in range(2)]
        exact = Exact("harmony", tuple(messages))
        known.keep("default", os.urandom(16), KnownTurn(os.urandom(16), os.urandom(16), exact, 1000 + number))
    return lambda: known.bytes


def events(*, packed: bool) -> Counted:
    """Keep events of streams that nobody reads, as they are or packed."""
    journals = [EventJournal(max_lag_bytes=10**9, kept=True) for _ in range(3)]
    for journal in journals:
        for number in range(1000, 4000):
            journal.extend([event(number, f"word {number}")])
        if packed:
            journal.pack()
    return lambda: sum(journal.kept_bytes for journal in journals)


def pages(character: str) -> Counted:
    """Keep pages of web sites in some script."""
    cache = PageCache(now=Clock())
    for number in range(COUNT):
        lines = tuple(f"{line} {character * 60}" for line in range(20))
        cache.put("default", f"https://example.com/{number}", WebPage(url="", title="", lines=lines))
    return lambda: cache.bytes


CACHES: dict[str, Callable[[], Counted]] = {
    "turns of no token": lambda: turns(0),
    "turns of 20 tokens": lambda: turns(20),
    "turns of 2,000 tokens": lambda: turns(2000),
    "events": lambda: events(packed=False),
    "packed events": lambda: events(packed=True),
    "pages": lambda: pages("x"),
    "pages in Cyrillic": lambda: pages("ж"),
    "pages of emoji": lambda: pages("🙂"),
}


@contextmanager
def traced() -> Iterator[Callable[[], int]]:
    """Have what is allocated counted, in bytes."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        yield lambda: tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", CACHES)
def test_the_bytes_that_are_counted_are_those_that_are_taken(name: str) -> None:
    CACHES[name]()  # what is made once is not counted
    with traced() as taken:
        counted = CACHES[name]()
        assert 0.7 < taken() / counted() < 1.3  # sizes of objects differ between versions of Python


async def test_documents_are_bounded_by_the_memory_of_their_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("responses_app.runs.plan.reading.MAX_REMEMBERED", 100_000)

    async def read(name: str, content: bytes) -> str:
        return "🙂" * 1000  # four bytes each

    reading = FileReading(None, read)  # type: ignore[arg-type]
    for number in range(100):
        await reading._document("default", "a.pdf", b"%d" % number)
    assert len(reading._texts) == 24


async def test_a_stream_that_is_kept_counts_what_is_left_of_its_run() -> None:
    words = [f" word{number % 50}" for number in range(300)]
    site = Site(FakeEngine([["<|channel|>final<|message|>", *words, "<|return|>"]] * 30))
    with traced() as taken:
        for _ in range(30):
            reading = await site.begin(input="hi", transport="sse")
            await reading.to_the_end()
            reading.leave()
        del reading
        await eventually(lambda: len(site.registry) == 0)
        site.registry.resumable.sweep()  # notes their end
        site.registry.resumable.sweep()
        gc.collect()
        counted, before = site.registry.resumable.kept_bytes, taken()
        site.registry.resumable.close()
        gc.collect()
        assert 0.7 < (before - taken()) / counted < 1.3


@pytest.mark.parametrize("fields", [{"transport": "json"}, {"transport": "sse", "store": False}])
async def test_a_run_that_is_over_is_gone_without_the_collector(fields: dict[str, object]) -> None:
    site = Site()
    gc.collect()
    gc.disable()
    try:
        reading = await site.begin(input="hi", **fields)  # type: ignore[arg-type]
        run = weakref.ref(reading.run)
        await reading.to_the_end()
        reading.leave()
        del reading
        await eventually(lambda: run() is None)
    finally:
        gc.enable()


def test_turns_past_their_time_go_where_nothing_follows() -> None:
    clock = Clock()
    known = KnownTurns(
        RunSettings(responses_session_ttl=10), sealer=Sealer(["a secret"], random_bytes=os.urandom), clock=clock
    )
    known.keep("default", b"key", KnownTurn(b"", b"", Exact("harmony", ()), 0))
    asyncio.run(known.purge())
    assert len(known) == 1
    clock.now += 10.0
    asyncio.run(known.purge())
    assert (len(known), known.bytes) == (0, 0)
