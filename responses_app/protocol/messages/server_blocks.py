"""Calls of this server's tools as blocks of Anthropic's API, and back: a call is two blocks, and one item here.

    web_search_call         server_tool_use `web_search`, web_search_tool_result
      of a page or a place  server_tool_use `web_fetch`, web_fetch_tool_result
    code_interpreter_call   server_tool_use `code_execution`, code_execution_tool_result
    mcp_call                mcp_tool_use, mcp_tool_result
    mcp_list_tools          mcp_tool_listing, for clients that know it

A client gives the blocks back as they came. What the model then reads is what their seals carry (`replaying`), so
the items that blocks become here look like those that they were made of. Calls of tools that only Anthropic has are
read as calls of an MCP server.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from pydantic import Field

from engine import orjson
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.fields import CACHES_ALL, ClientModel

CACHED = {"cache_control": CACHES_ALL}
CALLED = frozenset(("web_search_call", "code_interpreter_call", "mcp_call"))  # items that are two blocks
SEARCH, FETCH, CODE = "web_search", "web_fetch", "code_execution"  # what the tools are called
_CALLER = {"caller": "The model is who calls."}
_SERVER, _MCP = "srvtoolu_", "mcptoolu_"  # ids of blocks begin so
_CONTAINER = "_cntr_"  # behind it stands the container's id, in the id of a call of the interpreter
_FOREIGN = "server"  # the label under which the model reads calls of tools that are not had here
_UNAVAILABLE = "unavailable"  # the one code of errors here: what went wrong is said to the model


class ServerToolUseBlock(ClientModel):
    """A call of a tool that the server runs."""

    type: Literal["server_tool_use"]
    id: str = Field(min_length=1, max_length=256)
    name: str = Field(min_length=1, max_length=128)
    input: dict[str, Any]

    idle: ClassVar = {**CACHED, **_CALLER}


class McpToolUseBlock(ClientModel):
    """A call of an MCP server's tool."""

    type: Literal["mcp_tool_use"]
    id: str = Field(min_length=1, max_length=256)
    name: str = Field(min_length=1, max_length=256)
    server_name: str = Field(min_length=1, max_length=256)
    input: dict[str, Any]

    idle: ClassVar = CACHED


class ServerResultBlock(ClientModel):
    """What came of a call of a tool that the server ran; each kind has a content of its own."""

    type: Literal[
        "web_search_tool_result",
        "web_fetch_tool_result",
        "code_execution_tool_result",
        "bash_code_execution_tool_result",
        "text_editor_code_execution_tool_result",
        "tool_search_tool_result",
    ]
    tool_use_id: str = Field(min_length=1, max_length=256)
    content: list[Any] | dict[str, Any] = Field(repr=False)

    idle: ClassVar = {**CACHED, **_CALLER}


class McpToolResultBlock(ClientModel):
    """What an MCP server gave back."""

    type: Literal["mcp_tool_result"]
    tool_use_id: str = Field(min_length=1, max_length=256)
    content: str | list[Any] | None = Field(default=None, repr=False)
    is_error: bool | None = None

    idle: ClassVar = CACHED


class McpListingBlock(ClientModel):
    """The tools of an MCP server, as it has listed them."""

    type: Literal["mcp_tool_listing"]
    mcp_server_name: str = Field(min_length=1, max_length=256)
    tools: list[dict[str, Any]]


UseBlock = ServerToolUseBlock | McpToolUseBlock
ResultBlock = ServerResultBlock | McpToolResultBlock
ServerBlock = UseBlock | ResultBlock | McpListingBlock


# Items as blocks.


