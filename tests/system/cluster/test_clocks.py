"""Two hosts on one database and one Redis, whose clocks are ten minutes apart and jump.

Only this finds an age or a lease that is computed from the clocks of two hosts.

A stored response lives for five minutes here: by the clock of the host beside, it would be too old as soon as it is
there. No worker may be taken for dead that lives, and one that dies is taken over as ever.
"""

import asyncio
import os
import signal
import time
from collections.abc import Iterator

import httpx
import pytest

from tests.system.cluster.cluster import Cluster
from tests.system.cluster.conftest import PACE
from tests.system.cluster.load import under_load
from tests.system.cluster.wrong_clock import WrongClock

APART = 600.0
JUMPS = (-APART, 0.0, APART)  # seconds ahead, one after the other
BETWEEN_JUMPS = 7.0  # longer than a lease
KEPT_SECONDS = 300
WRONG_SECONDS = 60.0  # less than this is a slow machine
TAKEN_OVER = ("which another worker left", "responses of workers that died have failed")


class TwoHosts(Cluster):
    """The second host's clock is `clock`."""

    clock: WrongClock


@pytest.fixture(scope="module")
def two_hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoHosts]:
    """A cluster whose second host is ten minutes ahead from its start."""
    folder = tmp_path_factory.mktemp("clocks")
    cluster = TwoHosts(folder, hosts=2, workers=2, tokens_per_second=PACE, responses_store_ttl=KEPT_SECONDS)
    cluster.clock = WrongClock(folder, ahead=APART)
    cluster.clock.of(cluster.hosts[1])
    with cluster:
        yield cluster


def taken_over(cluster: Cluster) -> int:
    """Return how often workers have found something to take over."""
    return sum(host.output.count(text) for host in cluster.hosts for text in TAKEN_OVER)


async def dates(cluster: Cluster) -> list[float]:
    """Return how far from now some responses are dated, of workers on both hosts."""
    async with httpx.AsyncClient(base_url=cluster.server.base_url, timeout=60, verify=False) as http:
        answers = await asyncio.gather(*(http.post("/responses", json={"input": "Hello"}) for _ in range(8)))
    return [answer.json()["created_at"] - time.time() for answer in answers]


@pytest.mark.usefixtures("time_in_a_row")
async def test_clocks_are_apart_and_jump(two_hosts: TwoHosts) -> None:
    wrong = two_hosts.hosts[1]
    async with under_load(two_hosts.server, f"clocks {APART / 60:g} minutes apart, and jumping"):
        before = taken_over(two_hosts)
        for ahead in JUMPS:
            two_hosts.clock.set(ahead)
            await asyncio.sleep(BETWEEN_JUMPS)
            assert max(map(abs, await dates(two_hosts))) < WRONG_SECONDS
        assert taken_over(two_hosts) == before, "a worker that lives was taken for dead"
        ready = wrong.output.count(" serves\n")
        os.kill(wrong.pids()[0], signal.SIGKILL)
        await asyncio.to_thread(wrong.wait_for_line, " serves\n", count=ready + 1, seconds=60)
        await asyncio.to_thread(wrong.wait_for, lambda: taken_over(two_hosts) > before, 60)
