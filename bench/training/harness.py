"""Harnesses of agents, as traces: what each sends turn by turn, over three APIs, and what it does to its history.

`Trace` says what one roll-out does. Each has TURNS turns of tool calls; some fork, sum up what came before, or have a
sub-agent of its own; these are drawn by the number of the roll-out, so that every run has the same.
"""

import asyncio
import random
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import aiohttp

from bench.training.engine import DONE, WORDS

TURNS = 30
GROUP = 8  # attempts at one task
SUB_TURNS = 5
INSTRUCTIONS = "You are an agent that mends programs. Read files before you change them, and run the tests. " * 60
OUTPUT_WORDS = 110  # of a tool
TRIES = 60  # of one request, where its worker dies
PAUSE = 0.5  # seconds before the next try
COMMAND = {"type": "object", "properties": {"cmd": {"type": "string"}}, "required": ["cmd"]}
ABOUT = "Run a command in the shell of the project, and return what it prints."
FUNCTION = {"type": "function", "name": "shell", "description": ABOUT, "parameters": COMMAND, "strict": False}
ANTHROPIC = {"anthropic-version": "2023-06-01"}
KINDS = ("chain", "codex", "claude")
_IDS = re.compile(r"(?<=_)[0-9a-f]{16,}")  # what differs where the same goes wrong again
Item = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Trace:
    """What one roll-out does, and at which of its turns; -1: never."""

    number: int
    turns: int = TURNS
    fork: int = -1  # this turn is asked for twice, and goes on behind the second answer
    summary: int = -1  # before this turn its history is replaced by a summary
    sub_agent: int = -1  # behind this turn another conversation has `SUB_TURNS` turns

    @property
    def kind(self) -> str:
        return KINDS[self.number % len(KINDS)]

    @property
    def name(self) -> str:
        return f"run-{self.number:06}"

    @property
    def group(self) -> str:
        return f"task-{self.number // GROUP:05}"

    @property
    def sequences(self) -> int:
        """How many sequences it has, where nothing is broken that need not be."""
        return 1 + sum(each >= 0 for each in (self.fork, self.summary, self.sub_agent))

    @property
    def generations(self) -> int:
        """How often the engine is asked."""
        return self.turns + (self.fork >= 0) + (SUB_TURNS if self.sub_agent >= 0 else 0)


def trace_of(number: int, turns: int) -> Trace:
    """Return what a roll-out does."""
    chance = random.Random(number)

    def at(share: float) -> int:
        return chance.randrange(2, turns - 2) if chance.random() < share else -1

    return Trace(number=number, turns=turns, fork=at(0.2), summary=at(0.15), sub_agent=at(0.15))


@dataclass(slots=True)
class Tally:
    """What a run has seen."""

    responses: Counter[str] = field(default_factory=Counter)  # by their status
    problems: Counter[str] = field(default_factory=Counter)  # answers that were no response, and broken connections
    failed: list[str] = field(default_factory=list)  # what each response that ended as failed says
    answered: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))  # responses, by roll-out
    retried: int = 0
    turns: int = 0


