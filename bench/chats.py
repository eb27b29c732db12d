"""What a chat completion and a message of Anthropic's API cost beside the same response: one run on other wires."""

import asyncio
import json
from collections.abc import Iterator
from functools import partial

from bench.client import post
from bench.events import CONNECTIONS, Samples, interleaved
from bench.report import Result, ratio
from bench.servers import OURS, Bench, BenchServer

RESPONSE = json.dumps({"input": "go", "stream": True, "store": False}).encode()
MESSAGE = json.dumps(
    {"model": "scripted", "max_tokens": 100_000, "messages": [{"role": "user", "content": "go"}], "stream": True}
).encode()
CHAT = json.dumps({"messages": [{"role": "user", "content": "go"}], "stream": True}).encode()


async def _posts(server: BenchServer, path: str, body: bytes) -> tuple[int, list[float]]:
    bodies = await asyncio.gather(*(post(server.port, path, body) for _ in range(CONNECTIONS)))
    return sum(chunk.count(b"data: {") for body in bodies for chunk in body), [0.0]


async def _sides(bench: Bench, path: str, body: bytes) -> list[Samples]:
    server = bench.server(OURS)
    sides = (("/v1/responses", RESPONSE), (path, body))
    return await interleaved(bench, [(server, partial(_posts, server, path, body)) for path, body in sides])


def chat(bench: Bench) -> Iterator[Result]:
    """Chunks of chat completions beside the events of responses, both as server-sent events."""
    yield _beside(bench, "Chat Completions", "chunk", "/v1/chat/completions", CHAT)


def messages(bench: Bench) -> Iterator[Result]:
    """Events of messages of Anthropic's API beside those of responses, both as server-sent events."""
    yield _beside(bench, "Messages", "message event", "/v1/messages", MESSAGE)


def _beside(bench: Bench, title: str, unit: str, path: str, body: bytes) -> Result:
    """Return the row of an API whose stream comes in such units."""
    response, other = asyncio.run(_sides(bench, path, body))
    return Result(
        what=f"{title}, {CONNECTIONS} streams at once, CPU per {unit} / per event of a response",
        measured=ratio(other.cpu, response.cpu),
        target=1.1,
        details={f"{unit} µs": other.cpu_us, "event µs": response.cpu_us},
    )
