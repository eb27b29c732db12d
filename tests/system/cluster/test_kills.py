"""Each part of a cluster is killed or stalled under load: nothing that was acknowledged is lost, and nothing hangs.

Only this finds a loss that needs every part of a cluster, under load, at the time of the fault.

CLUSTER_STREAMS clients, a quarter of each kind. Each fault prints its figures.
"""

import asyncio
import os
import random
import signal
import time

from tests.kit.served import is_gone
from tests.system.cluster.cluster import Cluster
from tests.system.cluster.load import under_load

AWAY_SECONDS = 10.0
STOPPED_SECONDS = 20.0
ROLL_SECONDS = 300.0  # bound of a wait: 60 s are wanted where nothing else runs
CHANCE = random.Random(11)


async def test_a_worker_is_killed(cluster: Cluster) -> None:
    async with under_load(cluster.server, "kill -9 of a worker"):
        ready = cluster.server.output.count(" serves\n")
        os.kill(CHANCE.choice(cluster.server.pids()), signal.SIGKILL)
        await asyncio.to_thread(cluster.server.wait_for_line, " serves\n", count=ready + 1, seconds=60)


async def test_an_engine_is_killed(cluster: Cluster) -> None:
    async with under_load(cluster.server, f"kill -9 of an engine, {AWAY_SECONDS:g} s away") as tally:
        engine = CHANCE.choice(cluster.engines)
        await asyncio.to_thread(engine.kill)
        await asyncio.sleep(AWAY_SECONDS)
        await asyncio.to_thread(engine.start)
    assert sum(tally.retried.values()) == 0, "another engine goes on, and no client sees it"


async def test_redis_is_killed(cluster: Cluster) -> None:
    async with under_load(cluster.server, f"kill -9 of Redis, {AWAY_SECONDS:g} s away") as tally:
        cluster.redis.kill()
        await asyncio.sleep(AWAY_SECONDS)
        await asyncio.to_thread(cluster.redis.start)
    assert sum(tally.retried.values()) == 0, "each worker counts for itself meanwhile"


async def test_postgres_is_killed(cluster: Cluster) -> None:
    async with under_load(cluster.server, f"kill -9 of PostgreSQL, {AWAY_SECONDS:g} s away"):
        await asyncio.to_thread(cluster.postgres.kill)
        await asyncio.sleep(AWAY_SECONDS)
        await asyncio.to_thread(cluster.postgres.start)


async def test_postgres_hangs(cluster: Cluster) -> None:
    async with under_load(cluster.server, f"SIGSTOP of PostgreSQL for {AWAY_SECONDS:g} s"):
        with cluster.postgres.hanging():
            await asyncio.sleep(AWAY_SECONDS)


async def test_the_supervisor_is_killed(cluster: Cluster) -> None:
    """As systemd does, it is started again at once."""
    async with under_load(cluster.server, "kill -9 of the supervisor"):
        workers, process = cluster.server.pids(), cluster.server.process
        assert process is not None
        process.kill()
        await asyncio.to_thread(process.wait)
        await asyncio.to_thread(_start_again, cluster)
        await asyncio.to_thread(cluster.server.wait_for, lambda: all(map(is_gone, workers)), 90)


def _start_again(cluster: Cluster) -> None:
    cluster.server.wait_for(lambda: not cluster.server.accepts_itself())
    cluster.server.start()


async def test_a_worker_stands_still(cluster: Cluster) -> None:
    async with under_load(cluster.server, f"SIGSTOP of a worker for {STOPPED_SECONDS:g} s"):
        worker = CHANCE.choice(cluster.server.pids())
        os.kill(worker, signal.SIGSTOP)
        try:
            await asyncio.sleep(STOPPED_SECONDS)
        finally:
            os.kill(worker, signal.SIGCONT)


async def test_a_rolling_restart(cluster: Cluster) -> None:
    async with under_load(cluster.server, "rolling restart") as tally:
        before, began = cluster.server.pids(), time.monotonic()
        told = cluster.server.output.count("all workers are replaced")
        cluster.server.hup()
        await asyncio.to_thread(
            cluster.server.wait_for_line, "all workers are replaced", count=told + 1, seconds=ROLL_SECONDS
        )
        replaced = time.monotonic() - began
        await asyncio.to_thread(cluster.server.wait_for, lambda: all(map(is_gone, before)), 90)
        gone = time.monotonic() - began
        tally.noted.append(
            f"all workers were replaced after {replaced:.0f} s, and the old ones gone after {gone:.0f} s"
        )