def use_begun(item: Mapping[str, Any]) -> JsonObject:
    """Return the block of a call whose input is still to come."""
    if item["type"] == "mcp_call":
        named = {"name": item["name"], "server_name": item["server_label"]}
        return {"type": "mcp_tool_use", "id": _MCP + item["id"], **named, "input": {}}
    runs_code = item["type"] == "code_interpreter_call"
    name = CODE if runs_code else SEARCH if item["action"]["type"] == "search" else FETCH
    container = str(item.get("container_id") or "").removeprefix(_CONTAINER[1:])
    use_id = f"{_SERVER}{item['id']}{_CONTAINER if container else ''}{container}"
    return {"type": "server_tool_use", "id": use_id, "name": name, "input": {}}


def use_input(item: Mapping[str, Any]) -> JsonObject:
    """Return the input of a call; an empty one where it is not an object of JSON."""
    match item["type"]:
        case "mcp_call":
            return object_of(item["arguments"])
        case "code_interpreter_call":
            return {"code": item["code"]}
    action = item["action"]
    return {name: action[name] for name in ("query", "url", "pattern") if action.get(name) is not None}


def object_of(text: str) -> JsonObject:
    """Return an object of JSON; an empty one where a call was cut off before it was JSON."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return {}
    return value if isinstance(value, dict) else {}


def result_block(item: Mapping[str, Any]) -> JsonObject | None:
    """Return the result of a call; None of one that was cut."""
    if item["status"] == "incomplete":
        return None
    use = use_begun(item)
    if item["type"] == "mcp_call":
        error = item.get("error")
        if error is None:
            text = str(item.get("output") or "")
        elif isinstance(error.get("message"), str):
            text = error["message"]
        else:
            text = _text_of(error.get("content") or ())
        content = [{"type": "text", "text": text}] if text else []
        return {"type": "mcp_tool_result", "tool_use_id": use["id"], "is_error": error is not None, "content": content}
    kind = f"{use['name']}_tool_result"
    return {"type": kind, "tool_use_id": use["id"], "content": _CONTENTS[str(use["name"])](item)}


def _found(item: Mapping[str, Any]) -> object:
    if item["status"] == "failed":
        return {"type": "web_search_tool_result_error", "error_code": _UNAVAILABLE}
    return [
        {
            "type": "web_search_result",
            "url": each["url"],
            "title": each["title"],
            "encrypted_content": each["text"],
            "page_age": None,
        }
        for each in item.get("results") or ()
    ]


def _fetched(item: Mapping[str, Any]) -> object:
    results = item.get("results")
    if item["status"] == "failed" or not results:
        return {"type": "web_fetch_tool_result_error", "error_code": _UNAVAILABLE}
    [page] = results
    source = {"type": "text", "media_type": "text/plain", "data": page["text"]}
    document = {"type": "document", "source": source, "title": page["title"], "citations": {"enabled": False}}
    return {
        "type": "web_fetch_result",
        "url": page["url"],
        "retrieved_at": page.get("retrieved_at"),
        "content": document,
    }


def _ran(item: Mapping[str, Any]) -> object:
    outputs = item.get("outputs")
    if outputs is None:
        return {"type": "code_execution_tool_result_error", "error_code": _UNAVAILABLE}
    files = [file["file_id"] for each in outputs if each["type"] == "files" for file in each["files"]]
    return {
        "type": "code_execution_result",
        "stdout": "".join(each["logs"] for each in outputs if each["type"] == "logs"),
        "stderr": "",  # what is printed there stands where it was printed
        "return_code": int(item["status"] == "failed"),
        "content": [{"type": "code_execution_output", "file_id": file_id} for file_id in files],
    }


_CONTENTS = {SEARCH: _found, FETCH: _fetched, CODE: _ran}


def listing_block(item: Mapping[str, Any]) -> JsonObject | None:
    """Return the tools that an MCP server has listed; None where it has not."""
    if item.get("error") is not None:
        return None
    names = ("name", "description", "input_schema")
    tools = [{name: tool[name] for name in names} for tool in item["tools"]]
    return {"type": "mcp_tool_listing", "mcp_server_name": item["server_label"], "tools": tools}


# Blocks as items.


def call_item(use: UseBlock) -> JsonObject:
    """Return the item of a call of which nothing has come yet."""
    if isinstance(use, McpToolUseBlock):
        return _mcp_item(use.server_name, use)
    fields = use.input
    match use.name:
        case "web_search":
            query = str(fields.get("query") or "")
            action: JsonObject = {"type": "search", "query": query, "queries": [query] if query else []}
        case "web_fetch" if "pattern" in fields:
            action = {"type": "find_in_page", "pattern": fields["pattern"], "url": fields.get("url", "")}
        case "web_fetch":
            action = {"type": "open_page", "url": fields.get("url")}
        case "code_execution":
            code: JsonObject = {"code": str(fields.get("code", ""))}
            _, is_named, container = use.id.rpartition(_CONTAINER)
            code |= {"container_id": f"{_CONTAINER[1:]}{container}"} if is_named else {}
            return {"type": "code_interpreter_call", "status": "incomplete", **code}
        case _:
            return _mcp_item(_FOREIGN, use)
    return {"type": "web_search_call", "status": "incomplete", "action": action}


def _mcp_item(server: str, use: UseBlock) -> JsonObject:
    called: JsonObject = {"server_label": server, "name": use.name, "arguments": orjson.dumps(use.input).decode()}
    return {"type": "mcp_call", "status": "incomplete", **called}


def with_result(item: JsonObject, result: ResultBlock) -> JsonObject:
    """Return the item of a call with its result."""
    if isinstance(result, McpToolResultBlock):
        text = result.content if isinstance(result.content, str) else _text_of(result.content or ())
        if result.is_error:
            parts = [{"type": "text", "text": text}]
            return {**item, "status": "failed", "error": {"type": "mcp_tool_execution_error", "content": parts}}
        return {**item, "status": "completed", "output": text}
    done, content = {**item, "status": "completed"}, result.content
    if isinstance(content, list):
        pages = [_page(page) for page in content if isinstance(page, dict)]
        return {**done, **({"results": pages} if item["type"] == "web_search_call" else _as_text(content))}
    if str(content.get("type")).endswith("_error"):
        failed: JsonObject = {**item, "status": "failed"}
        if item["type"] == "code_interpreter_call":  # which has no error of its own
            return failed
        message = f"The tool failed: {content.get('error_code')}."
        return {**failed, "error": {"type": "tool_error", "message": message}}
    match item["type"]:
        case "web_search_call":
            return {**done, "results": [_page(content)]}
        case "code_interpreter_call":
            return {**done, **_outputs(content)}
    return {**done, **_as_text(content)}


def _as_text(content: object) -> JsonObject:
    return {"output": orjson.dumps(content).decode()}


def _text_of(parts: Sequence[object]) -> str:
    return "\n".join(str(part.get("text", "")) for part in parts if isinstance(part, dict))


def _page(page: JsonObject) -> JsonObject:
    document = page.get("content")
    if not isinstance(document, dict):
        return {"url": page.get("url"), "title": page.get("title"), "text": page.get("encrypted_content")}
    source = document.get("source")
    text = source.get("data") if isinstance(source, dict) else None
    return {"url": page.get("url"), "title": document.get("title"), "text": text}


def _outputs(content: JsonObject) -> JsonObject:
    """Return the output and the files of code."""
    printed = f"{content.get('stdout') or ''}{content.get('stderr') or ''}"
    outputs: list[JsonObject] = [{"type": "logs", "logs": printed}] if printed else []
    written = content.get("content")
    shown = written if isinstance(written, list) else []
    files = [{"file_id": each.get("file_id")} for each in shown if isinstance(each, dict)]
    if files:
        outputs.append({"type": "files", "files": files})
    return {"outputs": outputs, "status": "failed" if content.get("return_code") else "completed"}


def listing_item(block: McpListingBlock) -> JsonObject:
    """Return the item of a server's list of tools."""
    tools = [{**tool, "annotations": {}} for tool in block.tools]
    return {"type": "mcp_list_tools", "server_label": block.mcp_server_name, "tools": tools}
