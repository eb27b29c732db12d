"""What a tool of an MCP server gave back → what the model reads, and what the call's item shows."""

from collections.abc import Mapping, Sequence

import orjson

from responses_app.protocol.errors import JsonObject
from responses_app.protocol.items.tool_items import IMAGE_OMITTED, OMITTED_PARTS
from responses_app.tools.base import ToolFailed, ToolResult

MAX_OUTPUT = 1024 * 1024  # characters of an item's `output`
MAX_MESSAGE = 1000  # characters of what a server says of an error
INVALID_PARAMS, CONNECTION_CLOSED = -32602, -32000  # JSON-RPC


def result_of(content: Sequence[JsonObject], structured: object, *, failed: bool) -> ToolResult:
    """Return the result of a call: content blocks as MCP has them, and what it gave as JSON, if it did."""
    text = "\n".join(filter(None, map(_text_of, content)))
    if not text and structured is not None:
        text = orjson.dumps(structured).decode()
    text = text[:MAX_OUTPUT]
    if not failed:
        return ToolResult(text, {"output": text})
    blocks: list[JsonObject] = [{"type": "text", "text": text[:MAX_MESSAGE]}]
    return ToolResult(f"Error: {text}", execution_error(blocks), failed=True)


def execution_error(content: Sequence[JsonObject]) -> JsonObject:
    """Return the item's `error` where the tool ran and says that it failed."""
    return {"error": {"type": "mcp_tool_execution_error", "content": list(content)}}


def protocol_failure(message: str, *, code: int = CONNECTION_CLOSED) -> ToolFailed:
    """Return the failure of a call that the server did not take, or did not answer."""
    message = message[:MAX_MESSAGE]
    return ToolFailed(message, shown={"error": {"type": "mcp_protocol_error", "code": code, "message": message}})


def http_failure(status: int) -> ToolFailed:
    """Return the failure of a call that the server answered with an HTTP error."""
    message = f"The MCP server answered with HTTP status {status}."
    return ToolFailed(message, shown={"error": {"type": "http_error", "code": status, "message": message}})


def arguments_of(text: str) -> dict[str, object]:
    """Return the arguments of a call; no text is none. Raises `ToolFailed`."""
    try:
        arguments = orjson.loads(text) if text.strip() else {}
    except orjson.JSONDecodeError:
        arguments = None
    if not isinstance(arguments, dict):
        raise protocol_failure("The arguments are not a JSON object.", code=INVALID_PARAMS)
    return arguments


def _text_of(block: JsonObject) -> str:
    match block.get("type"):
        case "text":
            return str(block.get("text") or "")
        case "image":
            return IMAGE_OMITTED
        case "audio":
            return OMITTED_PARTS["input_audio"]
        case "resource_link":
            return f"[resource: {block.get('title') or block.get('name')} at {block.get('uri')}]"
        case "resource":
            resource = block.get("resource")
            inside: Mapping[str, object] = resource if isinstance(resource, Mapping) else {}
            return str(inside.get("text") or OMITTED_PARTS["input_file"])
    return orjson.dumps(block).decode()
