"""The tools that a server runs, as requests declare them: validated, and in the form in which they are echoed.

What a request says of credentials is never echoed, and so never kept: it is read apart (`private_fields`). Of the URL
of an MCP server the query and the user are credentials, too.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from responses_app.protocol.errors import ApiError, JsonObject, invalid_request
from responses_app.protocol.fields import CallableTool, ClientModel, Refused
from responses_app.protocol.files.containers import echoed_interpreter
from responses_app.protocol.requests.file_searches import echoed_file_search
from responses_app.protocol.requests.image_tools import echoed_image_tool
from responses_app.protocol.requests.web_searches import echoed_search
from responses_app.protocol.validation import validate

WEB_SEARCH = "web_search web_search_2025_08_26 web_search_preview web_search_preview_2025_03_11".split()
ITEMS: Mapping[str, str] = {  # the type of a tool, and that of the item which a call becomes
    "mcp": "mcp_call",
    "code_interpreter": "code_interpreter_call",
    "file_search": "file_search_call",
    "image_generation": "image_generation_call",
    **dict.fromkeys(WEB_SEARCH, "web_search_call"),
}
_SETTINGS: Mapping[str, str] = {  # what sets a tool up
    "mcp": "MCP_SERVERS",
    "code_interpreter": "SANDBOX or SANDBOX_MCP",
    "file_search": "FILE_SEARCH",
    "image_generation": "IMAGE_SERVICE_URL",
    **dict.fromkeys(WEB_SEARCH, "SEARCH_URL or SEARCH_MCP"),
}
LABEL = r"^[A-Za-z0-9_-]{1,64}$"
# What the model knows as something else: an MCP server of this label would be called in its place.
RESERVED_LABELS = frozenset("functions python browser container file_search image_generation".split())
MAX_URL = 2048
MAX_HEADERS = 64
_PRIVATE = ("headers", "authorization")
_REDACTED = "?<redacted>"
_URL = re.compile(
    r"(?P<scheme>https?://)(?:[^/?#@\s]*@)?"
    r"(?P<host>(?:\[[0-9a-f:.]+\]|[^][/?#@:\s]+)(?::0*[1-9][0-9]{0,4})?)"
    r"(?P<path>(?:/[^?#\s]*)?)(?P<query>(?:\?[^#\s]*)?)(?:#\S*)?",
    re.IGNORECASE,
)


class _Filter(ClientModel):
    """Some of a server's tools: by their names, and by whether they change nothing."""

    tool_names: list[str] | None = None
    read_only: bool | None = None


class _Approval(ClientModel):
    """Which tools always, and which never, need the user's approval."""

    always: _Filter | None = None
    never: _Filter | None = None


class McpServer(CallableTool):
    """A server of MCP tools: at a URL, or one that the operator has configured by its label."""

    server_label: str = Field(pattern=LABEL)
    server_url: str | None = Field(default=None, min_length=1, max_length=MAX_URL)
    server_description: str | None = Field(default=None, max_length=4096)
    headers: dict[str, str] | None = Field(default=None, max_length=MAX_HEADERS)
    authorization: str | None = Field(default=None, max_length=16_384)
    allowed_tools: list[str] | _Filter | None = None
    require_approval: Annotated[Literal["always", "never"] | _Approval | None, Field(union_mode="left_to_right")] = None
    defer_loading: bool | None = None

    refused: ClassVar = {
        **CallableTool.refused,
        **dict.fromkeys(("connector_id", "tunnel_id"), Refused("Name the server by its 'server_url'.")),
    }


def server_tool_missing(kind: str) -> str | None:
    """Return why a tool that a server runs cannot be had, where nothing is set up; None for every other kind."""
    if kind not in ITEMS:
        return None
    return (
        f"A server has to run the tool '{kind}', and none is set up here (see {_SETTINGS[kind]}). Declare a function "
        "and run it in the client."
    )


def parse_server_tool(tool: JsonObject, at: str) -> JsonObject:
    """Validate a tool that a server runs; return it in the form in which it is echoed. Raises `ApiError`."""
    return _PARSERS[str(tool["type"])](tool, at)


def private_fields(tools: object) -> Mapping[str, JsonObject]:
    """Return the fields of a request's MCP servers that must not be kept, by label. `tools` have been validated."""
    servers = (tool for tool in tools if isinstance(tool, dict)) if isinstance(tools, list) else ()
    return {
        str(tool["server_label"]): {
            name: tool[name] for name in (*_PRIVATE, "server_url") if tool.get(name) is not None
        }
        for tool in servers
        if tool.get("type") == "mcp"
    }


def refuse_double_labels(tools: Iterable[JsonObject]) -> None:
    """Raise `ApiError` where two MCP servers have one label: a call names its server by that alone."""
    seen: set[object] = set()
    for index, tool in enumerate(tools):
        label = tool.get("server_label") if tool["type"] == "mcp" else None
        if label is not None and label in seen:
            raise _wrong(f"tools[{index}].server_label", f"'{label}' is declared twice. Give each server its own.")
        seen.add(label)


def _echoed_server(tool: JsonObject, at: str) -> JsonObject:
    server = validate(McpServer, tool, at=at)
    if server.server_label in RESERVED_LABELS:
        raise _wrong(f"{at}.server_label", f"'{server.server_label}' is what the model calls something else.")
    if server.server_url is not None:
        _check_url(server.server_url, f"{at}.server_url")
    allowed, approval = server.allowed_tools, server.require_approval
    return {
        "type": "mcp",
        "server_label": server.server_label,
        "server_url": server.server_url and _without_credentials(server.server_url),
        "server_description": server.server_description,
        "allowed_tools": allowed.model_dump(exclude_none=True) if isinstance(allowed, _Filter) else allowed,
        "require_approval": approval.model_dump(exclude_none=True)
        if isinstance(approval, _Approval)
        else approval or "always",
        "headers": None,
        "authorization": None,
        **({} if server.defer_loading is None else {"defer_loading": server.defer_loading}),
    }


_PARSERS: Mapping[str, Callable[[JsonObject, str], JsonObject]] = {
    "mcp": _echoed_server,
    "code_interpreter": echoed_interpreter,
    "file_search": echoed_file_search,
    "image_generation": echoed_image_tool,
    **dict.fromkeys(WEB_SEARCH, echoed_search),
}


def _check_url(url: str, at: str) -> None:
    if _URL.fullmatch(url) is None:
        raise _wrong(at, "it is the address of a server: http:// or https://, a host and a path.")


def _without_credentials(url: str) -> str:
    parts = _URL.fullmatch(url)
    assert parts is not None, "it was checked"
    return f"{parts['scheme']}{parts['host']}{parts['path']}{_REDACTED if parts['query'] else ''}"


def _wrong(param: str, why: str) -> ApiError:
    return invalid_request(f"Invalid value for '{param}': {why}", param=param, code="invalid_value")
