"""The row about exports of roll-outs: in this process, no server."""

import random
import time
from collections.abc import Iterator
from statistics import median

from bench.report import Result
from bench.servers import Bench
from engine.formats.base import as_tokens
from engine.types import WeightsSpan
from responses_app.extensions.training.exports import JsonRows
from responses_app.extensions.training.training_rows import FORMATS
from responses_app.protocol.rollouts.generations import EngineCall, Generation, as_logprobs
from responses_app.protocol.rollouts.tree import tree_of
from tests.kit.recorded import head

# What a coding agent's turns are in the middle: 43 of them, which end at 142,000 tokens of prompt, and answer with 444.
TURNS, FIRST, TAIL, SAMPLED = 43, 20_000, 2_462, 444
ROUNDS = 5


def exporting(bench: Bench) -> Iterator[Result]:
    """What a token of a roll-out costs in each format.

    Each token counts once, however often a format has it; the tree of them is made anew each time.
    """
    generations = _conversation()
    tokens = sum(len(each.tail) + len(each.call.sampled) for each in generations)
    for name, rows in FORMATS.items():
        seconds = []
        for number in range(ROUNDS):
            bench.report.step(f"{name}: round {number + 1} of {ROUNDS}")
            began, writer = time.process_time(), JsonRows()
            for row in rows(tree_of(head(), generations)):
                writer.add(row)
            seconds.append(time.process_time() - began)
        yield Result(
            what=f"to export a token of a roll-out as {name}: CPU",
            measured=median(seconds) / tokens * 1e6,
            unit="µs",
            target=5.0,  # 200,000 tokens/s
            details={"tokens/s": round(tokens / median(seconds))},
        )


def _conversation() -> list[Generation]:
    chance, found, shared = random.Random(1), list[Generation](), 0
    for number in range(TURNS):
        tail = as_tokens(chance.randrange(200_000) for _ in range(FIRST if number == 0 else TAIL))
        call = EngineCall(
            response_id=f"resp_{number}",
            turn=number,
            sampled=as_tokens(chance.randrange(200_000) for _ in range(SAMPLED)),
            logprobs=as_logprobs([-chance.random() * 5 for _ in range(SAMPLED)]),
            weights=[WeightsSpan("1", SAMPLED)],
            finish="stop",
        )
        parent = number - 1 if number else None
        found.append(Generation(number=number, call=call, parent=parent, shared=shared, near=parent, tail=tail))
        shared = found[-1].whole
    return found
