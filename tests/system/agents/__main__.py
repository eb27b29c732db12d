"""`make agents`: let each agent do its task, and print the page of their figures."""

import asyncio
import sys
import tempfile
from pathlib import Path

from tests.kit.redis_server import RedisServer
from tests.system.agents.every import AGENTS
from tests.system.agents.loop import run_loop
from tests.system.agents.others.every import OTHERS
from tests.system.agents.page import page
from tests.system.agents.running import run_task

RUNS = [(agent, way) for agent in AGENTS for way in agent.ways]
LOOPS = [(agent, way) for agent in OTHERS for way in agent.ways]


def main() -> None:
    """Run all of them, one after the other."""
    done, looped = [], []
    with RedisServer() as redis, tempfile.TemporaryDirectory() as folder:
        for place, (agent, way) in enumerate(LOOPS):
            print(f"… {agent.name}: {way.value}", file=sys.stderr, flush=True)
            looped.append((agent, way, asyncio.run(run_loop(agent, way, Path(folder) / f"loop-{place}"))))
            print(f"  {looped[-1][2]}", file=sys.stderr, flush=True)
        for place, (agent, way) in enumerate(RUNS):
            print(f"… {agent.name}: {way.value}", file=sys.stderr, flush=True)
            run = run_task(agent, way, Path(folder) / str(place), redis_url=redis.url)
            done.append((agent, way, asyncio.run(run)))
            print(f"  {done[-1][2]}", file=sys.stderr, flush=True)
    print(page(done, looped), end="")


if __name__ == "__main__":
    main()
