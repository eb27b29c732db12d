"""Rows about what a connection costs: opening it, and frames that come in."""

import asyncio
import time
from collections.abc import Iterator
from statistics import median

from bench.client import WebSocket
from bench.report import Result, beside
from bench.servers import BARE, OURS, Bench, BenchServer

ROUNDS = 5
FRAMES = 1000
OPENED = 500


def opening(bench: Bench) -> Iterator[Result]:
    """What it costs to open a WebSocket and to close it."""
    bench.keep_frames([], [])  # the bare server is asked for none
    ours, bare = asyncio.run(_opening(bench))
    yield beside(
        f"CPU to open a connection, {OPENED} one after the other, and to close it",
        ours,
        yardstick="a bare daphne",
        its=bare,
        unit="ms",
        target=1.3,
    )


async def _opening(bench: Bench) -> tuple[list[float], list[float]]:
    """Return milliseconds of CPU of each round, of our server and of a bare one."""
    costs: dict[str, list[float]] = {OURS: [], BARE: []}
    for number in bench.report.rounds(ROUNDS, warm_up=True):
        for application, kept in costs.items():
            cost = await _opened(bench.server(application))
            kept += [cost] if number else []
    return costs[OURS], costs[BARE]


async def _opened(server: BenchServer) -> float:
    cpu = server.cpu_seconds()
    sockets = [await WebSocket.connect(server.port) for _ in range(OPENED)]
    for socket in sockets:
        socket.close()
    await asyncio.sleep(0.2)
    return (server.cpu_seconds() - cpu) / OPENED * 1e3


def inbound(bench: Bench) -> Iterator[Result]:
    """How long a frame takes to be read and answered (with an error), on one connection."""
    latencies, cpu = asyncio.run(_inbound(bench))
    yield Result(
        what="inbound frame answered with an error, p50 (information)",
        measured=median(latencies) * 1e6,
        unit="µs",
        details={"CPU µs": cpu * 1e6, "p99 µs": sorted(latencies)[len(latencies) * 99 // 100] * 1e6},
    )


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
