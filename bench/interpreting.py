"""What the code interpreter costs: a container's start, a call in one that is warm, and its memory while it waits.

And the shell: how long what a command prints takes to its client.
"""

import asyncio
import contextlib
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from statistics import median

import httpx

from bench.report import Result
from bench.servers import Bench, BenchServer
from responses_app.extensions.containers.sandbox.containers import Containers
from responses_app.extensions.containers.sandbox.hosts import OwnHost, RemoteHost
from responses_app.extensions.containers.sandbox.sandboxes import Bubblewrap
from responses_app.extensions.containers.sandbox.session import SandboxSession
from responses_app.extensions.containers.sandbox.settings import SandboxSettings
from responses_app.extensions.containers.sandbox.sharing import SharedContainers
from responses_app.kit.clock import IdFactory
from responses_app.protocol.setting import MIB
from tests.kit.mcp_servers import PROGRAM as MCP_PROGRAM
from tests.kit.sandboxes import has_bubblewrap, plain_python

CONTAINERS = 50
CALLS = 50
_PRINTED = 'data: {"type":"response.shell_call_output_content.delta"'
PROGRAM_CALLS = 100
PROGRAMS = 5


def interpreting(bench: Bench) -> Iterator[Result]:
    """Start containers of bubblewrap one after another, call the last one, and look at the memory of all."""
    starts, calls, memory = asyncio.run(_measured())
    yield Result(
        what="starting a container",
        measured=median(starts),
        unit="ms",
        target=400.0,
        details={"the slowest, ms": max(starts)},
    )
    yield Result(
        what="a call in a warm container",
        measured=median(calls),
        unit="ms",
        target=15.0,
        details={"the slowest, ms": max(calls)},
    )
    yield Result(
        what=f"memory of each of {CONTAINERS} containers that wait",
        measured=memory,
        unit="MiB",
        target=40.0,
    )
    yield _from_another_process()


def shell(bench: Bench) -> Iterator[Result]:
    """Have commands print the time at which they do, and look at the time when their client has it."""
    with bench.fresh_server(name="shell", engine="demo") as server, httpx.Client(base_url=server.base_url) as http:
        _printed(http)  # the container starts
        took = [_printed(http) for _ in range(CALLS)]
    yield Result(
        what="from the first line that a command writes to its client",
        measured=median(took),
        unit="ms",
        target=30.0,
        details={"the slowest, ms": max(took)},
    )


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


@contextlib.contextmanager
def _another_process() -> Iterator[str]:
    """Have a host of containers; its socket."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "socket")
        command = [sys.executable, "-c", "from responses_app.command_line import main; main()", "sandboxes"]
        environ = {**os.environ, "DATA_DIR": folder}
        with subprocess.Popen([*command, "--listen", path], env=environ, stderr=subprocess.DEVNULL) as host:
            try:
                while not os.path.exists(path):  # it tries its sandbox first
                    time.sleep(0.05)
                yield path
            finally:
                host.terminate()


def _from_another_process() -> Result:
    """Return how much longer a call takes where the container is another process's."""
    with _another_process() as path:
        here, there = asyncio.run(_both(path))
    return Result(
        what="a call in a container of another process, beyond one of the same",
        measured=median(there) - median(here),
        unit="ms",
        target=3.0,
        details={"of the same, ms": median(here), "of another, ms": median(there)},
    )


async def _both(path: str) -> tuple[list[float], list[float]]:
    own = Containers(has_bubblewrap, SandboxSettings(), new_id=IdFactory(time.time))
    hosts = (OwnHost(own), RemoteHost(path))
    took: tuple[list[float], list[float]] = ([], [])
    for host, times in zip(hosts, took, strict=True):
        containers = SharedContainers([host])
        made = await containers.create("bench")
        await containers.run("bench", made.id, "x = 0")
        for number in range(CALLS):
            began = time.perf_counter()
            await containers.run("bench", made.id, f"x = {number}\nx + 1", call=f"call {number}")
            times.append(1000 * (time.perf_counter() - began))
        await containers.aclose()
    return took


def program(bench: Bench) -> Iterator[Result]:
    """Run a program that calls a tool in a loop, in a container of its own of another process."""
    with _another_process() as path:
        took, calls = asyncio.run(_of_program(path))
    what = f"a program of {PROGRAM_CALLS} calls, with its container, without what the tools take"
    details = {"calls made": float(calls)}
    alone = Result(what=what, measured=took, unit="s", target=1.5, details=details)
    yield alone
    yield _in_a_response(bench)


def _in_a_response(bench: Bench) -> Result:
    """Have a server run a program of the model's, from the request to the answer."""
    code = f"print(sum(call_tool('sums.add', a=1, b=n) for n in range({PROGRAM_CALLS})))"
    sums = json.dumps({"sums": shlex.join([sys.executable, "-m", MCP_PROGRAM])})
    server: dict[str, object] = {"type": "mcp", "server_label": "sums", "require_approval": "never"}
    tools = [{"type": "programmatic_tool_calling"}, {**server, "allowed_callers": ["programmatic"]}]
    body = {"model": "demo", "tools": tools, "input": f"program: {code}"}
    folder = bench.folder / "programs"
    walls: list[float] = []
    with BenchServer(folder, engine="demo", mcp_servers=sums) as serving:
        for _ in range(PROGRAMS):
            began = time.perf_counter()
            response = serving.post("/responses", **body).json()
            walls.append(time.perf_counter() - began)
            calls = [item["type"] for item in response["output"]].count("mcp_call")
            assert (response["status"], calls) == ("completed", PROGRAM_CALLS), response
    what = f"a response whose program makes {PROGRAM_CALLS} calls of an MCP server's tool, from request to answer"
    return Result(what=what, measured=median(walls), unit="s", target=1.5, details={"turns": 2.0})


async def _of_program(path: str) -> tuple[float, int]:
    """Return the median of seconds, and how many calls a program made."""
    containers = SharedContainers([RemoteHost(path)])
    made, walls = 0, []

    async def answer(_: dict[str, object]) -> dict[str, object]:
        nonlocal made
        made += 1
        return {"output": "1"}

    try:
        for _ in range(PROGRAMS):
            began = time.perf_counter()
            code = f"sum(call_tool('one') for _ in range({PROGRAM_CALLS}))"
            run = await containers.run_program("default", code, answer)
            walls.append(time.perf_counter() - began)
            assert run.execution.output.strip() == str(PROGRAM_CALLS)
    finally:
        await containers.aclose()
    return median(walls), made // PROGRAMS


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
