"""Workers are killed at any moment under background responses: others go on with them, and readers see one stream.

Only this finds what is lost between two writes of a worker that dies there, and the word of one that was taken over
and does not know it. Two workers with PostgreSQL and Redis, on SQLite without, and with a Redis that is away.
`TAKEOVER_KILLS` says how often one of them is killed, under `RUNNING` responses at different points of their streams.
"""

import asyncio
import os
import random
import signal
from pathlib import Path

import pytest

from tests.kit.background import begin
from tests.kit.clients import http_client
from tests.kit.databases import postgres_url
from tests.kit.pairs import Reader, epoch_of, hold_to_the_laws, two_workers
from tests.kit.raw_streams import RawStream
from tests.kit.redis_server import RedisServer
from tests.kit.server import manage
from tests.kit.stored import stop_beside_its_writes, stored
from tests.kit.waiting import eventually

KILLS = int(os.environ.get("TAKEOVER_KILLS", "2"))
RUNNING = 6  # responses at once


@pytest.mark.parametrize(
    "bell", [pytest.param("with Redis", marks=pytest.mark.representative), "without Redis", "Redis is away"]
)
async def test_killed_at_any_moment_they_are_gone_on_with(folder: Path, redis: RedisServer, bell: str) -> None:
    settings = {} if bell == "without Redis" else {"redis_url": redis.url}
    if bell == "with Redis":
        settings |= {"database_url": postgres_url(folder, manage)}
    chance = random.Random(f"{bell} {KILLS}")
    async with two_workers(folder, delay=0.008, **settings) as pair:
        readers: list[Reader] = []
        for number in range(RUNNING):
            async with http_client(pair.workers[number % 2]) as http:
                response = await begin(http, f"{number} [held]")  # else they are one request to `suspects`
            readers.append(Reader(pair, response["id"], chance=chance))
        reading = [asyncio.create_task(reader.read()) for reader in readers]
        if bell == "Redis is away":
            await asyncio.to_thread(redis.pause)
        try:
            for _ in range(KILLS):
                await asyncio.sleep(chance.uniform(0.05, 0.6))
                victim = chance.choice(pair.workers)
                await asyncio.to_thread(pair.kill, victim)
                await asyncio.to_thread(pair.start, victim)
            pair.let_go_on()
            async with asyncio.timeout(120):
                await asyncio.gather(*reading)
        finally:
            if bell == "Redis is away":
                redis.resume()
        # A machine that is slow enough has one on trial when the next kill comes.
        await hold_to_the_laws(pair, readers, condemned=KILLS - 1)
        epochs = {row[0]: row[1] for row in stored(pair.workers[0], "SELECT id, epoch FROM responses_app_response")}
        assert max(epochs.values()) > 1, "something was taken over"


async def test_a_worker_that_was_stopped_beyond_its_lease_writes_nothing(folder: Path) -> None:
    async with two_workers(folder, delay=0.01) as pair:
        sleeper, heir = pair.workers
        async with http_client(sleeper) as http:
            readers = [Reader(pair, (await begin(http, "[held]"))["id"], chance=random.Random(2)) for _ in range(4)]
        pair.alive.remove(sleeper)
        reading = [asyncio.create_task(reader.read()) for reader in readers]
        own = [await RawStream.resume(sleeper, reader.response_id) for reader in readers]
        seen = [await stream.take(20) for stream in own]
        assert sleeper.process is not None
        await asyncio.to_thread(stop_beside_its_writes, sleeper)
        ids = [reader.response_id for reader in readers]
        try:
            await eventually(lambda: {epoch_of(heir, each) for each in ids} == {2})
            await eventually(lambda: all(len(reader.events) > 100 for reader in readers))
        finally:
            os.kill(sleeper.process.pid, signal.SIGCONT)
        for stream, events, reader in zip(own, seen, readers, strict=True):
            events += await stream.rest_until_cut()  # it has no end here, so its client comes back
            shared = min(len(events), len(reader.events))
            assert events[:shared] == reader.events[:shared]
        pair.let_go_on()
        async with asyncio.timeout(60):
            await asyncio.gather(*reading)
        await hold_to_the_laws(pair, readers)
        assert {epoch_of(heir, each) for each in ids} == {2}
        pair.alive.append(sleeper)
