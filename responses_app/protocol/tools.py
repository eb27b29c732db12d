"""The tools a request declares. Functions reach the model; every other kind is accepted, echoed and left out.

Codex declares `namespace` and `web_search` tools in every request, so a kind that is not built yet is never a 400.
"""

import orjson
from pydantic import Field

from engine.harmony.prompt import FunctionTool
from responses_app.protocol.errors import JsonObject, invalid_request
from responses_app.protocol.items import NAME, Vocabulary
from responses_app.protocol.validation import missing, validate, wrong_type


class Function(Vocabulary):
    """A function tool in the Responses API's flat form."""

    name: str = Field(min_length=1, max_length=256, pattern=NAME)
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
        echoed.append(tool)
    return functions, echoed


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
