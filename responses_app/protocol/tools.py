"""The tools a request declares. Functions reach the model; what else a client executes is accepted and echoed.

A tool that this server would have to run is refused, since its answer would be missing. `web_search` alone is left out
silently, because Codex declares it in every request.
"""

from collections.abc import Mapping

import orjson
from pydantic import Field

from engine.formats.base import FunctionTool
from responses_app.protocol.errors import JsonObject, invalid_request, unsupported_parameter
from responses_app.protocol.items import MAX_NAME, NAME, ClientModel
from responses_app.protocol.validation import missing, validate, wrong_type

EXECUTED_BY_CLIENTS = "custom namespace local_shell shell apply_patch tool_search computer computer_use_preview".split()
WEB_SEARCH = "web_search web_search_2025_08_26 web_search_preview web_search_preview_2025_03_11".split()
_SEARCH_SETTINGS = "SEARCH_URL or SEARCH_MCP"
_RUN_BY_SERVERS: Mapping[str, str] = {  # and the setting that names what runs it
    "mcp": "MCP_SERVERS",
    "code_interpreter": "SANDBOX",
    "file_search": "MCP_SERVERS",
    "image_generation": "IMAGE_SERVICE_URL",
    **dict.fromkeys(WEB_SEARCH, _SEARCH_SETTINGS),
}


class Function(ClientModel):
    """A function tool in the Responses API's flat form."""

    name: str = Field(min_length=1, max_length=MAX_NAME, pattern=NAME)
    description: str | None = None
    parameters: dict[str, object] | None = None
    strict: bool | None = None


def parse_tools(value: object) -> tuple[list[FunctionTool], list[JsonObject]]:
    """Validate `tools`: the functions the model will see, and all tools in the form they are echoed in."""
    if value is None:
        return [], []
    if not isinstance(value, list):
        raise wrong_type("tools", "an array of tools", value)
    functions: list[FunctionTool] = []
    echoed: list[JsonObject] = []
    for index, tool in enumerate(value):
        at = f"tools[{index}]"
        if not isinstance(tool, dict):
            raise wrong_type(at, "an object", tool)
        if not isinstance(tool.get("type"), str):
            raise missing(f"{at}.type")
        if tool["type"] == "function":
            tool = _function(tool, at, functions)
        else:
            _check_kind(tool["type"], at)
        echoed.append(tool)
    return functions, echoed


def server_tool_missing(kind: str) -> str | None:
    """Return why a tool that a server runs cannot be had, None for every other kind."""
    setting = _RUN_BY_SERVERS.get(kind)
    if setting is None:
        return None
    return (
        f"A server has to run the tool '{kind}', and none is set up here: that will be the setting {setting}, which "
        "this version does not have yet. Declare a function and run it in the client."
    )


def _check_kind(kind: str, at: str) -> None:
    if kind in EXECUTED_BY_CLIENTS or kind in WEB_SEARCH:
        return
    missing_tool = server_tool_missing(kind)
    if missing_tool is not None:
        raise unsupported_parameter(f"{at}.type", missing_tool)
    known = ", ".join(repr(name) for name in ("function", *EXECUTED_BY_CLIENTS, WEB_SEARCH[0]))
    raise invalid_request(
        f"Invalid value for '{at}.type': {kind[:80]!r}. Supported values are: {known}.",
        param=f"{at}.type",
        code="invalid_value",
    )


def _function(tool: JsonObject, at: str, functions: list[FunctionTool]) -> JsonObject:
    nested = tool.get("function")  # the Chat Completions form
    if isinstance(nested, dict) and "name" not in tool:
        tool, at = {"type": "function", **nested}, f"{at}.function"
    function = validate(Function, tool, at=at)
    if any(known.name == function.name for known in functions):
        raise invalid_request(
            f"Invalid value for '{at}.name': the function '{function.name}' is declared twice.",
            param=f"{at}.name",
            code="invalid_value",
        )
    schema = orjson.dumps(function.parameters).decode() if function.parameters else ""
    functions.append(FunctionTool(function.name, function.description or "", schema))
    return {
        "type": "function",
        "name": function.name,
        "description": function.description,
        "parameters": function.parameters,
        "strict": True if function.strict is None else function.strict,
    }
