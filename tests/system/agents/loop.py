"""A task of ten calls, with one worker that lives on: how many tokens of a turn are computed again in the next one.

The script writes arguments as models do: with white space, escapes, and the keys in any order. Two turns say something
before they call.
"""

import json
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from engine.formats.harmony.encoding import decode_tokens
from responses_app.protocol.errors import JsonObject
from tests.kit.scripts import Entry, as_history, journal
from tests.kit.server import Server
from tests.system.agents.agent import Agent, Way
from tests.system.agents.every import MODEL
from tests.system.agents.figures import common_prefix
from tests.system.agents.playing import BEGIN, THOUGHT, final, place_of
from tests.system.agents.task import (
    COMMITTED,
    DONE,
    PROMPT,
    STEPS,
    TEST,
    Answer,
    Edit,
    Read,
    Run,
    Step,
    Write,
    make_repository,
    require_done,
)

LOOP: tuple[Step, ...] = (
    Read("shop/prices.py"),
    Read("shop/stock.py"),
    Read("shop/orders.py"),
    Read("README.md"),
    *(step for step in STEPS if isinstance(step, Edit | Write)),
    Run(f"{TEST} && git add --all && git commit --quiet --message '{COMMITTED}'"),
    Answer(DONE),
)
SPEAKS = (1, 5)  # the turns that say something before they call


@dataclass(frozen=True, kw_only=True)
class Looped:
    """The figures of one run."""

    turns: int
    again: int  # tokens that were read or sampled in a turn, and are computed again in the next one
    changes: tuple[str, ...]  # one for each turn with such tokens: the text of the next prompt, and that of the turn


async def run_loop(agent: Agent, way: Way, folder: Path) -> Looped:
    """Let a client do the task. Raises `AssertionError` if it is not done."""
    work = folder / "work"
    work.mkdir(parents=True)
    make_repository(work)
    model = agent.models.get(way, MODEL)
    with Server(folder / "server", model_name=model, script=script(agent, work), journal=True) as server:
        turn = await agent.open(folder, server.url, way).ask(PROMPT)
        entries = journal(server)
    assert (turn.exit_code, str(turn.last_message).endswith(DONE)) == (0, True), turn
    require_done(work)
    return measured(entries)


def measured(entries: list[Entry]) -> Looped:
    """Return the figures of the engine's journal, whose entries are in the order of the turns."""
    turns = [entry for entry in entries if place_of(entry) is not None]
    again, changes = 0, []
    for earlier, later in pairwise(turns):
        history, prompt = as_history(earlier), later["prompt_tokens"]
        same = common_prefix(history, prompt)
        # The last token that was sampled is in no cache.
        if (count := len(history) - 1 - same) > 0:
            again += count
            changes.append(f"{decode_tokens(prompt[same:][:30])!r} in place of {decode_tokens(history[same:][:30])!r}")
    return Looped(turns=len(turns), again=again, changes=tuple(changes))


def script(agent: Agent, work: Path) -> list[Entry]:
    """Return the script of the engine: its output in each turn, and for each other request of the client."""
    asides: list[Entry] = [{"told": word, "say": final(text)} for word, text in agent.asides.items()]
    return [*asides, *(_turn(place, step, agent, work) for place, step in enumerate(LOOP))]


def spelled(arguments: JsonObject, place: int) -> str:
    """Return JSON in one of the spellings of models."""
    match place % 4:
        case 0:
            return json.dumps(arguments, indent=2)
        case 1:
            return json.dumps(dict(reversed(arguments.items())))
        case 2:
            return json.dumps(arguments, separators=(",", ":")).replace("/", "\\/")
        case _:
            return json.dumps(arguments).replace("a", "\\u0061")


def _turn(place: int, step: Step, agent: Agent, work: Path) -> Entry:
    spoken = f"<|channel|>commentary<|message|>I look at part {place}.<|end|>{BEGIN}" if place in SPEAKS else ""
    if isinstance(step, Answer):
        said = final(step.text)
    else:
        call = agent.tools.call(step, work)
        assert not isinstance(call.input, str), "none of them has custom tools"
        text = spelled(call.input, place)
        said = f"<|channel|>commentary to=functions.{call.name} <|constrain|>json<|message|>{text}<|call|>"
    thought = f"{THOUGHT}Step {place + 1} of the work.<|end|>{BEGIN}"
    return {"after_calls": place, "say": f"{thought}{spoken}{said}", "chunk_tokens": 4}
