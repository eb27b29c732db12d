"""Unmodified agents are recorded: three of them over each of three APIs, all on one server, by a base URL alone.

The oracle is what the engine wrote down. A conversation is one sequence; where it is not, the client has its reasons,
and they stand here. The faults that only these tests can find: a version of an agent, or a change of what it is
answered, with which its turns are no longer one sequence of tokens; and a call of an agent that no roll-out has.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.kit.clients import http_client
from tests.kit.rollouts import assert_tree_is_the_engines, tree_of
from tests.kit.scripts import Entry, journal
from tests.kit.server import Server
from tests.system.agents.agent import Agent, Call, PatchTools, Shell, Way
from tests.system.agents.every import CLAUDE, CODEX, COPILOT, MODEL, OPENCODE, QWEN
from tests.system.agents.playing import called, final, script
from tests.system.agents.task import DONE, PROMPT, TEST, Answer, Edit, Read, Run, Search, Step, make_repository

STEPS: tuple[Step, ...] = (
    Read("README.md"),
    Search("VAT"),
    Edit("shop/prices.py", "    return net + VAT", "    return net + net * VAT // 100"),
    Run(f"{TEST} tests.test_prices"),
    Answer(DONE),
)
AT_ONCE = 2  # agents
# Over Messages there are no custom tools, so Copilot makes a function of apply_patch.
COPILOT_OF_MESSAGES = replace(
    COPILOT, tools=PatchTools(shell=Shell("bash", "command", {"description": "Work"}), argument="input")
)
RUNS: tuple[tuple[Agent, Way], ...] = (
    (CODEX, Way.WEBSOCKET),
    (CODEX, Way.RESPONSES),
    (OPENCODE, Way.RESPONSES),
    (COPILOT, Way.RESPONSES),
    (QWEN, Way.RESPONSES),
    (OPENCODE, Way.CHAT),
    (COPILOT, Way.CHAT),
    (QWEN, Way.CHAT),
    (CLAUDE, Way.MESSAGES),
    (OPENCODE, Way.MESSAGES),
    (COPILOT_OF_MESSAGES, Way.MESSAGES),
    (QWEN, Way.MESSAGES),
)
API = {Way.WEBSOCKET: "responses", Way.RESPONSES: "responses", Way.CHAT: "chat", Way.MESSAGES: "messages"}
# Why conversations are more than one sequence, and how often.
REASONS: dict[tuple[str, Way], dict[str, int]] = {
    # It has a title made, in a conversation of its own with the same session id.
    ("OpenCode", way): {"instructions_changed": 1}
    for way in (Way.RESPONSES, Way.CHAT, Way.MESSAGES)
}
OTHERS = 1  # generations of OpenCode beside those of the task: its title


def name_of(agent: Agent, way: Way) -> str:
    """Return the id of a roll-out."""
    return f"{agent.name.replace(' ', '-')}.{way.name}"


def entries_of(agent: Agent, way: Way, work: Path, steps: Sequence[Step] = STEPS) -> list[Entry]:
    """Return the model's part in the conversation of one agent: its prompt has the roll-out's id."""
    return [{**entry, "asked": name_of(agent, way)} for entry in script(agent, work, steps)]


async def ask(agent: Agent, way: Way, folder: Path, server: Server, prompt: str) -> Any:
    """Let an agent work in the folder `work`, with a base URL that names a roll-out."""
    name = name_of(agent, way)
    client = agent.open(folder, f"{server.url}/rollouts/{name}", way)
    make_repository(folder / "work")
    return await client.ask(f"{prompt} ({name})")


@asynccontextmanager
async def recording(folder: Path, entries: Sequence[Entry]) -> AsyncIterator[tuple[Server, httpx.AsyncClient]]:
    """Start a server whose model says these."""
    options = {"max_model_len": 131_072}
    server = Server(folder, script=entries, journal=True, engine_options=options, model_name=MODEL)
    await asyncio.to_thread(server.start)
    try:
        async with http_client(server) as http:
            yield server, http
    finally:
        await asyncio.to_thread(server.stop)


async def test_each_is_recorded_to_the_token_and_its_conversation_is_one_sequence(tmp_path: Path) -> None:
    folders = {name_of(agent, way): tmp_path / name_of(agent, way) for agent, way in RUNS}
    entries = [entry for agent, way in RUNS for entry in entries_of(agent, way, folders[name_of(agent, way)] / "work")]
    places = asyncio.Semaphore(AT_ONCE)

    async def run(agent: Agent, way: Way, server: Server) -> None:
        async with places:
            turn = await ask(agent, way, folders[name_of(agent, way)], server, PROMPT)
        assert (turn.exit_code, turn.last_message) == (0, DONE), turn

    async with recording(tmp_path / "server", entries) as (server, http):
        async with asyncio.TaskGroup() as all_of_them:
            for agent, way in RUNS:
                all_of_them.create_task(run(agent, way, server))
        trees = {name_of(agent, way): await tree_of(http, name_of(agent, way)) for agent, way in RUNS}
    for agent, way in RUNS:
        tree, reasons = trees[name_of(agent, way)], REASONS.get((agent.name, way), {})
        assert_tree_is_the_engines(tree, server)
        assert {each["api"] for each in tree["generations"]} == {API[way]}
        assert len({each["branch"] for each in tree["generations"]}) == 1
        assert len(tree["generations"]) == len(STEPS) + (OTHERS if agent is OPENCODE else 0)
        assert Counter(each["reason"] for each in tree["breaks"]) == reasons, (agent.name, way, tree["breaks"])
        assert len(tree["sequences"]) == 1 + sum(reasons.values())
    # Nothing was generated that no roll-out has.
    generated = [entry for entry in journal(server) if entry["sampled_tokens"]]
    assert sum(len(tree["generations"]) for tree in trees.values()) == len(generated)
    of_api = Counter(API[way] for agent, way in {(agent.name, way) for agent, way in RUNS} if way is not Way.WEBSOCKET)
    assert min(of_api[api] for api in ("responses", "chat", "messages")) >= 3


FOR_ANOTHER = "Say how many files there are."
SUB_AGENTS = {  # what a tool is called with that has another agent do something
    "Claude Code": Call(
        "Agent",
        {"description": "Count", "prompt": FOR_ANOTHER, "subagent_type": "general-purpose", "run_in_background": False},
    ),
    "OpenCode": Call("task", {"description": "Count", "prompt": FOR_ANOTHER, "subagent_type": "general"}),
}


@pytest.mark.parametrize(("agent", "way"), [(CLAUDE, Way.MESSAGES), (OPENCODE, Way.RESPONSES)])
async def test_its_sub_agents_are_branches(agent: Agent, way: Way, tmp_path: Path) -> None:
    count = agent.tools.call(Run("ls | wc -l"), tmp_path)
    entries: list[Entry] = [
        *({"told": word, "say": final(text)} for word, text in agent.asides.items()),
        {"asked": FOR_ANOTHER, "after_calls": 0, "say": called(count, 0)},
        {"asked": FOR_ANOTHER, "say": final("Three.")},
        {"after_calls": 0, "say": called(SUB_AGENTS[agent.name], 0)},
        {"say": final(DONE)},
    ]
    async with recording(tmp_path / "server", entries) as (server, http):
        turn = await ask(agent, way, tmp_path / "agent", server, PROMPT)
        assert (turn.exit_code, turn.last_message) == (0, DONE), turn
        tree = await tree_of(http, name_of(agent, way))
    assert_tree_is_the_engines(tree, server)
    asides = OTHERS if agent is OPENCODE else 0
    by_branch = Counter(each["branch"] for each in tree["generations"])
    assert sorted(by_branch.values()) == [2, 2 + asides], by_branch
    reasons = Counter(each["reason"] for each in tree["breaks"])
    assert reasons == Counter({"sub_agent": 1, **({"instructions_changed": asides} if asides else {})})
    assert len(tree["sequences"]) == 2 + asides


async def test_a_second_question_drops_the_thoughts_before_the_answer(tmp_path: Path) -> None:
    again, way = "Thank you. Is it good?", Way.RESPONSES
    thought = "<|channel|>analysis<|message|>It is mended.<|end|><|start|>assistant"
    entries: list[Entry] = [{"when": again, "say": final("It is.")}, {"say": f"{thought}{final(DONE)}"}]
    async with recording(tmp_path / "server", entries) as (server, http):
        name = name_of(CODEX, way)
        codex: Any = CODEX.open(tmp_path / "agent", f"{server.url}/rollouts/{name}", way)
        first = await codex.ask(PROMPT)
        second = await codex.resume(first.thread_id, again)
        assert (first.last_message, second.last_message) == (DONE, "It is."), (first, second)
        tree = await tree_of(http, name)
    assert_tree_is_the_engines(tree, server)
    assert [each["reason"] for each in tree["breaks"]] == ["reasoning_settled"]