class Conversation:
    """One conversation of a roll-out. `ask` sends what is new, in the way of its harness."""

    def __init__(self, http: aiohttp.ClientSession, trace: Trace, session: str, tally: Tally) -> None:
        self._http, self._trace, self._tally = http, trace, tally
        self._headers = {"x-rollout-id": trace.name, "session-id": session}
        self._history: list[Item] = []
        self._previous: str | None = None

    async def ask(self, new: Sequence[Item]) -> Item:
        """Send a turn; return the model's call, {} where it makes none."""
        if self._trace.kind == "claude":
            return await self._message(new)
        self._history += new
        body: Item = {"model": "agents", "tools": [FUNCTION], "instructions": INSTRUCTIONS}
        if self._trace.kind == "codex":
            body |= {"store": False, "input": self._history, "include": ["reasoning.encrypted_content"]}
            body |= {"prompt_cache_key": self._headers["session-id"]}
        else:
            body |= {"input": list(new), "previous_response_id": self._previous}
        answer = await self._post("/v1/responses", body)
        self._tally.responses[answer["status"]] += 1
        if answer["status"] != "completed":  # nothing goes on behind it
            problem = answer["error"] or answer["incomplete_details"]
            raise RuntimeError(f"{self._trace.name}: {answer['id']} has not completed: {problem}")
        self._previous = answer["id"]
        self._history += answer["output"]
        return next((item for item in answer["output"] if item["type"] == "function_call"), {})

    def output_of(self, call: Item, text: str) -> Item:
        """Return a tool's output, as its API has it."""
        if self._trace.kind == "claude":
            return {"type": "tool_result", "tool_use_id": call["id"], "content": text}
        return {"type": "function_call_output", "call_id": call["call_id"], "output": text}

    def user(self, text: str) -> Item:
        """Return what a user says, as its API has it."""
        return {"type": "text", "text": text} if self._trace.kind == "claude" else {"role": "user", "content": text}

    def mark(self) -> tuple[list[Item], str | None]:
        """Return where it stands."""
        return list(self._history), self._previous

    def go_back(self, to: tuple[list[Item], str | None]) -> None:
        """Stand where it stood."""
        self._history, self._previous = list(to[0]), to[1]

    async def _message(self, new: Sequence[Item]) -> Item:
        self._history.append({"role": "user", "content": list(new)})
        tool = {"name": "shell", "description": ABOUT, "input_schema": COMMAND}
        body: Item = {"model": "agents", "max_tokens": 2000, "system": INSTRUCTIONS, "tools": [tool]}
        body |= {"thinking": {"type": "adaptive"}, "messages": self._history}
        answer = await self._post("/v1/messages", body)
        self._tally.responses["completed" if answer["stop_reason"] else "failed"] += 1
        self._history.append({"role": "assistant", "content": answer["content"]})
        return next((block for block in answer["content"] if block["type"] == "tool_use"), {})

    async def _post(self, path: str, body: Item) -> Item:
        """Send a request, again where its connection breaks.

        What is stored has a key: another worker goes on with it, and it is carried out once. All else is lost with its
        worker, and is asked for anew.
        """
        headers = {**self._headers, **ANTHROPIC}
        if self._trace.kind == "chain":
            headers["Idempotency-Key"] = uuid4().hex
        told = await _sent(self._http, path, body, self._tally, self._trace.name, headers)
        self._tally.turns += 1
        self._tally.answered[self._trace.name].add(own_part(told["id"]))
        return told


async def _sent(
    http: aiohttp.ClientSession, path: str, body: Item, tally: Tally, name: str, headers: Mapping[str, str]
) -> Item:
    """Send a request of a roll-out, again where its connection breaks; return its answer."""
    problem = ""
    for _ in range(TRIES):
        try:
            async with http.post(path, json=body, headers=headers) as answer:
                if answer.status == 200:
                    told: Item = await answer.json()
                    return told
                problem = f"{answer.status} {_IDS.sub('…', await answer.text())[:200]}"
                if "rollout_exists" in problem:  # a try whose answer was lost has made it
                    return {}
        except aiohttp.ClientError as error:
            problem = type(error).__name__
        tally.problems[problem] += 1
        if problem.startswith(("400", "404", "422")):  # it would be refused again
            break
        tally.retried += 1
        await asyncio.sleep(PAUSE)
    raise RuntimeError(f"{name}: in vain, and the last time: {problem}")


async def roll(http: aiohttp.ClientSession, trace: Trace, tally: Tally) -> None:
    """Run a roll-out to its end."""
    chance = random.Random(trace.name)
    await _sent(http, "/v1/rollouts", {"id": trace.name, "group": trace.group}, tally, trace.name, {})
    main = Conversation(http, trace, "main", tally)
    new = [main.user(f"{trace.group}: mend what is broken.")]
    for turn in range(trace.turns):
        if turn == trace.summary:
            main.go_back(([], None))
            new = [main.user(f"{trace.group}: so far: {_text(chance)}. Go on.")]
        before = main.mark()
        call = await main.ask(new)
        if turn == trace.fork:
            main.go_back(before)
            call = await main.ask(new)
        if turn == trace.sub_agent:
            await _converse(Conversation(http, trace, "sub-agent", tally), chance, SUB_TURNS)
        done = f" {DONE}" if turn == trace.turns - 2 else ""
        new = [main.output_of(call, f"{_text(chance)}{done}")] if call else []
    await _sent(http, f"/v1/rollouts/{trace.name}/reward", {"reward": chance.random()}, tally, trace.name, {})
    await _sent(http, f"/v1/rollouts/{trace.name}/end", {}, tally, trace.name, {})


async def _converse(conversation: Conversation, chance: random.Random, turns: int) -> None:
    new = [conversation.user(f"A smaller task: {_text(chance)}")]
    for turn in range(turns):
        call = await conversation.ask(new)
        done = f" {DONE}" if turn == turns - 2 else ""
        new = [conversation.output_of(call, f"{_text(chance)}{done}")] if call else []


def own_part(response_id: str) -> str:
    """Return what the ids of a response have in common, whatever its API calls it."""
    return response_id.rpartition("_")[2]


def _text(chance: random.Random) -> str:
    return " ".join(chance.choices(WORDS, k=OUTPUT_WORDS))
