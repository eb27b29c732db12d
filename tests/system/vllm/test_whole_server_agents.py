"""Coding agents do their task of thirty turns on a real vLLM, under the grammar, and vLLM computes no block twice.

Each is recorded by its base URL alone, over an API of its own, and the record is what vLLM was asked and gave.

The model says what the script of `tests/system/agents` has it say. vLLM's own copy of the grammar has to accept each
token of it, else the response fails; how a patch ends is left to that grammar. Only this finds a call of an agent that
vLLM's grammar refuses, or a block that is computed twice.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.clients.copilot.cli import SHELL_ALONE
from tests.kit.clients import http_client
from tests.kit.engine_relay import EngineRelay
from tests.kit.rollouts import assert_tree_is_relayed, tree_of
from tests.kit.scripts import Entry
from tests.kit.server import Server
from tests.kit.wiretap import Wiretap
from tests.system.agents.agent import Agent, Way
from tests.system.agents.every import BARE_CLAUDE, CODEX, COPILOT, MODEL
from tests.system.agents.figures import failures
from tests.system.agents.playing import script
from tests.system.agents.task import DONE, PROMPT, STEPS, Answer, Edit, Run, Write, make_repository, require_done
from tests.system.vllm.engines import full_blocks
from tests.system.vllm.fronts import relayed
from tests.system.vllm.script import SCRIPT_VARIABLE, write_script
from tests.system.vllm.server import VllmServer
from tests.system.vllm.transcripts import SCRIPT

GENERATED = re.compile(r" completed input=(\d+) cached=(\d+) output=([1-9]\d*) ")
END_OF_PATCH = "atch\n<|call|>"  # is left to the grammar; behind `*** End` it would take ` of File` too
PATCHES = sum(isinstance(step, Edit | Write) for step in STEPS)
ROLLOUT = "task"
BELOW = f"/rollouts/{ROLLOUT}"  # behind a server's address
RUNS = [
    pytest.param(CODEX, Way.WEBSOCKET, PATCHES, id="codex"),
    pytest.param(BARE_CLAUDE, Way.MESSAGES, 0, id="claude"),  # it edits with a function
]


@contextmanager
def speaking(entries: list[Entry]) -> Iterator[None]:
    """Have the model of all vLLMs here say this, and then again what it says in the other tests."""
    path = Path(os.environ[SCRIPT_VARIABLE])
    write_script(path, entries)
    try:
        yield
    finally:
        write_script(path, SCRIPT)


def unended(entry: Entry) -> Entry:
    """Return an entry without the end of its patch, where it is one."""
    said = entry["say"].removesuffix(END_OF_PATCH)
    return entry if said == entry["say"] else {**entry, "say": said, "behind": "brief"}


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder whose path has few tokens: prompts name it often, and the context has room for so much."""
    with TemporaryDirectory(prefix="task-") as folder:
        yield Path(folder)


async def require_one_sequence(front: Server, relay: EngineRelay, turns: int) -> None:
    """Check that the roll-out is what vLLM had, and one sequence."""
    async with http_client(front) as http:
        tree = await tree_of(http, ROLLOUT)
    assert_tree_is_relayed(tree, relay.generations)
    assert len(tree["generations"]) == turns
    assert tree["breaks"] == []
    assert len(tree["sequences"]) == 1


@pytest.mark.parametrize(("agent", "way", "patches"), RUNS)
async def test_a_task_of_thirty_turns(
    vllm_server: VllmServer, short_path: Path, agent: Agent, way: Way, patches: int
) -> None:
    work = short_path / "work"
    entries = [unended(entry) for entry in script(agent, work)]
    assert sum("behind" in entry for entry in entries) == patches
    async with relayed(vllm_server, short_path / "front", model_name=MODEL) as (front, relay):
        with speaking(entries):
            async with Wiretap(front.port) as tap:
                client = agent.open(short_path, f"http://127.0.0.1:{tap.port}{BELOW}", way)
                make_repository(work)
                turn = await client.ask(PROMPT)
        await require_one_sequence(front, relay, len(STEPS))
    assert (turn.exit_code, turn.last_message) == (0, DONE), turn
    require_done(work)
    assert failures(tap) == 0
    turns = [tuple(map(int, each)) for each in GENERATED.findall(front.output)]
    assert len(turns) == len(STEPS), turns
    twice = [max(0, full_blocks(input + output) - cached) for (input, _, output), (_, cached, _) in pairwise(turns)]
    assert twice == [0] * (len(STEPS) - 1), turns


async def test_an_agent_of_chats_is_recorded(vllm_server: VllmServer, tmp_path: Path) -> None:
    steps = (Run("ls"), Answer(DONE))
    async with relayed(vllm_server, tmp_path / "front", model_name=MODEL) as (front, relay):
        with speaking(script(COPILOT, tmp_path / "work", steps)):
            client: Any = COPILOT.open(tmp_path, f"{front.url}{BELOW}", Way.CHAT)
            turn = await client.run(SHELL_ALONE, "--allow-all-tools", "-p", PROMPT)
        assert (turn.exit_code, turn.last_message) == (0, DONE), (turn.complaints, front.output[-3000:])
        await require_one_sequence(front, relay, len(steps))
