"""Rows about what a connection and a response cost: opening, storing, and frames that come in."""

import asyncio
import time
from statistics import median

from bench.client import WebSocket, create
from bench.report import Result
from bench.servers import OURS, Bench

WRITERS = 50
RESPONSES = 20  # each of them, one after the other
ROUNDS = 5
FRAMES = 1000
OPENED = 500


def store(bench: Bench) -> list[Result]:
    """What it costs to store short responses, fifty at a time."""
    stored, unstored, rate = asyncio.run(_store(bench))
    return [
        Result(
            name="store",
            what=f"CPU to store a response, {WRITERS} at once, SQLite",
            measured=median(kept - not_kept for kept, not_kept in zip(stored, unstored, strict=True)),
            unit="µs",
            target=250.0,
            details={"stored µs": median(stored), "not stored µs": median(unstored), "stored/s": rate},
        )
    ]


async def _store(bench: Bench) -> tuple[list[float], list[float], float]:
    server = bench.server(OURS)
    sockets = [await WebSocket.connect(server.port) for _ in range(WRITERS)]
    costs: dict[bool, list[float]] = {True: [], False: []}
    rates = []
    for number in range(ROUNDS + 1):
        bench.report.step(f"round {number} of {ROUNDS}" if number else "warm-up")
        for stored, kept in costs.items():
            cpu, began = server.cpu_seconds(), time.perf_counter()
            for socket in sockets:
                socket.send([create("short", store=stored)] * RESPONSES, responses=RESPONSES)
            await asyncio.gather(*(socket.done for socket in sockets))
            wall = time.perf_counter() - began
            await asyncio.sleep(0.1)
            if number:
                kept.append((server.cpu_seconds() - cpu) / (WRITERS * RESPONSES) * 1e6)
                rates += [WRITERS * RESPONSES / wall] if stored else []
    for socket in sockets:
        socket.close()
    return costs[True], costs[False], median(rates)


def opening(bench: Bench) -> list[Result]:
    """What it costs to open a WebSocket and to close it."""
    costs = asyncio.run(_opening(bench))
    return [
        Result(
            name="opening",
            what=f"CPU to open a connection, {OPENED} one after the other, and to close it",
            measured=median(costs) * 1e3,
            unit="ms",
            target=0.5,
            details={"best ms": min(costs) * 1e3},
        )
    ]


async def _opening(bench: Bench) -> list[float]:
    server = bench.server(OURS)
    costs = []
    for number in range(ROUNDS + 1):
        bench.report.step(f"round {number} of {ROUNDS}" if number else "warm-up")
        cpu = server.cpu_seconds()
        sockets = [await WebSocket.connect(server.port) for _ in range(OPENED)]
        for socket in sockets:
            socket.close()
        await asyncio.sleep(0.2)
        costs += [(server.cpu_seconds() - cpu) / OPENED] if number else []
    return costs


def inbound(bench: Bench) -> list[Result]:
    """How long a frame takes to be read and answered (with an error), on one connection."""
    latencies, cpu = asyncio.run(_inbound(bench))
    return [
        Result(
            name="inbound",
            what="inbound frame answered with an error, p50 (information)",
            measured=median(latencies) * 1e6,
            unit="µs",
            details={"CPU µs": cpu * 1e6, "p99 µs": sorted(latencies)[len(latencies) * 99 // 100] * 1e6},
        )
    ]


async def _inbound(bench: Bench) -> tuple[list[float], float]:
    server = bench.server(OURS)
    socket = await WebSocket.connect(server.port)
    frame = b'{"type":"response.unknown"}'
    for _ in range(FRAMES // 10):
        await socket.ask(frame)
    latencies, cpu = [], server.cpu_seconds()
    for _ in range(FRAMES):
        began = time.perf_counter()
        await socket.ask(frame)
        latencies.append(time.perf_counter() - began)
    socket.close()
    return latencies, (server.cpu_seconds() - cpu) / FRAMES
