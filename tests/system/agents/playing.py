"""The model's part: the steps of the task as a script, in the tools of one agent."""

import json
import re
from collections.abc import Sequence
from pathlib import Path

from engine.formats.harmony.encoding import decode_tokens, encode_harmony
from tests.kit.scripts import Entry
from tests.system.agents.agent import Agent, Call
from tests.system.agents.task import STEPS, Answer, Step

HALF_WAY = len(STEPS) // 2
BEGIN, THOUGHT = "<|start|>assistant", "<|channel|>analysis<|message|>"


def script(agent: Agent, work: Path, steps: Sequence[Step] = STEPS) -> list[Entry]:
    """Return what the model says: a step for each call that the prompt has, whatever its tools printed."""
    asides: list[Entry] = [{"told": word, "say": final(text)} for word, text in agent.asides.items()]
    return [*asides, *(_turn(place, step, agent, work) for place, step in enumerate(steps))]


def waiting_script(agent: Agent, work: Path, *, gate: Path, worker: str) -> list[Entry]:
    """Return what it says on one worker: half way `half_way(worker)`, as a thought, and no more until `gate` exists."""
    entries = script(agent, work)
    (waiting,) = [entry for entry in entries if entry.get("after_calls") == HALF_WAY]
    thought = f"{THOUGHT}{half_way(worker)}"
    waiting["say"] = f"{thought} {waiting['say'].removeprefix(THOUGHT)}"
    waiting |= {"chunk_tokens": 100, "hang_after": len(encode_harmony(thought)), "wait_for_file": str(gate)}
    return entries


def half_way(worker: str) -> str:
    """Return what the model thinks when half of the work is done."""
    return f"Half of it is done, here at {worker}."


def place_of(generation: Entry) -> int | None:
    """Return which step of the task a generation was, as its engine wrote it down; None where it was none, or cut."""
    said = re.search(r"Step (\d+) of the work\.", decode_tokens(generation["sampled_tokens"]))
    return int(said[1]) - 1 if said and generation["finish"] == "stop" else None


def _turn(place: int, step: Step, agent: Agent, work: Path) -> Entry:
    thought = f"{THOUGHT}Step {place + 1} of the work.<|end|>{BEGIN}"
    said = final(step.text) if isinstance(step, Answer) else called(agent.tools.call(step, work), place)
    return {"after_calls": place, "say": f"{thought}{said}", "chunk_tokens": 4}


def final(text: str) -> str:
    """Return how an answer is said."""
    return f"<|channel|>final<|message|>{text}<|return|>"


def called(call: Call, place: int) -> str:
    """Return a call as models write it: with the recipient behind the channel, or before it, and JSON in either way."""
    custom, odd = isinstance(call.input, str), place % 2
    kind = "" if custom else " json" if odd else " <|constrain|>json"
    to, channel = f" to=functions.{call.name}", "<|channel|>commentary"
    separators = (",", ":") if odd else (", ", ": ")
    text = call.input if custom else json.dumps(call.input, separators=separators)
    return f"{to}{channel}{kind}<|message|>{text}<|call|>" if odd else f"{channel}{to}{kind}<|message|>{text}<|call|>"
