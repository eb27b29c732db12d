"""A tool is called, within its time: one of this server's, or one of the client's, whose outputs are waited for.

Whatever comes of a tool of this server is something for the model to read.
"""

import asyncio
import logging
from collections.abc import Callable

from responses_app.observing.traces import NO_SPAN, Span
from responses_app.protocol.commands import Await
from responses_app.protocol.inputs import Input, TimedOut, ToolReturned, WaitBegan
from responses_app.tools.base import BaseTool, ToolFailed

logger = logging.getLogger("respsite.runs")

TAKEOVER_SECONDS = 5.0  # how long a wait goes on at least behind a takeover, in which nobody took what the client gave
# What the model reads of a call that was under way when its worker died, where the tool is not `idempotent`.
CUT_CALL = ToolReturned(
    "Error: the server stopped while the tool ran, and the tool does not say that it can be run twice.", failed=True
)


async def call_tool(tool: BaseTool, arguments: str, response_id: str, *, span: Span = NO_SPAN) -> ToolReturned:
    """Call a tool for a response; a cancellation ends its work, and nothing else is raised."""
    with span.child("tool call", {"gen_ai.tool.name": tool.name}) as own:
        returned = await _call(tool, arguments, response_id)
        if returned.failed:
            own.fail("tool_failed")
        return returned


async def _call(tool: BaseTool, arguments: str, response_id: str) -> ToolReturned:
    try:
        async with asyncio.timeout(tool.timeout):
            return ToolReturned(await tool.call(arguments))
    except TimeoutError:
        return ToolReturned(f"Error: the tool did not answer within {tool.timeout:g} s.", failed=True)
    except ToolFailed as problem:
        return ToolReturned(f"Error: {problem}", failed=True)
    except Exception:
        logger.exception("response %s: the tool %s broke", response_id, tool.name)
        return ToolReturned("Error: the tool broke.", failed=True)


async def wait_for_outputs(wanted: Await, seconds: float, *, now: float, tell: Callable[[Input], object]) -> TimedOut:
    """Return when the client's time is over: `seconds` from `now` on (Unix seconds), or what a takeover has left of it.

    Outputs come by `ResponseRun.give`, which ends this once none is missing.
    """
    if wanted.until is None:
        tell(WaitBegan(now + seconds))
        left = seconds
    else:  # it began on another worker
        left = max(wanted.until - now, TAKEOVER_SECONDS)
    await asyncio.sleep(left)
    return TimedOut(seconds)
