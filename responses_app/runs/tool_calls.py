"""A tool of this server is called, within its time; whatever comes of that is something for the model to read."""

import asyncio
import logging

from responses_app.observing.traces import NO_SPAN, Span
from responses_app.protocol.inputs import ToolReturned
from responses_app.tools.base import BaseTool, ToolFailed

logger = logging.getLogger("respsite.runs")

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
