"""Sessions of agents: prompts that grow with every turn, tools between them, sub-agents, shared beginnings.

The shape is that of published traces of coding agents: in the median 43 turns, a last prompt of 142,000 tokens and 444
tokens of output a turn; sub-agents in 44 % of the sessions. What a tool takes is drawn from a distribution of its own,
log-normal, so that the whole has a heavy tail: half of all waits are over in about a second, and one in 50 takes
minutes, because a person is asked.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import exp, log

TURNS, TURNS_SPREAD, MAX_TURNS = 43, 0.7, 250
SUB_TURNS = 12
OUTPUT, OUTPUT_SPREAD = 444, 0.9
RESULT, RESULT_SPREAD = 1_150, 1.2  # tokens that a tool returns
TASK = 3_000  # tokens of what the user asks, with the files that are shown at once
WITH_SUB_AGENTS = 0.44
MAX_CONTEXT = 200_000  # tokens: then the harness sums up, and its prompt begins anew
SUMMARY = 8_000  # tokens
# A harness's own prompt with its tools, and that of its sub-agents: tokens.
HARNESSES = ((24_000, 9_000), (16_000, 6_000), (11_000, 5_000), (7_000, 4_000))


@dataclass(frozen=True, slots=True)
class Tool:
    """What stands between two turns."""

    name: str
    share: float  # of all calls
    seconds: float  # in the median
    spread: float  # of their logarithm


TOOLS = (
    Tool("read", 0.27, 0.3, 0.6),
    Tool("edit", 0.20, 0.3, 0.5),
    Tool("search", 0.15, 0.8, 0.8),
    Tool("shell", 0.24, 2.5, 1.3),
    Tool("tests", 0.09, 25.0, 1.0),
    Tool("web", 0.03, 4.0, 0.8),
    Tool("person", 0.02, 90.0, 1.2),
)
AGENTS = "agents"  # the tool whose wait is that for sub-agents


@dataclass(slots=True)
class Turn:
    """One request, and what happens behind it."""

    added: int  # tokens that its prompt has more than the last one with its output
    output: int  # tokens
    tool: str = ""  # that is called; "": it was the last turn
    wait: float = 0.0  # seconds that the tool takes
    agents: list["Session"] = field(default_factory=list)  # that run meanwhile: the next turn waits for all of them
    anew: bool = False  # its prompt begins anew behind the harness's own, with a summary


@dataclass(slots=True)
class Session:
    """A chain of turns."""

    name: str
    shared: str  # the beginning that it shares with others
    shared_tokens: int
    turns: list[Turn]

    def whole(self) -> Iterator["Session"]:
        """Yield it, and all of its sub-agents."""
        yield self
        for turn in self.turns:
            for agent in turn.agents:
                yield from agent.whole()

    def prompts(self) -> Iterator[int]:
        """Yield how long the prompt of each turn is."""
        tokens = self.shared_tokens
        for turn in self.turns:
            tokens = (self.shared_tokens if turn.anew else tokens) + turn.added
            yield tokens
            tokens += turn.output


def session(seed: object) -> Session:
    chance = random.Random(str(seed))
    harness = chance.randrange(len(HARNESSES))
    own, of_agents = HARNESSES[harness]
    made = _chain(chance, f"s{seed}", f"harness {harness}", own, TURNS)
    if chance.random() < WITH_SUB_AGENTS and len(made.turns) > 1:
        for place in {chance.randrange(len(made.turns) - 1) for _ in range(chance.randint(1, 3))}:
            turn = made.turns[place]
            turn.tool, turn.wait = AGENTS, 0.0
            turn.agents = [
                _chain(chance, f"{made.name}.{place}.{number}", f"agents of harness {harness}", of_agents, SUB_TURNS)
                for number in range(chance.randint(1, 4))
            ]
    return made


def _chain(chance: random.Random, name: str, shared: str, shared_tokens: int, turns: int) -> Session:
    count = min(MAX_TURNS, max(2, round(_drawn(chance, turns, TURNS_SPREAD))))
    made, tokens = list[Turn](), shared_tokens
    for number in range(count):
        added = round(_drawn(chance, RESULT if number else TASK, RESULT_SPREAD)) + 1
        output = round(_drawn(chance, OUTPUT, OUTPUT_SPREAD)) + 1
        anew = tokens + added + output > MAX_CONTEXT
        if anew:
            tokens, added = shared_tokens, SUMMARY
        tokens += added + output
        (tool,) = chance.choices(TOOLS, [each.share for each in TOOLS])
        wait = _drawn(chance, tool.seconds, tool.spread)
        made.append(Turn(added, output, tool.name, wait, anew=anew))
    made[-1].tool, made[-1].wait = "", 0.0
    return Session(name, shared, shared_tokens, made)


def _drawn(chance: random.Random, middle: float, spread: float) -> float:
    return exp(chance.gauss(log(middle), spread))
