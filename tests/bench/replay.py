"""The row about picking up a long stream: 10,000 kept events, as server-sent events, in this process."""

import asyncio
import time
from statistics import median

from responses_app.http import event_stream
from tests.bench.report import Result
from tests.bench.servers import Bench
from tests.runs.fakes import FakeEngine, Site

EVENTS = 10_000
ROUNDS = 7
SECONDS = EVENTS / 50_000  # the target: 50,000 events a second


def replay(bench: Bench) -> list[Result]:
    """Server work to replay a finished stream from its beginning."""
    seconds, size = asyncio.run(_replay(bench))
    return [
        Result(
            name="replay",
            what=f"replay of {EVENTS:,} events, seconds",
            measured=median(seconds),
            unit="s",
            target=SECONDS,
            details={"events/s": EVENTS / median(seconds), "MB": size / 1e6},
        )
    ]


async def _replay(bench: Bench) -> tuple[list[float], int]:
    words = ["<|channel|>final<|message|>", *[" word"] * EVENTS, "<|return|>"]
    site = Site(FakeEngine([words]), max_lag_bytes=1 << 30)
    reading = await site.begin(input="hi", transport="sse")
    while not reading.reader.ended:
        await asyncio.sleep(0)
        reading.take()
    reading.leave()
    seconds, size = [], 0
    for number in range(ROUNDS):
        bench.report.step(f"round {number + 1} of {ROUNDS}")
        began = time.process_time()
        reader = await site.responses.follow("default", reading.run.response_id)
        response = await event_stream(reader, ping_seconds=0)
        size = sum([len(chunk) async for chunk in response])
        seconds.append(time.process_time() - began)
    return seconds, size
