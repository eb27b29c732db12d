"""A mixed load for SOAK_MINUTES (`make soak`): nothing fails, and no worker and no engine holds more at the end.

Only this finds memory that grows too slowly for a short test.
"""

import asyncio
import os
import statistics
import time
from pathlib import Path

from tests.system.cluster.cluster import Cluster
from tests.system.cluster.load import under_load

MINUTES = float(os.environ.get("SOAK_MINUTES") or 30)
CLIENTS = int(os.environ.get("CLUSTER_STREAMS", "80"))
PACE = 20.0  # tokens a second
KEPT_SECONDS = 20  # streams stay in memory for so long: far less than the soak, or that would be what grows
EVERY_SECONDS = 2.0
FLAT = 0.05


async def test_memory_stays_flat(tmp_path: Path) -> None:
    """Compared are the medians of the third and of the last fifth: what grows in the first two is filled up there."""
    samples: list[dict[str, int]] = []
    with Cluster(tmp_path, tokens_per_second=PACE, responses_session_ttl=KEPT_SECONDS) as cluster:
        async with under_load(cluster.server, f"{MINUTES:g} minutes of {CLIENTS} clients", clients=CLIENTS) as tally:
            ends_at = time.monotonic() + MINUTES * 60
            while time.monotonic() < ends_at:
                samples.append(cluster.sizes())
                await asyncio.sleep(EVERY_SECONDS)
    fifth = len(samples) // 5
    grown = {}
    for name in samples[0]:
        assert all(name in sample for sample in samples), f"{name} has gone"
        before, after = (
            statistics.median(sample[name] for sample in part)
            for part in (samples[2 * fifth : 3 * fifth], samples[-fifth:])
        )
        grown[name] = after / before - 1
        print(f"{name}: {before / 2**20:.1f} MiB, at the end {after / 2**20:.1f} MiB ({grown[name]:+.1%})")
    assert sum(tally.retried.values()) == 0
    assert max(grown.values()) <= FLAT, grown
