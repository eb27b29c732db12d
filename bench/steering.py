"""The row about steering: from the user's word to the first event of the response that has heard it."""

import asyncio
import time
from collections.abc import Iterator
from statistics import median

from bench.report import Result
from bench.servers import Bench
from tests.kit.clients import Socket

ROUNDS = 40


def steer(bench: Bench) -> Iterator[Result]:
    """How long a user waits who says something while the model thinks; the demo engine speaks as fast as it can."""
    with bench.fresh_server(name="steer", engine="demo") as server:
        waits, boundaries = asyncio.run(_steered(server.ws_url))
    yield Result(
        what="steer to the successor's first event, demo engine",
        measured=median(waits) * 1e3,
        unit="ms",
        target=50.0,
        details={
            "worst ms": max(waits) * 1e3,
            "from the steered one's last event ms": median(boundaries) * 1e3,
            "rounds": ROUNDS,
        },
    )


async def _steered(url: str) -> tuple[list[float], list[float]]:
    """Return seconds from each steer, and from the end of what it steered, to the successor."""
    waits, boundaries = [], []
    async with await Socket.open(url) as socket:
        for _ in range(ROUNDS):
            await socket.create("count to 300", store=False)
            response_id = (await socket.until("response.created"))[0]["response"]["id"]
            began = time.perf_counter()
            await socket.send({"type": "response.steer", "previous_response_id": response_id, "input": "count to 3"})
            while (await socket.next())["type"] not in ("response.incomplete", "response.completed"):
                pass
            ended = time.perf_counter()
            while (await socket.next())["type"] != "response.created":
                pass
            now = time.perf_counter()
            waits.append(now - began)
            boundaries.append(now - ended)
            await socket.answer()
    return waits, boundaries
