"""Programs that call tools: what the model is told of them, and which tools they may call.

A tool's `allowed_callers` says whether the model calls it itself (`direct`), or its programs do (`programmatic`), or
both. A program is Python, and calls a tool with `call_tool(NAME, ARGUMENTS)`.
"""

from collections.abc import Iterable

from engine.formats.base import FunctionTool
from responses_app.protocol.errors import JsonObject

KIND = "programmatic_tool_calling"  # the tool of a request
NAME = ITEM = "program"  # what the model calls, and what its call becomes
OUTPUT_ITEM = "program_output"
MAX_CALLS = 1000  # of tools, by one program

_ABOUT = (
    "Runs a Python program that calls tools, and gives back what it prints. Use it for many calls, and for calls whose "
    "results you only need in part: you read nothing but what the program prints. Call a tool with "
    'call_tool("NAME", {"ARGUMENT": VALUE}): it returns what the tool gives, parsed where that is JSON, else as text, '
    "and raises ToolError where it fails. Calls that do not need each other's results are made together: "
    'call_tools([("NAME", {...}), ...]) returns a list of results, and "await call_tool_async(...)" is for '
    "asyncio.gather. A program may be run again from its beginning, with the same results: what it calls must not "
    "depend on time or chance. Each program begins anew, without variables, files or network. Tools that it can call:"
)


def by_programs(declared: JsonObject) -> bool:
    """Whether programs may call a declared tool."""
    callers = declared.get("allowed_callers")
    return isinstance(callers, list) and "programmatic" in callers


def by_model(declared: JsonObject) -> bool:
    """Whether the model may call a declared tool itself."""
    callers = declared.get("allowed_callers")
    return not isinstance(callers, list) or "direct" in callers


def about_programs(tools: Iterable[tuple[str, FunctionTool]]) -> str:
    """Return what the model is told of programs that may call these tools, by the names that they call."""
    lines = [f"- {name}: {' '.join(tool.description.split())} Arguments: {tool.schema}" for name, tool in tools]
    return "\n".join([_ABOUT, *(lines or ["- none"])])
