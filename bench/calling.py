"""What calls of tools cost: one of an MCP server over loopback, and what twenty add to a response."""

import asyncio
import time
from collections.abc import Iterator
from statistics import median

from bench.report import Result
from bench.servers import Bench, serving
from tests.kit.fakes import ANSWER, FakeEngine, Site, run_settings
from tests.kit.mcp_servers import call_of, mcp_tool, use_of
from tests.unit.runs.test_server_tools import ASKED, CALL, Shell

CALLS, ROUNDS = 100, 5
IN_A_RESPONSE = 20
_SERVER = """
import sys, uvicorn
from tests.kit.mcp_program import make_server
uvicorn.run(make_server().streamable_http_app(), port=int(sys.argv[1]), log_level="error")
"""


def mcp(bench: Bench) -> Iterator[Result]:
    """Call a tool of a server in another process with the client that is kept for it."""
    with serving(_SERVER) as port:
        took, used = asyncio.run(_called(f"http://127.0.0.1:{port}/mcp"))
    yield Result(what="a call of an MCP server over loopback, in all", measured=took, unit="ms", target=8.0)
    yield Result(what="a call of an MCP server, CPU of ours", measured=used, unit="ms", target=3.0)


def tools(bench: Bench) -> Iterator[Result]:
    """Let a model call a tool that does nothing, in a response that is not stored."""
    alone, with_calls = (min(asyncio.run(_answered(calls)) for _ in range(ROUNDS)) for calls in (0, IN_A_RESPONSE))
    each = (with_calls - alone) / IN_A_RESPONSE
    what = f"each of {IN_A_RESPONSE} calls of a tool in one response, CPU of the front end"
    yield Result(what=what, measured=each, unit="ms", target=2.0)


async def _called(url: str) -> tuple[float, float]:
    """Return the time and the CPU time of a call, in ms."""
    use, took, used = use_of(url), [], []
    async with mcp_tool() as tool:
        for _ in range(ROUNDS):
            began, cpu = time.perf_counter(), time.process_time()
            for _ in range(CALLS):
                await tool.call(call_of(use, "add", '{"a": 1, "b": 2}'))
            took.append(1000 * (time.perf_counter() - began) / CALLS)
            used.append(1000 * (time.process_time() - cpu) / CALLS)
    return median(took[1:]), median(used[1:])  # the first one loads the library, and connects


async def _answered(calls: int) -> float:
    """Return the CPU time of a response with so many calls, in ms."""
    tool = Shell()
    tool.idle_seconds = 60.0
    site = Site(
        FakeEngine([*[CALL] * calls, ANSWER], max_model_len=100_000),
        tools=[tool],
        settings=run_settings(responses_store=False),
    )
    began = time.process_time()
    response = await site.ask(input="hi", tools=ASKED)
    assert len(response["output"]) == calls + 1  # type: ignore[arg-type]
    return 1000 * (time.process_time() - began)
