"""The row about roll-outs: what recording a token costs, and what it takes."""

import asyncio
import json
from collections.abc import Iterator
from statistics import median

import httpx

from bench.client import post
from bench.report import Result, ratio
from bench.servers import OURS, Bench, BenchServer
from tests.kit.fake_vllm import MODEL
from tests.kit.vllm_process import VllmProcess

STREAMS = 50
RATE = 60  # tokens per second and stream
WORDS = 300  # about two tokens each
ROUNDS = 3
COST_TARGET = 1.05
BYTES_TARGET = 10.0
SAID = f"<|channel|>final<|message|>{' '.join(str(number) for number in range(WORDS))}<|return|>"


def rollouts(bench: Bench) -> Iterator[Result]:
    """What a token costs in a roll-out, over one that nobody records; and the bytes that are kept of one.

    Once with the scripted engine, which makes up log probabilities in the server's own process; and once with a server
    that speaks vLLM's wire, whose log probabilities are read of its events, as those of real engines are.
    """
    results, said, size = [], {"say": SAID, "delay": 1 / RATE}, 0.0
    script = bench.folder / "rollouts.json"
    script.write_text(json.dumps([said]))
    scripted = bench.fresh_server(OURS, "rollouts", engine="scripted", engine_script=script)
    with VllmProcess(said) as vllm:
        wired = bench.fresh_server(OURS, "rollouts-vllm", engine="vllm-server", engine_url=vllm.url, model=MODEL)
        for engine, server in {"the scripted engine": scripted, "vLLM's wire": wired}.items():
            recorded, plain, size = asyncio.run(_rollouts(bench, server))
            results.append(
                Result(
                    what=f"CPU a token, {STREAMS} streams of {engine}, recorded / not recorded",
                    measured=ratio(recorded, plain),
                    target=COST_TARGET,
                    details={"recorded µs": median(recorded), "plain µs": median(plain)},
                )
            )
    yield from results
    yield Result(
        what="bytes kept a sampled token, log probability included, prompts left out",
        measured=size,
        unit="B",
        target=BYTES_TARGET,
    )


async def _rollouts(bench: Bench, server: BenchServer) -> tuple[list[float], list[float], float]:
    async def streams(number: int, recorded: bool) -> None:
        names = [f"r{number}-{stream}" if recorded else "" for stream in range(STREAMS)]
        await asyncio.gather(*(_stream(server, name) for name in names))

    with server:
        both = await bench.compared(server, streams, rounds=ROUNDS)
        async with httpx.AsyncClient(verify=False) as http:
            usage = (await http.get(f"{server.base_url}/rollouts/r1-0?tree=false")).json()["usage"]
    recorded, plain = ([cost / (STREAMS * 2 * WORDS) * 1e6 for cost in costs] for costs in both)
    prompt = 3 * usage["prompt_tokens"]
    return recorded, plain, (usage["bytes"] - prompt) / usage["sampled_tokens"]


async def _stream(server: BenchServer, rollout: str) -> None:
    """Stream a response, in a roll-out of its own where that has a name."""
    base = f"/rollouts/{rollout}/v1" if rollout else "/v1"
    await post(server.port, f"{base}/responses", json.dumps({"input": "count", "stream": True}).encode())
