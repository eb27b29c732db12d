"""Rows about logs of what runs: what keeping them costs, and how soon another worker goes on."""

import asyncio
import json
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from statistics import median

from bench.client import post
from bench.report import Result
from bench.servers import OURS, Bench, BenchServer
from tests.kit.raw_streams import CUT, RawStream
from tests.kit.stored import stored

STREAMS = 50
RATE = 60  # tokens per second and stream
TOKENS = 600
ROUNDS = 5
COST_TARGET = 1.05
LEASE = 2.0
TAKEOVERS = 5
TAKEOVER_TARGET = 2.0  # seconds


def log(bench: Bench) -> Iterator[Result]:
    """What a token costs in the background, where its log is kept as it comes, over one in the foreground."""
    background, foreground = asyncio.run(_log(bench))
    yield Result(
        what=f"CPU a token, {STREAMS} background streams / foreground (no log while it runs)",
        measured=median(background) / median(foreground),
        target=COST_TARGET,
        details={"background µs": median(background), "foreground µs": median(foreground)},
    )


async def _log(bench: Bench) -> tuple[list[float], list[float]]:
    options = json.dumps({"tokens_per_second": RATE})
    server = bench.fresh_server(OURS, "log", engine="demo", engine_options=options, background_max_running=STREAMS)

    async def streams(_round: int, background: bool) -> None:
        await asyncio.gather(*(_stream(server, background=background) for _ in range(STREAMS)))

    with server:
        both = await bench.compared(server, streams, rounds=ROUNDS)
    background, foreground = ([cost / (STREAMS * TOKENS) * 1e6 for cost in costs] for costs in both)
    return background, foreground


async def _stream(server: BenchServer, *, background: bool) -> None:
    body = {"input": f"count to {TOKENS // 2}", "stream": True, "background": background}
    await post(server.port, "/v1/responses", json.dumps(body).encode())


def takeover(bench: Bench) -> Iterator[Result]:
    """How long a reader waits after the end of a dead worker's lease for the next event."""
    seconds = asyncio.run(_takeovers(bench))
    yield Result(
        what="a worker is killed: from the end of its lease to the first new event, SQLite, no Redis",
        measured=median(seconds),
        unit="s",
        target=TAKEOVER_TARGET,
        details={"slowest s": max(seconds), "kills": len(seconds)},
    )


async def _takeovers(bench: Bench) -> list[float]:
    options = json.dumps({"tokens_per_second": RATE})
    settings = {"engine": "demo", "engine_options": options, "worker_lease_seconds": LEASE}
    heir, victim = (bench.fresh_server(OURS, "takeover", **settings) for _ in range(2))
    victim.log = victim.folder / "victim.log"
    seconds = []
    with heir:
        for number in range(TAKEOVERS):
            bench.report.step(f"kill {number + 1} of {TAKEOVERS}")
            await asyncio.to_thread(victim.start)
            seconds.append(await _taken_over(heir, victim))
    return seconds


async def _taken_over(heir: BenchServer, victim: BenchServer) -> float:
    """Kill a worker in the middle of a response; return how long after its lease's end there was more of that."""
    stream = await RawStream.create(victim, input="count to 400", stream=True, background=True)
    events = await stream.take(60)
    response_id = events[0]["response"]["id"]
    owner = dict(stored(heir, "SELECT id, worker FROM responses_app_response"))[response_id]
    await asyncio.to_thread(victim.kill)
    with suppress(*CUT):
        while (event := await stream.next()) is not None:
            events.append(event)
    seen_at = dict(stored(heir, "SELECT id, seen_at FROM responses_app_worker"))[owner]
    follower = await RawStream.resume(heir, response_id, events[-1]["sequence_number"])
    await follower.take(1)
    now = time.time()
    follower.kill()
    return now - (_unix(seen_at) + LEASE)


def _unix(moment: object) -> float:
    """Return the seconds of a time as a database gives it, which is UTC."""
    read = moment if isinstance(moment, datetime) else datetime.fromisoformat(str(moment))
    return read.replace(tzinfo=UTC).timestamp()
