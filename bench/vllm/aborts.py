"""The row about aborts: how long the engine goes on for a client that has gone."""

import asyncio
import time
from collections.abc import Iterator
from statistics import median

from bench.report import Result
from bench.vllm.client import begin, http, wake
from bench.vllm.cores import load_in_its_place
from bench.vllm.servers import Bench, Contender

ROUNDS = 10
PATIENCE = 10.0  # seconds
TARGET_MS = 100.0
SCRIPT: list[dict[str, object]] = [{"when": "endless", "say": f"<|channel|>final<|message|>{'word ' * 8000}<|return|>"}]


def aborts(bench: Bench) -> Iterator[Result]:
    """Measure from the client's disconnect to the engine's last request gone."""
    contenders = bench.compared("own", "by_server", "in_process_with_metrics")
    bench.speak(SCRIPT)
    with load_in_its_place():
        own, *ours = asyncio.run(_measure(bench, contenders))
    for contender, times in zip(contenders[1:], ours, strict=True):
        yield Result(
            what=f"from the client's disconnect to the engine's request gone, {contender.name}",
            measured=median(times),
            unit="ms",
            target=TARGET_MS,
            details={"slowest": max(times), "vLLM's own": median(own), "N": len(times)},
        )


async def _measure(bench: Bench, contenders: list[Contender]) -> list[list[float]]:
    times: list[list[float]] = [[] for _ in contenders]
    for turn in range(ROUNDS + 1):
        bench.report.step(f"disconnect {turn} of {ROUNDS}" if turn else "warm-up")
        for contender, kept in zip(contenders, times, strict=True):
            taken = await _abort(contender)
            kept += [taken * 1000] if turn else []
    return times


async def _abort(contender: Contender) -> float:
    """Disconnect in the middle of a stream and wait for vLLM's scheduler to run nothing; return how long it took."""
    async with http() as session:
        await wake(session, contender.url)
        answer = await begin(session, contender.url, input="endless", store=False)
        _wait(contender, running=True)
        answer.close()
        await asyncio.sleep(0)
        return _wait(contender, running=False)


def _wait(contender: Contender, *, running: bool) -> float:
    """Ask until vLLM runs something, or nothing; each look takes 2 ms or so."""
    began = time.perf_counter()
    while bool(contender.running()) != running:
        assert time.perf_counter() - began < PATIENCE, f"{contender.name}: running is not {running}"
        time.sleep(0.002)
    return time.perf_counter() - began
