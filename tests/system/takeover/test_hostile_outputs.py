"""Outputs of tools given by many at once, at all workers, while these are killed, stopped and stalled.

What was acknowledged is used, once; nothing else is; and each response has one stream with one end.

Only this finds an acknowledged output that is lost, or used twice, where workers die.
"""

import asyncio
import os
import random
import signal
from collections.abc import Awaitable, Callable
from itertools import count
from pathlib import Path

import httpx

from tests.kit.background import begin
from tests.kit.clients import http_client
from tests.kit.laws import assert_laws
from tests.kit.pairs import LEASE, Pair, Reader
from tests.kit.redis_server import RedisServer
from tests.kit.server import Server
from tests.kit.waiting import eventually
from tests.wire.transports.test_waiting import TOOLS, calls_of, give, pair_of

RESPONSES = 4  # at each blow
BLOWS = ("kill", "stop", "stall")


async def kill(pair: Pair, worker: Server) -> None:
    await asyncio.to_thread(pair.kill, worker)
    await asyncio.to_thread(pair.start, worker)


async def stop(pair: Pair, worker: Server) -> None:
    pair.alive.remove(worker)
    await asyncio.to_thread(worker.stop)
    await asyncio.to_thread(pair.start, worker)


async def stall(pair: Pair, worker: Server) -> None:
    """Stall a worker beyond its lease, so that it is taken for dead; it is asked all the while."""
    assert worker.process is not None
    os.kill(worker.process.pid, signal.SIGSTOP)
    await asyncio.sleep(LEASE * 1.5)
    os.kill(worker.process.pid, signal.SIGCONT)


_DEAL: dict[str, Callable[[Pair, Server], Awaitable[None]]] = {"kill": kill, "stop": stop, "stall": stall}


async def patiently(pair: Pair, chance: random.Random, response_id: str, call_id: str, output: str) -> bool:
    """Give an output as a client does: at any worker, again where that helps; return whether it was acknowledged."""
    while True:
        try:
            async with http_client(chance.choice(pair.alive)) as http:
                answer = await give(http, response_id, call_id, output)
        except httpx.TransportError:  # its worker was killed: nobody knows whether it was taken
            answer = None
        if answer is not None and answer.status_code in (200, 409):
            return answer.status_code == 200
        assert answer is None or answer.status_code == 503, answer.text
        await asyncio.sleep(0.05)


async def one_response(pair: Pair, number: int, began: asyncio.Event) -> None:
    """Run a response whose two calls are answered by two clients each, all at once."""
    chance = random.Random(number)
    async with http_client(pair.workers[number % 2]) as http:
        response_id = (await begin(http, "[twice]", tools=TOOLS))["id"]
    reader = Reader(pair, response_id, chance=chance)
    reading = asyncio.create_task(reader.read())
    await eventually(lambda: len(calls_of(reader.events)) == 2)
    began.set()
    given = [(call_id, f"{call_id} by {client}") for call_id in calls_of(reader.events) for client in "ab"]
    chance.shuffle(given)
    await asyncio.sleep(chance.uniform(0, 2))
    taken = await asyncio.gather(*(patiently(pair, chance, response_id, *each) for each in given))
    await reading
    assert_laws(reader.events)
    done = reader.events[-1]["response"]
    assert done["status"] == "completed", done["error"]
    used = [(item["call_id"], item["output"]) for item in done["output"] if "output" in item]
    assert len(used) == 2
    assert set(used) <= set(given)
    acknowledged = {each for each, was in zip(given, taken, strict=True) if was}
    assert acknowledged <= set(used), "what was acknowledged is not lost"


async def test_outputs_at_once_while_workers_die(folder: Path, redis: RedisServer) -> None:
    pair = pair_of(folder, redis_url=redis.url)
    chance = random.Random(7)
    try:
        for worker in pair.workers:
            await asyncio.to_thread(pair.start, worker)
        for first, blow in zip(count(step=RESPONSES), BLOWS, strict=False):
            events = [asyncio.Event() for _ in range(RESPONSES)]
            # One blow each: what was running at two deaths of workers is not run a third time.
            async with asyncio.timeout(90), asyncio.TaskGroup() as group:
                for number, began in enumerate(events, first):
                    group.create_task(one_response(pair, number, began))
                for began in events:
                    await began.wait()
                await _DEAL[blow](pair, chance.choice(pair.workers))
        for worker in pair.workers:
            await asyncio.to_thread(worker.stop)
            assert "Traceback" not in worker.output
    finally:
        for worker in pair.workers:
            if worker.is_running:
                worker.kill()
