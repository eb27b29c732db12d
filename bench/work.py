"""Rows about what a connection and a response cost: opening, storing, and frames that come in."""

import asyncio
import sqlite3
import time
from pathlib import Path
from statistics import median

from bench.client import WebSocket, create
from bench.report import Result, beside
from bench.servers import BARE, OURS, Bench, BenchServer

WRITERS = 50
RESPONSES = 20  # each of them, one after the other
BODY_BYTES = 2000  # of a short response as it is stored
ROUNDS = 5
FRAMES = 1000
OPENED = 500


def store(bench: Bench) -> list[Result]:
    """What it costs to store short responses, fifty at a time."""
    stored, unstored, commits, rate = asyncio.run(_store(bench))
    return [
        beside(
            "store",
            f"CPU to store a response, {WRITERS} at once, SQLite",
            [kept - not_kept for kept, not_kept in zip(stored, unstored, strict=True)],
            yardstick="two commits",
            its=commits,
            unit="µs",
            target=2.0,
            details={"stored µs": median(stored), "not stored µs": median(unstored), "stored/s": rate},
        )
    ]


async def _store(bench: Bench) -> tuple[list[float], list[float], list[float], float]:
    server = bench.server(OURS)
    sockets = [await WebSocket.connect(server.port) for _ in range(WRITERS)]
    costs: dict[bool, list[float]] = {True: [], False: []}
    rates, commits = [], []
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
        commits += [_two_commits(bench.folder / f"commits-{number}.sqlite3")] if number else []
    for socket in sockets:
        socket.close()
    return costs[True], costs[False], commits, median(rates)


def _two_commits(path: Path) -> float:
    """Return the CPU, in µs, of a row that is put in, and changed by a second commit when its response ends."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=NORMAL")  # as our server has it
    connection.execute("CREATE TABLE response (id TEXT PRIMARY KEY, body TEXT, log BLOB)")
    began = time.process_time()
    for number in range(WRITERS * RESPONSES):
        connection.execute("INSERT INTO response VALUES (?, ?, ?)", (f"resp_{number}", "x" * BODY_BYTES, b""))
        connection.execute(
            "UPDATE response SET body = ?, log = ? WHERE id = ?", ("y" * BODY_BYTES, b"z" * 40, f"resp_{number}")
        )
    took = time.process_time() - began
    connection.close()
    return took / (WRITERS * RESPONSES) * 1e6


def opening(bench: Bench) -> list[Result]:
    """What it costs to open a WebSocket and to close it."""
    bench.keep_frames([], [])  # the bare server is asked for none
    ours, bare = asyncio.run(_opening(bench))
    return [
        beside(
            "opening",
            f"CPU to open a connection, {OPENED} one after the other, and to close it",
            ours,
            yardstick="a bare daphne",
            its=bare,
            unit="ms",
            target=1.3,
        )
    ]


async def _opening(bench: Bench) -> tuple[list[float], list[float]]:
    """Return milliseconds of CPU of each round, of our server and of a bare one."""
    costs: dict[str, list[float]] = {OURS: [], BARE: []}
    for number in range(ROUNDS + 1):
        bench.report.step(f"round {number} of {ROUNDS}" if number else "warm-up")
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
