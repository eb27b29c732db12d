"""A server that breaks where it is told to, with a text of its client in the error, as a bug would."""

from typing import Any

from responses_app.runs.service import ResponseService
from responses_app.tools.mcp.tool import McpTool
from respsite.asgi import application as application

FAULT = "[fault]"

_plan = ResponseService._plan


async def _broken(self: ResponseService, request: Any, *args: Any, **fields: Any) -> Any:
    if FAULT in str(request.instructions):
        raise RuntimeError(f"a fault with {request.instructions} and {request.input_json}")
    return await _plan(self, request, *args, **fields)


ResponseService._plan = _broken  # type: ignore[method-assign]
assert McpTool  # its module logs, too
