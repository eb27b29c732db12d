"""Rows about grammars: how much longer the engine takes for a token that a grammar holds it to.

The same prompt is gone on with freely and under a grammar, in turn: a thought where 20 tools could be called, and an
answer that has to fit a schema. Everything is sampled; nobody reads the text, and no server is between.
"""

import asyncio
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from itertools import count
from statistics import median

import orjson
from vllm.platforms import current_platform

from bench.report import Result
from bench.vllm.cores import EVERY, place_server
from bench.vllm.servers import Bench
from engine.backends.base import BaseEngine
from engine.formats.base import FunctionTool
from engine.formats.harmony.encoding import encode_harmony
from engine.formats.harmony.format import HarmonyFormat
from engine.types import CallRule, GenerationRequest, JsonSchema, SamplingOptions, TurnGrammar, TurnRules

ROUNDS = 9
TOKENS = 100  # of a generation
TOOLS = 20
MOST = 1.10  # times as long as without a grammar
FORMAT = HarmonyFormat()
PARAMETERS = {
    "type": "object",
    "properties": {
        "path": {"type": "string", "description": "Where it is."},
        "mode": {"enum": ["read", "write", "append"]},
        "lines": {"type": "array", "items": {"type": "integer", "minimum": 1}},
        "options": {
            "type": "object",
            "properties": {"recursive": {"type": "boolean"}, "encoding": {"type": ["string", "null"]}},
            "required": ["recursive", "encoding"],
            "additionalProperties": False,
        },
    },
    "required": ["path", "mode", "lines", "options"],
    "additionalProperties": False,
}
ROWS = {"type": "array", "items": PARAMETERS, "minItems": 50}  # so that no answer ends too early
_numbers = count(1)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A prompt, and the grammar that may hold what follows it."""

    name: str
    prompt: Sequence[int]
    grammar: TurnGrammar


def grammars(bench: Bench) -> Iterator[Result]:
    """Measure every case at every number of streams, with the grammar and without, in turn."""
    bench.stop()
    try:
        yield from asyncio.run(_measured(bench))
    finally:
        os.sched_setaffinity(0, EVERY)


async def _measured(bench: Bench) -> list[Result]:
    bench.report.step("starting vLLM in this process")
    # On a CPU vLLM turns bfloat16 logits into float32 and back to mask them: 8 ms for 16 streams, which no GPU takes.
    engine = bench.engine() if current_platform.is_cuda() else bench.engine(dtype="float32")
    await engine.start()
    try:
        place_server(os.getpid())
        several = _cases()
        for case in several:
            await engine.check_grammar(case.grammar)
        results = []
        for streams in bench.shape.streams:
            times: dict[tuple[str, bool], list[float]] = {}
            for turn in range(ROUNDS + 1):
                bench.report.step(f"{streams} streams, " + (f"round {turn} of {ROUNDS}" if turn else "warm-up"))
                for case in several:
                    for held in (False, True):
                        seconds = await _seconds_a_token(engine, case, streams, held=held)
                        times.setdefault((case.name, held), []).extend([seconds] if turn else [])
            results += [_result(case, streams, times) for case in several]
        return results
    finally:
        await engine.aclose()


def _cases() -> list[Case]:
    names = [f"tool_{number}" for number in range(TOOLS)]
    schema = orjson.dumps(PARAMETERS).decode()
    tools = TurnRules(calls=tuple(CallRule(name, JsonSchema(schema)) for name in names))
    functions = [FunctionTool(name, "Do something with a file.", schema) for name in names]
    rows = TurnRules(answer=JsonSchema(orjson.dumps(ROWS).decode()))
    return [
        _case(f"a thought, {TOOLS} tools", tools, "<|channel|>analysis<|message|>", functions),
        _case("an answer with a schema", rows, "<|channel|>final<|message|>", []),
    ]


def _case(name: str, rules: TurnRules, begun: str, functions: Sequence[FunctionTool]) -> Case:
    behind = encode_harmony(begun)
    frame = FORMAT.frame(instructions=None, functions=functions, effort="medium", date="2026-01-01")
    grammar = FORMAT.grammar(rules, behind)
    assert grammar is not None
    user = FORMAT.user("Have a look at the files.").tokens
    return Case(name=name, prompt=[*frame, *user, *FORMAT.generation_start(), *behind], grammar=grammar)


async def _seconds_a_token(engine: BaseEngine, case: Case, streams: int, *, held: bool) -> float:
    """Return how long a step took while all streams ran: from the last one's first token to the first one's last."""
    spans = await asyncio.gather(*(_span(engine, case, held=held) for _ in range(streams)))
    begin, end = max(span[0] for span in spans), min(span[1] for span in spans)
    return (end - begin) / (TOKENS - 1)


async def _span(engine: BaseEngine, case: Case, *, held: bool) -> tuple[float, float]:
    """Return when a stream's first and last tokens came."""
    request = GenerationRequest(
        request_id=f"bench-{next(_numbers)}",
        prompt_token_ids=case.prompt,
        sampling=SamplingOptions(max_output_tokens=TOKENS, temperature=1.0),
        grammar=case.grammar if held else None,
    )
    begin, tokens = 0.0, 0
    async with aclosing(engine.generate(request)) as chunks:
        async for chunk in chunks:
            begin = begin or time.perf_counter()
            tokens += len(chunk.token_ids)
    assert tokens == TOKENS, "the model of noise ended too early"
    return begin, time.perf_counter()


def _result(case: Case, streams: int, times: Mapping[tuple[str, bool], Sequence[float]]) -> Result:
    free, held = (times[case.name, each] for each in (False, True))
    pairs = [mine / other for mine, other in zip(held, free, strict=True)]
    return Result(
        what=f"engine's time a token, {case.name}, {streams} streams, with its grammar / without",
        measured=median(pairs),
        target=MOST,
        details={
            "ms a token": 1000 * median(held),
            "without": 1000 * median(free),
            "ms more": 1000 * (median(held) - median(free)),
            "from": min(pairs),
            "to": max(pairs),
            "N": len(pairs),
        },
    )
