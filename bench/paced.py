"""The row about one worker at an engine's pace: many streams, each of so many tokens a second."""

import asyncio
import json
import time
from collections.abc import Iterator
from statistics import median

from bench.client import COMPLETED, WebSocket, create
from bench.report import Result
from bench.servers import Bench, BenchServer

STREAMS = 400
TOKENS_PER_SECOND = 60
COUNT_TO = 300  # what the demo engine is asked for: 600 tokens, 10 s
ROUNDS = 3
DELTA = b'{"type":"response.output_text.delta"'


class PacedSocket(WebSocket):
    """Keeps how long a stream was silent between two arrivals, and how many tokens it had."""

    def __init__(self, path: str, port: int) -> None:
        super().__init__(path, port)
        self.gaps: list[float] = []  # seconds
        self.tokens = 0
        self._last = 0.0

    def begin(self) -> None:
        """Ask for a stream."""
        self.gaps, self._last = [], 0.0
        self.send([create(f"count to {COUNT_TO}")], responses=1)

    def _frame(self, data: bytes, head: int, start: int, end: int) -> None:
        super()._frame(data, head, start, end)
        if data.startswith(DELTA, start):
            now = time.perf_counter()
            if self._last:
                self.gaps.append(now - self._last)
            self._last = now
        elif data.startswith(COMPLETED, start):
            self.tokens = json.loads(data[start:end])["response"]["usage"]["output_tokens"]


def paced(bench: Bench) -> Iterator[Result]:
    """Whether one worker carries them, how regularly, and what a token costs."""
    options = json.dumps({"tokens_per_second": TOKENS_PER_SECOND})
    with bench.fresh_server(name="paced", engine="demo", engine_options=options) as server:
        rates, gaps, costs, events = asyncio.run(_paced(bench, server))
    wanted = STREAMS * TOKENS_PER_SECOND
    what = f"{STREAMS} streams at {TOKENS_PER_SECOND} tokens/s"
    yield Result(
        what=f"{what}: p99 of the gaps between a stream's deltas",
        measured=median(gaps) * 1e3,
        unit="ms",
        target=150.0,
        details={"tokens/s": median(rates), "wanted": float(wanted), "events a token": median(events)},
    )
    yield Result(what=f"{what}: CPU per token", measured=median(costs), unit="µs", target=25.0)
    yield Result(what=f"{what}: wanted / had tokens/s", measured=wanted / median(rates), target=1.05)


async def _paced(bench: Bench, server: BenchServer) -> tuple[list[float], list[float], list[float], list[float]]:
    sockets = [await PacedSocket.connect(server.port) for _ in range(STREAMS)]
    rates, gaps, costs, events = [], [], [], []
    for _ in bench.report.rounds(ROUNDS):
        cpu, began = server.cpu_seconds(), time.perf_counter()
        for socket in sockets:
            socket.begin()
        await asyncio.gather(*(socket.done for socket in sockets))
        wall = time.perf_counter() - began
        tokens = sum(socket.tokens for socket in sockets)
        silences = sorted(gap for socket in sockets for gap in socket.gaps)
        rates.append(tokens / wall)
        gaps.append(silences[len(silences) * 99 // 100])
        costs.append((server.cpu_seconds() - cpu) / tokens * 1e6)
        events.append(sum(socket.events for socket in sockets) / tokens)
    for socket in sockets:
        socket.close()
    return rates, gaps, costs, events
