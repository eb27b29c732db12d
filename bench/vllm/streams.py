"""Rows about streams: what a token costs the serving processes, and when a client has it."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median

from bench.report import Result, ratio
from bench.vllm.client import Answer, http, post, wake
from bench.vllm.cores import load_in_its_place
from bench.vllm.servers import Bench, Contender

ROUNDS = 5
SETTLE_SECONDS = 0.2  # after the last event, for what a server still has to do for it
MIN_RESPONSES = 2  # a round of a single stream has this many, one after the other
TEXT = " ".join(["The quick brown fox jumps over the lazy dog near the river"] * 41)
SCRIPT: list[dict[str, object]] = [{"when": "stream", "say": f"<|channel|>final<|message|>{TEXT}<|return|>"}]


@dataclass(slots=True)
class Samples:
    """What several rounds of one contender gave."""

    cpu: list[float] = field(default_factory=list)  # seconds per 1,000 tokens, of the serving processes
    front: list[float] = field(default_factory=list)  # of the one that the client talks to
    whole: list[float] = field(default_factory=list)  # the same with the engine core
    first: list[float] = field(default_factory=list)  # ms
    total: list[float] = field(default_factory=list)  # ms


def streams(bench: Bench) -> Iterator[Result]:
    """Server-sent events of all three, at several numbers of streams."""
    contenders = bench.compared("own", "by_server", "in_process")
    bench.speak(SCRIPT)
    for number in bench.shape.streams:
        with load_in_its_place():
            samples = asyncio.run(_measure(bench, contenders, number))
        yield from _costs(number, samples)
        yield from _times(number, samples)


def workers(bench: Bench) -> Iterator[Result]:
    """Two front ends on one engine core: our workers, and vLLM's own `--api-server-count 2`."""
    number = max(bench.shape.streams)
    contenders = bench.compared("api_servers", "workers")
    bench.speak(SCRIPT)
    with load_in_its_place():
        theirs, ours = asyncio.run(_measure(bench, contenders, number))
    yield Result(
        what=f"CPU per token, {number} SSE streams, 2 workers on one engine core / vLLM's 2 API servers",
        measured=ratio(ours.cpu, theirs.cpu),
        target=1.0,
        details={
            "ours s per 1,000": median(ours.cpu),
            "vLLM's own": median(theirs.cpu),
            "with the engine core": median(ours.whole),
            "vLLM's own with it": median(theirs.whole),
            "first delta ms": median(ours.first),
            "vLLM's own first": median(theirs.first),
            "N": len(ours.cpu),
        },
    )


async def _measure(bench: Bench, contenders: Sequence[Contender], number: int) -> list[Samples]:
    """Run the rounds of all contenders in turn, after one warm-up of each."""
    samples = [Samples() for _ in contenders]
    for turn in range(ROUNDS + 1):
        bench.report.step(f"{number} streams, round {turn} of {ROUNDS}" if turn else f"{number} streams, warm-up")
        for contender, kept in zip(contenders, samples, strict=True):
            await _round(contender, number, kept if turn else Samples())
    return samples


async def _round(contender: Contender, number: int, samples: Samples) -> None:
    clocks = (contender.cpu_seconds, contender.first_cpu_seconds, contender.whole_cpu_seconds)
    answers: list[Answer] = []
    async with http() as session:
        await wake(session, contender.url, number)
        began = [clock() for clock in clocks]
        for _ in range(-(-MIN_RESPONSES // number)):
            asked = (post(session, contender.url, input=f"stream {each}", store=False) for each in range(number))
            answers += await asyncio.gather(*asked)
    await asyncio.sleep(SETTLE_SECONDS)
    tokens = sum(answer.output_tokens for answer in answers)
    for clock, before, kept in zip(clocks, began, (samples.cpu, samples.front, samples.whole), strict=True):
        kept.append((clock() - before) / tokens * 1000)
    samples.first.append(median(answer.first for answer in answers) * 1000)
    samples.total.append(median(answer.total for answer in answers) * 1000)


def _costs(number: int, samples: Sequence[Samples]) -> Iterator[Result]:
    """Compare CPU. With one stream an engine step makes one token, and what a step costs is not shared."""
    own, by_server, in_process = samples
    targets = {"in process": (in_process, 1.0), "by server": (by_server, 1.2)}
    for name, (ours, target) in targets.items():
        yield Result(
            what=f"CPU per token, {number} SSE streams, ours {name} / vLLM's own",
            measured=ratio(ours.cpu, own.cpu),
            target=target if number > 1 else None,
            details={
                "ours s per 1,000": median(ours.cpu),
                "of it the process the client talks to": median(ours.front),
                "vLLM's own": median(own.cpu),
                "with the engine core": median(ours.whole),
                "vLLM's own with it": median(own.whole),
                "N": len(ours.cpu),
            },
        )


def _times(number: int, samples: Sequence[Samples]) -> Iterator[Result]:
    own, by_server, in_process = samples
    for name, ours in {"in process": in_process, "by server": by_server}.items():
        yield Result(
            what=f"time to first delta, {number} SSE streams, ours {name} / vLLM's own (information)",
            measured=ratio(ours.first, own.first),
            details={
                "ours ms": median(ours.first),
                "vLLM's own": median(own.first),
                "whole response ms": median(ours.total),
                "vLLM's own whole": median(own.total),
                "ratio of the whole": ratio(ours.total, own.total),
                "N": len(ours.first),
            },
        )
