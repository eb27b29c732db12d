"""The rows about picking up a long stream: 10,000 events, as server-sent events, in this process."""

import asyncio
import time
from collections.abc import Iterator
from statistics import median

import orjson

from bench.loads import database_of
from bench.report import Result, beside
from bench.servers import Bench
from responses_app.api.responses import event_stream
from tests.kit.fakes import FakeEngine, Site, run_settings

EVENTS = 10_000
ROUNDS = 7
SECONDS = EVENTS / 50_000  # the target: 50,000 events a second
COLD_RATIO = 5.0
WORDS = ["<|channel|>final<|message|>", *[" word"] * EVENTS, "<|return|>"]


def replay(bench: Bench) -> Iterator[Result]:
    """Server work to replay a finished stream from its beginning."""
    seconds, size = asyncio.run(_replay(bench))
    yield Result(
        what=f"replay of {EVENTS:,} events, seconds",
        measured=median(seconds),
        unit="s",
        target=SECONDS,
        details={"events/s": EVENTS / median(seconds), "MB": size / 1e6},
    )


async def _replay(bench: Bench) -> tuple[list[float], int]:
    site = Site(FakeEngine([WORDS]), settings=run_settings(stream_max_lag_bytes=1 << 30))
    reading = await site.begin(input="hi", transport="sse")
    while not reading.reader.ended:
        await asyncio.sleep(0)
        reading.take()
    reading.leave()
    seconds, size = [], 0
    for _ in bench.report.rounds(ROUNDS):
        began = time.process_time()
        reader = await site.responses.follow("default", reading.run.response_id)
        response = await event_stream(reader, ping_seconds=0)
        size = sum([len(chunk) async for chunk in response])
        seconds.append(time.process_time() - began)
    return seconds, size


def cold(bench: Bench) -> Iterator[Result]:
    """Server work to make a finished stream again from its log, and to replay it: no worker has it in memory."""
    with database_of(bench, "SQLite") as alias:
        costs, written = asyncio.run(_cold(bench, alias))
    yield beside(
        f"replay of {EVENTS:,} events from the log, cold, CPU per event",
        costs,
        yardstick="orjson reads and writes them",
        its=written,
        unit="µs",
        target=COLD_RATIO,
        details={"events/s": 1e6 / median(costs)},
    )


async def _cold(bench: Bench, alias: str) -> tuple[list[float], list[float]]:
    """Return µs an event of each round, and what orjson alone takes to read and write the same ones."""
    from responses_app.stores.database.responses.store import DatabaseResponseStore

    store = DatabaseResponseStore(using=alias)
    await store.start()
    reading = await Site(FakeEngine([WORDS]), store=store, settings=run_settings(stream_max_lag_bytes=1 << 30)).begin(
        input="hi", transport="sse"
    )
    await reading.to_the_end()
    reading.leave()
    costs, written = [], []
    for _ in bench.report.rounds(ROUNDS):
        other = Site(store=store)
        began = time.process_time()
        reader = await other.responses.follow("default", reading.run.response_id)
        response = await event_stream(reader, ping_seconds=0)
        parts = [part async for part in response]
        costs.append((time.process_time() - began) / EVENTS * 1e6)
        assert parts[-1] == b"data: [DONE]\n\n"
        lines = [line[6:] for line in b"".join(parts).split(b"\n") if line.startswith(b"data: {")]
        began = time.process_time()
        for line in lines:
            orjson.dumps(orjson.loads(line))
        written.append((time.process_time() - began) / EVENTS * 1e6)
    await store.aclose()
    return costs, written
