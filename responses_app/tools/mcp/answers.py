"""The answers of an MCP server: the tools that it lists, and the results of calls.

Its tools → what the model is told, what it may call, and what needs the user's approval. What a tool gave back → what
the model reads, and what the call's item shows. Pure. Whatever a server says of its tools may be wrong or hostile:
names are cleaned, texts bounded, and a schema that no model can be held to is only shown.
"""

import json
import logging
from collections.abc import Collection, Mapping, Sequence

from engine import orjson
from engine.contents.budget import SharedBudgetSpent, shared_budget
from engine.formats.base import IMAGE_OMITTED, FunctionTool, ToolNamespace
from engine.types import AnyObject, Content, JsonSchema
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.items.calls import OMITTED_PARTS
from responses_app.protocol.items.offers import Offer, OfferedTool, mcp_name, name_on_server
from responses_app.protocol.requests.tools import can_be_enforced
from responses_app.tools.base import ToolFailed, ToolImage, ToolResult, json_object

logger = logging.getLogger("respsite.tools")

ITEM = "mcp_call"
MAX_TOOLS = 256  # of one server; more are left out
MAX_LIST_BYTES = 512 * 1024  # of all of them, as JSON: they are kept with each chain, and shown to the model
MAX_DESCRIPTION = 4096  # characters of what a tool or a server says of itself
MAX_SCHEMA_BYTES = 32 * 1024  # of one tool's arguments, as JSON; a larger one is left out
MAX_NAMED, MAX_NAME = 10, 128  # tools that an error names, and characters of each


def kept_tools(declared: JsonObject, tools: Sequence[JsonObject]) -> tuple[list[JsonObject], list[str]]:
    """Return those of a server's tools that a request allows, as an `mcp_list_tools` item shows them, bounded.

    And a sentence for each reason for which any is left out, or shown without its schema.
    """
    allowed = declared.get("allowed_tools")
    kept: dict[str, JsonObject] = {}  # by what the model calls
    left_out: dict[str, list[str]] = {}  # names, by the reason
    size = 0
    for tool in tools:
        if not _is_among(tool, allowed):
            continue
        name = str(tool.get("name") or "")
        schema, annotations = tool.get("input_schema"), tool.get("annotations")
        fits = isinstance(schema, dict) and len(orjson.dumps(schema)) <= MAX_SCHEMA_BYTES and _is_finite(schema)
        shown = {
            "name": name,
            "description": _text(tool.get("description")),
            "input_schema": schema if fits else {"type": "object"},
            "annotations": annotations if isinstance(annotations, dict) else {},  # the AI SDK takes no null
        }
        size += len(orjson.dumps(shown))
        reason = _reason(name, size, kept)
        if reason is None:
            kept[name_on_server(name)] = shown
            reason = None if shown["input_schema"] == tool.get("input_schema") else _BARE
        if reason is not None:
            left_out.setdefault(reason, []).append(name)
    return list(kept.values()), [f"{reason}: {_named(names)}." for reason, names in left_out.items()]


def _reason(name: str, size: int, kept: Collection[str]) -> str | None:
    """Return why a tool is left out; `size` is that of all tools up to it, in bytes."""
    if not name:
        return "Left out, since it has no name"
    if name_on_server(name) in kept:
        return "Listed twice, and left out the second time"
    if len(kept) == MAX_TOOLS or size > MAX_LIST_BYTES:
        return f"Left out, since a server may have {MAX_TOOLS} tools, of {MAX_LIST_BYTES // 1024} KiB together"
    return None


_BARE = (
    f"Listed without a schema, since theirs has more than {MAX_SCHEMA_BYTES // 1024} KiB, is no object, or has "
    "a number that no float holds"
)


def _is_finite(value: object) -> bool:
    """Whether a value has no number that is too large for a float: the library for MCP reads and writes no such."""
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        return False
    return True


def _named(names: Sequence[str]) -> str:
    """Return names for a sentence: the first of them, and how many there are besides."""
    first = ", ".join(repr(name[:MAX_NAME]) for name in names[:MAX_NAMED])
    return first if len(names) <= MAX_NAMED else f"{first} and {len(names) - MAX_NAMED} more"


