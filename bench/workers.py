"""The rows about several workers: an event, a worker that is replaced, a slot that all share, a cancel by another."""

import asyncio
import os
import re
import signal
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from statistics import median
from typing import Self

import httpx
from redis.asyncio import Redis

from bench.events import CONNECTIONS, bursts
from bench.report import Result, ratio
from bench.servers import SCRIPT, SERVER_CORE, Bench, on_core
from responses_app.limits.ledger import Ask, Hold
from responses_app.limits.rates import ConnectionLimit
from responses_app.limits.redis import RedisLedger
from tests.kit.redis_server import RedisServer
from tests.kit.served import Supervised
from tests.kit.server import ROOT, Server, cpu_seconds_of

MANY = 4  # workers
ROUNDS = 5
START_SECONDS = 180.0  # they share one core
SLOTS = 1000
CANCELS = 20
QUICK = "tests/system/supervisor/quick_manage.py"  # a worker that dies is replaced at once, however often
PACE = '{"tokens_per_second": 20}'  # of what is cancelled


class Workers(Supervised):
    """`manage.py serve --workers N`, all workers on the server's core; their CPU time is that of all together."""

    def __init__(self, folder: Path, redis_url: str) -> None:
        settings = {"max_websocket_connections": 5000, "redis_url": redis_url}
        super().__init__(folder, workers=MANY, script=SCRIPT, **settings)
        self.start_seconds = START_SECONDS
        self.environ["PYTHONPATH"] = str(ROOT)

    def start(self, *, wait: bool = True) -> Self:
        """Start; wait until all workers serve."""
        with on_core(SERVER_CORE):
            return super().start(wait=wait)

    def cpu_seconds(self) -> float:
        """Return the CPU time that the workers have used."""
        return sum(map(cpu_seconds_of, self.pids()))


def workers(bench: Bench) -> Iterator[Result]:
    """Several workers beside one, under the same load."""
    with RedisServer() as redis:
        many, one = asyncio.run(_workers(bench, redis.url))
    yield Result(
        what=f"CPU per WebSocket event, {CONNECTIONS} connections bursting, {MANY} workers / 1",
        measured=ratio(many, one),
        target=1.1,
        details={f"{MANY} workers µs": median(many), "1 worker µs": median(one)},
    )


async def _workers(bench: Bench, redis_url: str) -> tuple[list[float], list[float]]:
    alone = bench.fresh_server(name="worker", redis_url=redis_url)
    with Workers(bench.folder / "workers", redis_url) as several, alone:
        many, one = await bursts(bench, [several, alone], rounds=ROUNDS)
    return many.cpu, one.cpu


def replaced(bench: Bench) -> Iterator[Result]:
    """Kill workers, one after the other: how long until another serves, and what it holds beyond what it shares."""
    seconds, cpu, own = [], [], []
    # Not forked, as tests have it: the supervisor would share memory with the process that it is forked from.
    with Supervised(bench.folder / "replaced", workers=2, program=QUICK, is_forked=False) as server:
        for _ in range(ROUNDS):
            before, serving = server.pids(), server.output.count(" serves\n")
            os.kill(before[0], signal.SIGKILL)
            server.wait_for_line(" serves\n", count=serving + 1)
            (new,) = set(server.pids()) - set(before)
            cpu.append(cpu_seconds_of(new))
            own.append(own_mib(new))
            times = re.findall(r"^\S+ ([\d:,]+) .* worker \d+ (?:was ended by|serves)", server.output, re.MULTILINE)
            killed, serves = (datetime.strptime(each, "%H:%M:%S,%f") for each in times[-2:])
            seconds.append(((serves - killed) % timedelta(days=1)).total_seconds())
        assert server.process is not None
        supervisor, loaded = own_mib(server.process.pid), [own_mib(pid) for pid in server.fork_servers()]
    yield Result(
        what="a worker that died, until another one serves, median",
        measured=median(seconds),
        unit="s",
        target=0.5,
        details={"best s": min(seconds), "its CPU s": median(cpu)},
    )
    yield Result(
        what="memory of a new worker that no other process shares",
        measured=median(own),
        unit="MiB",
        target=80.0,
        details={"fork server MiB": sum(loaded)},
    )
    yield Result(
        what="memory of the supervisor that no other process shares",
        measured=supervisor,
        unit="MiB",
        target=60.0,
    )


def own_mib(pid: int) -> float:
    """Return the memory that a process holds and shares with no other."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1024


def slot(bench: Bench) -> Iterator[Result]:
    """Take one of the slots for WebSockets that all workers share, one after the other, and give it back."""
    with RedisServer() as redis:
        taken, cpu = asyncio.run(_slots(redis.url))
    yield Result(
        what="a slot for a WebSocket acquired, Redis, one after the other, median",
        measured=median(taken) * 1e3,
        unit="ms",
        target=0.5,
        details={"best ms": min(taken) * 1e3, "CPU with its release ms": cpu * 1e3},
    )


async def _slots(url: str) -> tuple[list[float], float]:
    """Return how long each took, and the CPU time of one, in seconds."""
    ledger = RedisLedger(lambda: Redis.from_url(url, socket_timeout=None))
    await ledger.start()
    limit = ConnectionLimit(ledger, 100)
    taken, cpu = [], time.process_time()
    for _ in range(SLOTS):
        began = time.perf_counter()
        assert await limit.acquire(), "there are slots left"
        taken.append(time.perf_counter() - began)
        limit.release()
        await ledger.ask(Ask((), [Hold("connections", 0)]))  # so that the next one waits for nothing of this one
    cpu = (time.process_time() - cpu) / SLOTS
    await ledger.aclose()
    return taken, cpu


def cancel(bench: Bench) -> Iterator[Result]:
    """Cancel a response in the background at a worker that does not run it."""
    with RedisServer() as redis:
        taken = _cancels(bench, redis.url)
    yield Result(
        what="a background response cancelled at another worker, until it has ended, median",
        measured=median(taken) * 1e3,
        unit="ms",
        target=20.0,
        details={"best ms": min(taken) * 1e3, "slowest ms": max(taken) * 1e3},
    )


def _cancels(bench: Bench, url: str) -> list[float]:
    folder = bench.folder / "cancel"
    first, second = (Server(folder, engine="demo", engine_options=PACE, redis_url=url) for _ in range(2))
    second.log = folder / "second.log"
    taken = []
    with first, second, httpx.Client(base_url=first.base_url) as runs, httpx.Client(base_url=second.base_url) as asks:
        for _ in range(CANCELS):
            response = runs.post("/responses", json={"input": "count to 300", "background": True}).json()
            while runs.get(f"/responses/{response['id']}").json()["status"] != "in_progress":
                time.sleep(0.02)
            began = time.perf_counter()
            answer = asks.post(f"/responses/{response['id']}/cancel")
            taken.append(time.perf_counter() - began)
            assert answer.json()["status"] == "cancelled", answer.text
    return taken
