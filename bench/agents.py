"""The row about recording agents as they are: long prompts that grow, and a few tokens sampled in each turn."""

import asyncio
import json
from collections.abc import Iterator
from statistics import median

import httpx

from bench.client import post
from bench.report import Result, ratio
from bench.servers import OURS, Bench, BenchServer

TURNS = 43
PROMPT_TOKENS = 142_000  # of the last turn
SAMPLED_TOKENS = 444  # in all turns
AGENTS = 1  # at once
ROUNDS = 2
COST_TARGET = 1.05
TEXT = " ".join(["so"] * (SAMPLED_TOKENS // TURNS - 4))
SAID = f"<|channel|>final<|message|>{TEXT}<|return|>"
WORDS = PROMPT_TOKENS // TURNS - SAMPLED_TOKENS // TURNS - 8  # about a token each


def agents(bench: Bench) -> Iterator[Result]:
    """What a turn of an agent costs in a roll-out, over one that nobody records."""
    recorded, plain, usage = asyncio.run(_agents(bench))
    extra = usage["bytes"] - 3 * usage["prompt_tokens"]
    yield Result(
        what=f"CPU a turn, {TURNS} turns with up to {PROMPT_TOKENS:,} tokens, recorded / not recorded",
        measured=ratio(recorded, plain),
        target=COST_TARGET,
        details={
            "recorded ms": median(recorded) * 1e3,
            "plain ms": median(plain) * 1e3,
            "bytes a turn beside its prompt": extra / usage["generations"],
            "bytes a new token of a prompt": 3.0,
        },
    )


async def _agents(bench: Bench) -> tuple[list[float], list[float], dict[str, int]]:
    script = bench.folder / "agents.json"
    script.write_text(json.dumps([{"say": SAID}]))
    options = json.dumps({"max_model_len": 2 * PROMPT_TOKENS})
    server = bench.fresh_server(OURS, "agents", engine="scripted", engine_script=script, engine_options=options)

    async def work(number: int, recorded: bool) -> None:
        await asyncio.gather(*(_agent(server, f"{number}-{each}", recorded) for each in range(AGENTS)))

    with server:
        both = await bench.compared(server, work, rounds=ROUNDS)
        async with httpx.AsyncClient() as http:
            usage = (await http.get(f"{server.base_url}/rollouts/r1-0?tree=false")).json()["usage"]
    assert usage["generations"] == TURNS
    recorded, plain = ([cost / (AGENTS * TURNS) for cost in costs] for costs in both)
    return recorded, plain, usage


async def _agent(server: BenchServer, name: str, recorded: bool) -> None:
    """Let an agent work as most do: each request has the whole conversation, and nothing is stored."""
    base = f"/rollouts/r{name}/v1" if recorded else "/v1"
    items: list[object] = []
    for turn in range(TURNS):
        # The texts of agents that run side by side are the same: so are those of attempts at one task.
        items.append({"role": "user", "content": f"Turn {turn}:{' word' * WORDS}"})
        body = {"input": items, "store": False, "stream": True}
        await post(server.port, f"{base}/responses", json.dumps(body).encode())
        items.append({"role": "assistant", "content": TEXT})
