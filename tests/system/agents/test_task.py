"""Each agent does the task, over each of its transports, with a worker killed on the way.

The faults that only these tests can find: an agent that cannot go on where a worker dies in the middle of its turn, or
that sends what no model can continue from, in thirty turns with tools that it really runs.
"""

from pathlib import Path

import pytest

from tests.kit.redis_server import RedisServer
from tests.system.agents.agent import Agent, Way
from tests.system.agents.every import AGENTS, CODEX
from tests.system.agents.running import run_task
from tests.system.agents.task import STEPS

REPRESENTATIVE = (CODEX, Way.WEBSOCKET)
RUNS = [
    pytest.param(
        agent,
        way,
        id=f"{agent.name}-{way.name}",
        marks=[pytest.mark.representative] if (agent, way) == REPRESENTATIVE else [],
    )
    for agent in AGENTS
    for way in agent.ways
]


@pytest.mark.parametrize(("agent", "way"), RUNS)
async def test_nothing_fails_and_nothing_is_computed_twice(
    agent: Agent, way: Way, tmp_path: Path, redis_server: RedisServer
) -> None:
    done = await run_task(agent, way, tmp_path, redis_url=redis_server.url)
    figures = done.figures
    assert (figures.turns, figures.cut, figures.failed, figures.twice) == (len(STEPS), 1, 0, 0), done
