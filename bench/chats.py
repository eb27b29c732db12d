"""What a chat completion costs beside the same response: the same run, told on another wire."""

import asyncio
import json
from functools import partial
from statistics import median

from bench.client import post
from bench.events import CONNECTIONS, Samples, interleaved
from bench.report import Result
from bench.servers import OURS, Bench, BenchServer

RESPONSE = json.dumps({"input": "go", "stream": True, "store": False}).encode()
CHAT = json.dumps({"messages": [{"role": "user", "content": "go"}], "stream": True}).encode()


async def _posts(server: BenchServer, path: str, body: bytes) -> tuple[int, list[float]]:
    bodies = await asyncio.gather(*(post(server.port, path, body) for _ in range(CONNECTIONS)))
    return sum(chunk.count(b"data: {") for body in bodies for chunk in body), [0.0]


async def _sides(bench: Bench) -> list[Samples]:
    server = bench.server(OURS)
    sides = (("/v1/responses", RESPONSE), ("/v1/chat/completions", CHAT))
    return await interleaved(bench, [(server, partial(_posts, server, path, body)) for path, body in sides])


def chat(bench: Bench) -> list[Result]:
    """Chunks of chat completions beside the events of responses, both as server-sent events."""
    response, chunk = asyncio.run(_sides(bench))
    return [
        Result(
            name="chat",
            what=f"Chat Completions, {CONNECTIONS} streams at once, CPU per chunk / per event of a response",
            measured=median(ours / theirs for ours, theirs in zip(chunk.cpu, response.cpu, strict=True)),
            target=1.1,
            details={"chunk µs": chunk.cpu_us, "event µs": response.cpu_us},
        )
    ]
