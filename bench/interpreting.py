"""What the code interpreter costs: a container's start, a call in one that is warm, and its memory while it waits.

And the shell: how long what a command prints takes to its client.
"""

import asyncio
import json
import time
from statistics import median

import httpx

from bench.report import Result
from bench.servers import Bench
from responses_app.protocol.setting import MIB
from responses_app.tools.sandbox.base import SandboxSettings
from responses_app.tools.sandbox.sandboxes import Bubblewrap
from responses_app.tools.sandbox.session import SandboxSession
from tests.kit.sandboxes import plain_python

CONTAINERS = 50
CALLS = 50
_PRINTED = 'data: {"type":"response.shell_call_output_content.delta"'


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


def shell(bench: Bench) -> list[Result]:
    """Have commands print the time at which they do, and look at the time when their client has it."""
    with bench.fresh_server(name="shell", engine="demo") as server, httpx.Client(base_url=server.base_url) as http:
        _printed(http)  # the container starts
        took = [_printed(http) for _ in range(CALLS)]
    return [
        Result(
            name="shell",
            what="from the first line that a command writes to its client",
            measured=median(took),
            unit="ms",
            target=30.0,
            details={"the slowest, ms": max(took)},
        )
    ]


def _printed(http: httpx.Client) -> float:
    """Return how long the first line of a command took, in ms; the command goes on behind it."""
    tool = {"type": "shell", "environment": {"type": "container_auto"}}
    body = {"model": "demo", "input": "shell: date +%s.%N; sleep 0.1", "tools": [tool], "stream": True}
    took = 0.0
    with http.stream("POST", "/responses", json=body, timeout=60) as stream:
        for line in stream.iter_lines():
            came = time.time()
            if line.startswith(_PRINTED) and not took:
                took = 1000 * (came - float(json.loads(line.removeprefix("data: "))["delta"]["stdout"]))
    return took


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
