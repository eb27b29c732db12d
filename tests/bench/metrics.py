"""The row about metrics: what they cost a token, beside what an event costs."""

import asyncio
import time
from statistics import median

from responses_app.observing.metrics import Metrics
from tests.bench.client import WebSocket, create
from tests.bench.events import CONNECTIONS, burst, interleaved
from tests.bench.report import Result
from tests.bench.servers import Bench

NOTES = 200_000
ROUNDS = 9


def metrics(bench: Bench) -> list[Result]:
    """Two whole servers side by side, one with METRICS=off; and what it takes to measure a token, alone."""
    on, off = asyncio.run(_servers(bench))
    note = _note_us()
    return [
        Result(
            name="metrics",
            what=f"CPU per WebSocket event, {CONNECTIONS} connections bursting, with metrics / METRICS=off",
            measured=median(mine / theirs for mine, theirs in zip(on, off, strict=True)),
            target=1.03,
            details={"with µs": median(on), "without µs": median(off)},
        ),
        Result(
            name="metrics",
            what="measuring a token alone / CPU of a WebSocket event",
            measured=note / median(off),
            details={"a token µs": note},
        ),
    ]


def _note_us() -> float:
    meter = Metrics().model("m").turn()
    assert meter is not None
    costs = []
    for _ in range(ROUNDS):
        began = time.process_time()
        for _ in range(NOTES):
            meter.note(1)
        costs.append((time.process_time() - began) / NOTES * 1e6)
    return median(costs)


async def _servers(bench: Bench) -> tuple[list[float], list[float]]:
    settings = {"on": {}, "off": {"metrics": "off"}}
    servers = [bench.fresh_server(name=f"metrics-{name}", **each) for name, each in settings.items()]
    for server in servers:
        server.start()
    try:
        sockets = {s.port: [await WebSocket.connect(s.port) for _ in range(CONNECTIONS)] for s in servers}
        pairs = [(server, lambda s=server: burst(sockets[s.port], [create()])) for server in servers]
        on, off = await interleaved(bench, pairs, ROUNDS)
        for opened in sockets.values():
            for socket in opened:
                socket.close()
    finally:
        for server in servers:
            server.stop()
    return on.cpu, off.cpu
