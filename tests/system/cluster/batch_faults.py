"""`python -m tests.system.cluster.batch_faults [LINES]`: batches while what carries them is killed and stopped.

Several batches run on three workers, with PostgreSQL, Redis and two engines. Every few seconds one of these processes
is killed (-9) and started again, stopped (SIGSTOP) for up to three leases, or replaced. The lines of one batch call a
tool of an MCP server, which counts the calls of each line. At the end each line has exactly one answer, in the output
or in the error file, no line's tool was called twice, and the counts are those of the files.
"""

import asyncio
import logging
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from mcp.server.mcpserver import MCPServer
from openai import APIError, OpenAI
from openai.types import Batch

from tests.kit.batches import batch_of, has_ended, line, output_of
from tests.kit.mcp_servers import serving
from tests.kit.sdk import sdk_of
from tests.kit.server import Server
from tests.system.cluster.cluster import Cluster
from tests.system.cluster.faults import Faults

LINES = 500  # of each batch
BATCHES = 4  # of lines that only generate, beside one of lines that call a tool
PACE = 20.0  # tokens a second, so that lines run while something is killed
PAUSE = (1.0, 5.0)  # seconds between two faults
LAST_SECONDS = 1200.0  # for all batches to end
LINE_HEADER = "x-line"


@dataclass
class Result:
    """What came of a run."""

    calls: Counter[str] = field(default_factory=Counter)  # of the tool, by the line that made them


async def run(lines: int, folder: Path) -> bool:
    """Run it, print the table's row, and return whether all is as it has to be."""
    result = Result()
    async with counted_tool(result) as url:
        cluster = Cluster(folder, tokens_per_second=PACE, mcp_allowed_hosts="127.0.0.1")
        await asyncio.to_thread(cluster.start)
        try:
            began = time.monotonic()
            with sdk_of(cluster.server) as client:
                made = await asyncio.to_thread(_create, client, lines, url)
            faults = Faults(cluster, lines, pause=PAUSE)
            async with faults.running():
                await _until(made, cluster.server, lambda batch: _done(batch) >= lines * 4 // 5)
            batches = await _until(made, cluster.server, has_ended)
            took = time.monotonic() - began
            with sdk_of(cluster.server) as client:
                return await asyncio.to_thread(_report, client, batches, lines, result, faults.done, took)
        finally:
            await asyncio.to_thread(cluster.stop)


@asynccontextmanager
async def counted_tool(result: Result) -> AsyncIterator[str]:
    """Serve a tool that must not be called twice; each line comes with a header that names it."""
    server = MCPServer("tests")

    @server.tool()
    async def book(text: str) -> str:
        """Books what must not be booked twice."""
        return f"booked {text}"

    app = server.streamable_http_app()

    async def counted(scope: Any, receive: Callable[..., Any], send: Callable[..., Any]) -> None:
        async def heard() -> Any:
            message = await receive()
            if b'"tools/call"' in message.get("body", b""):
                named = dict(scope["headers"])[LINE_HEADER.encode()]
                result.calls[named.decode()] += 1
            return message

        await app(scope, heard if scope["type"] == "http" else receive, send)

    async with serving(counted) as running:
        yield f"{running.url}/mcp"


def _create(client: OpenAI, lines: int, url: str) -> list[Batch]:
    """Create all batches: the lines of each have ids of their own."""
    made = []
    for number in range(BATCHES):
        made.append(batch_of(client, [line(f"{number}-{n}", input=f"count to {n % 40 + 10}") for n in range(lines)]))
    tool = {"type": "mcp", "server_label": "tests", "server_url": url, "require_approval": "never"}
    calling = [
        line(f"tool-{n}", input="call book", tools=[{**tool, "headers": {LINE_HEADER: f"tool-{n}"}}])
        for n in range(lines)
    ]
    return [*made, batch_of(client, calling)]


def _done(batch: Batch) -> int:
    counts = batch.request_counts
    return 0 if counts is None else counts.completed + counts.failed


async def _until(made: list[Batch], server: Server, is_so: Callable[[Batch], bool]) -> list[Batch]:
    """Return the batches once something is so of all of them, as whoever serves just then says."""
    ends_at = time.monotonic() + LAST_SECONDS
    while time.monotonic() < ends_at:
        with sdk_of(server, max_retries=0, timeout=5) as client:
            ask = partial(lambda client: [client.batches.retrieve(batch.id) for batch in made], client)
            try:
                now = await asyncio.to_thread(ask)
            except APIError:
                now = []
        if now and all(is_so(batch) for batch in now):
            return now
        await asyncio.sleep(1)
    raise AssertionError("the batches have not ended in time")


def _report(
    client: OpenAI, batches: list[Batch], lines: int, result: Result, faults: Counter[str], took: float
) -> bool:
    """Print what came of the batches; return whether each line has one answer, and no tool was called twice."""
    answered, errors, wrong = 0, Counter[str](), list[str]()
    for batch in batches:
        output, error = output_of(client, batch.output_file_id), output_of(client, batch.error_file_id)
        answered += len(output)
        errors.update((each["error"] or each["response"]["body"]["error"])["code"] for each in error.values())
        counts = batch.request_counts
        assert counts is not None
        if batch.status != "completed" or (counts.total, counts.completed, counts.failed) != (
            lines,
            len(output),
            len(error),
        ):
            wrong.append(f"{batch.id} is {batch.status} with {counts}, {len(output)} answers and {len(error)} errors")
        if len(output.keys() | error.keys()) != lines or output.keys() & error.keys():
            wrong.append(f"{batch.id}: lines without an answer, or with two")
        uncalled = [name for name in output if name.startswith("tool-") and result.calls[name] != 1]
        if uncalled:
            wrong.append(f"{batch.id}: answered without one call: {uncalled[:5]}")
    twice = [name for name, calls in result.calls.items() if calls > 1]
    print(
        f"lines {lines * len(batches)}; faults {dict(faults)}; answers {answered}; errors {dict(errors)}; "
        f"tools called {result.calls.total()}, twice {len(twice)}; wrong {wrong or 0}; {took:.0f} s",
        flush=True,
    )
    return not wrong and not twice


if __name__ == "__main__":
    logging.disable(logging.INFO)  # of the clients here
    with tempfile.TemporaryDirectory(prefix="respsite-batches-") as folder:
        is_right = asyncio.run(run(int(sys.argv[1]) if len(sys.argv) > 1 else LINES, Path(folder)))
    sys.exit(0 if is_right else 1)