def offer_of(declared: JsonObject, tools: Sequence[JsonObject]) -> Offer:
    """Return a server's tools as they are offered to the model; those that the request does not allow are left out."""
    label = str(declared["server_label"])
    kept, _ = kept_tools(declared, tools)
    functions = tuple(_function(tool) for tool in kept)
    offered = [
        OfferedTool(
            name=mcp_name(label, str(tool["name"])),
            item=ITEM,
            server=label,
            tool=str(tool["name"]),
            asks=_asks(tool, declared.get("require_approval")),
            # A call that was cut may be made again then.
            repeatable=bool(_hint(tool, "readOnlyHint") or _hint(tool, "idempotentHint")),
            reads=bool(_hint(tool, "readOnlyHint")),
        )
        for tool in kept
    ]
    contents = {each.name: _content(function.schema) for each, function in zip(offered, functions, strict=True)}
    return Offer(ToolNamespace(label, _text(declared.get("server_description")), functions), offered, contents)


def _function(tool: JsonObject) -> FunctionTool:
    schema = orjson.dumps(tool["input_schema"]).decode()
    name, description = str(tool["name"]), str(tool["description"])
    called = name_on_server(name)
    # What the name says is not lost to the model.
    shown = description if called == name else f"{name[:MAX_NAME]}: {description}".removesuffix(": ")
    return FunctionTool(called, shown, schema)


def _content(schema: str) -> Content:
    try:
        with shared_budget():
            # Held to its schema where that can be; else to any object.
            return JsonSchema(schema) if schema != "{}" and can_be_enforced(schema) else AnyObject()
    # The schemas of one tool take more than one request may: it is not worth refusing the request.
    except SharedBudgetSpent:
        return AnyObject()


def _asks(tool: JsonObject, approval: object) -> bool:
    """Whether the user is to approve a call: always, unless the request says otherwise.

    With a filter, what `always` names is asked for, and what `never` names is not. The rest is asked for where only
    `never` is given. A tool that both name is asked for.
    """
    if approval == "never":
        return False
    if not isinstance(approval, dict):
        return True
    always, never = approval.get("always"), approval.get("never")
    if always is not None and _is_among(tool, always):
        # A tool that both name is asked for: so `always` is looked at first.
        return True
    if never is not None:
        return not _is_among(tool, never)
    return always is None


def _is_among(tool: JsonObject, names: object) -> bool:
    """Whether a list of names, or a filter, has a tool; None has all."""
    if isinstance(names, list):
        return tool.get("name") in names
    if not isinstance(names, Mapping):
        return True
    only, read_only = names.get("tool_names"), names.get("read_only")
    if only is not None and tool.get("name") not in only:
        return False
    return read_only is None or bool(_hint(tool, "readOnlyHint")) == read_only


def _hint(tool: JsonObject, name: str) -> object:
    annotations = tool.get("annotations")
    return annotations.get(name) if isinstance(annotations, dict) else None


def _text(value: object) -> str:
    return value[:MAX_DESCRIPTION] if isinstance(value, str) else ""


MAX_OUTPUT = 1024 * 1024  # characters of an item's `output`
MAX_MESSAGE = 1000  # characters of what a server says of an error
INVALID_PARAMS, CONNECTION_CLOSED = -32602, -32000  # JSON-RPC


def result_of(content: Sequence[JsonObject], structured: object, *, failed: bool) -> ToolResult:
    """Return the result of a call: content blocks as MCP has them, and its JSON, if it gave some."""
    text = "\n".join(filter(None, map(_text_of, content)))
    # What stands in both is text in the blocks: only without one the JSON is needed.
    if not text and structured is not None:
        if not _is_finite(structured):
            raise protocol_failure("The result has a number that no float holds.")
        text = orjson.dumps(structured).decode()
    text = text[:MAX_OUTPUT]
    if not failed:
        return ToolResult(text, {"output": text}, seen=list(filter(None, map(_seen_of, content))))
    blocks: list[JsonObject] = [{"type": "text", "text": text[:MAX_MESSAGE]}]
    # "Error:" for the model; the item has a field for it.
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


def arguments_of(text: str) -> JsonObject:
    """Return the arguments of a call; no text is none. Raises `ToolFailed`."""
    arguments = json_object(text.strip())
    if arguments is None:
        raise protocol_failure("The arguments are not a JSON object.", code=INVALID_PARAMS)
    if not _is_finite(arguments):
        raise protocol_failure("The arguments have a number that no float holds.", code=INVALID_PARAMS)
    return arguments


def _seen_of(block: JsonObject) -> str | ToolImage:
    data = block.get("data")
    return ToolImage(data) if block.get("type") == "image" and isinstance(data, str) else _text_of(block)[:MAX_OUTPUT]


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
