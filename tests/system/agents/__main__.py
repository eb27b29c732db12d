"""`make agents`: let each agent do the task, and print the page of what it cost."""

import asyncio
import sys
import tempfile
from pathlib import Path

from tests.kit.redis_server import RedisServer
from tests.system.agents.every import AGENTS
from tests.system.agents.page import page
from tests.system.agents.running import run_task

RUNS = [(agent, way) for agent in AGENTS for way in agent.ways]


def main() -> None:
    """Run all of them, one after the other."""
    done = []
    with RedisServer() as redis, tempfile.TemporaryDirectory() as folder:
        for place, (agent, way) in enumerate(RUNS):
            print(f"… {agent.name}: {way.value}", file=sys.stderr, flush=True)
            run = run_task(agent, way, Path(folder) / str(place), redis_url=redis.url)
            done.append((agent, way, asyncio.run(run)))
            print(f"  {done[-1][2]}", file=sys.stderr, flush=True)
    print(page(done), end="")


if __name__ == "__main__":
    main()
