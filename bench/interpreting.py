"""What the code interpreter costs: a container's start, a call in one that is warm, and its memory while it waits."""

import asyncio
import time
from statistics import median

from bench.report import Result
from bench.servers import Bench
from responses_app.protocol.setting import MIB
from responses_app.tools.sandbox.base import SandboxSettings
from responses_app.tools.sandbox.sandboxes import Bubblewrap
from responses_app.tools.sandbox.session import SandboxSession
from tests.kit.sandboxes import plain_python

CONTAINERS = 50
CALLS = 50


def interpreting(bench: Bench) -> list[Result]:
    """Start containers of bubblewrap one after another, call the last one, and look at the memory of all."""
    starts, calls, memory = asyncio.run(_measured())
    return [
        Result(
            name="interpreter",
            what="starting a container",
            measured=median(starts),
            unit="ms",
            target=400.0,
            details={"the slowest, ms": max(starts)},
        ),
        Result(
            name="interpreter",
            what="a call in a warm container",
            measured=median(calls),
            unit="ms",
            target=15.0,
            details={"the slowest, ms": max(calls)},
        ),
        Result(
            name="interpreter",
            what=f"memory of each of {CONTAINERS} containers that wait",
            measured=memory,
            unit="MiB",
            target=40.0,
        ),
    ]


async def _measured() -> tuple[list[float], list[float], float]:
    """Return starts and calls in ms, and the MiB of a container."""
    python, settings = plain_python(), SandboxSettings()
    sessions, starts, calls = [], [], []
    try:
        for _ in range(CONTAINERS):
            began = time.perf_counter()
            sessions.append(await SandboxSession.start(Bubblewrap(), python, settings))
            starts.append(1000 * (time.perf_counter() - began))
        for number in range(CALLS):
            began = time.perf_counter()
            await sessions[-1].run(f"x = {number}\nx + 1")
            calls.append(1000 * (time.perf_counter() - began))
        memory = sum(session.memory() for session in sessions) / len(sessions) / MIB
    finally:
        await asyncio.gather(*(session.close() for session in sessions))
    return starts, calls, memory
