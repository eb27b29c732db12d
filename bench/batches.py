"""Rows about batches: what a line costs beside the same response alone, and the memory that a long batch takes."""

import asyncio
import json
import time
from collections.abc import Iterator
from statistics import median

import aiohttp
import httpx

from bench.report import Result, ratio
from bench.servers import Bench, BenchServer

LINES, ROUNDS = 400, 5
AT_ONCE = 32  # as many as a worker runs lines
LONG = 50_000  # lines of the long batch
MIB = 1024 * 1024
BODY = {"model": "gpt-oss", "input": "short"}


def batches(bench: Bench) -> Iterator[Result]:
    """A line of a batch beside the same response alone, and a long batch."""
    with bench.fresh_server(name="batches") as server:
        yield _cost(bench, server)
        yield _long(bench, server)


def _cost(bench: Bench, server: BenchServer) -> Result:
    model = httpx.get(f"{server.base_url}/models", timeout=30).json()["data"][0]["id"]
    body = {**BODY, "model": model}
    alone, lines = list[float](), list[float]()
    for number in bench.report.rounds(ROUNDS, warm_up=True):
        cpu = server.cpu_seconds()
        asyncio.run(_alone(server, body))
        time.sleep(0.2)
        between = server.cpu_seconds()
        _batch(server, (body for _ in range(LINES)))
        time.sleep(0.2)
        if number:
            alone.append((between - cpu) / LINES * 1e6)
            lines.append((server.cpu_seconds() - between) / LINES * 1e6)
    return Result(
        what="a line of a batch / the same response alone, CPU, SQLite",
        measured=ratio(lines, alone),
        target=0.9,
        details={"line µs": median(lines), "alone µs": median(alone)},
    )


async def _alone(server: BenchServer, body: object) -> None:
    left = iter(range(LINES))

    async def ask(session: aiohttp.ClientSession) -> None:
        for _ in left:
            async with session.post(f"{server.base_url}/responses", json=body) as answer:
                assert answer.status == 200, await answer.text()
                await answer.read()

    async with aiohttp.ClientSession() as session:
        await asyncio.gather(*(ask(session) for _ in range(AT_ONCE)))


def _batch(server: BenchServer, bodies: Iterator[object], *, seconds: float = 60.0) -> int:
    """Run a batch to its end; return how many lines were answered well."""
    content = b"".join(
        json.dumps({"custom_id": str(number), "method": "POST", "url": "/v1/responses", "body": body}).encode() + b"\n"
        for number, body in enumerate(bodies)
    )
    with httpx.Client(base_url=server.base_url, timeout=120) as client:
        file = client.post("/files", files={"file": ("a.jsonl", content)}, data={"purpose": "batch"}).json()
        asked = {"input_file_id": file["id"], "endpoint": "/v1/responses", "completion_window": "24h"}
        batch = client.post("/batches", json=asked).json()
        deadline = time.monotonic() + seconds
        while batch["status"] not in ("completed", "failed", "expired", "cancelled"):
            assert time.monotonic() < deadline, batch
            time.sleep(0.2)  # a look costs as much as a line
            batch = client.get(f"/batches/{batch['id']}").json()
    assert batch["status"] == "completed", batch
    return int(batch["request_counts"]["completed"])


def _long(bench: Bench, server: BenchServer) -> Result:
    bench.report.step(f"{LONG:,} lines")
    model = httpx.get(f"{server.base_url}/models", timeout=30).json()["data"][0]["id"]
    body = {**BODY, "model": model, "store": False, "instructions": "x" * 1000}
    server.forget_peak()
    before, began = server.memory_bytes(), time.perf_counter()
    done = _batch(server, (body for _ in range(LONG)), seconds=1800)
    seconds = time.perf_counter() - began
    return Result(
        what=f"memory at its peak beside {LONG:,} lines",
        measured=(server.peak_memory_bytes() - before) / MIB,
        unit="MiB",
        target=150.0,
        holds=done == LONG,
        details={"seconds": seconds, "lines/s": LONG / seconds, "before MiB": before / MIB},
    )
