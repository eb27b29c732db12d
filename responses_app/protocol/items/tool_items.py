"""Items of other tools than functions, as the model reads them: calls, outputs, and notes for what it cannot read.

They come from histories that other servers and clients have written, so every field may be missing or of any type, and
none of that is an error: an agent that has such an item in its history sends it with every turn. A model format may
write the name of a tool where special tokens count, so names are cleaned.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from engine import orjson
from engine.formats.base import IMAGE_OMITTED, Body, FunctionTool, PicturePart, without_pictures
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.items.calls import body_and_omissions, called_name, json_text, ran_in_container
from responses_app.protocol.items.client_tools import read_tools
from responses_app.protocol.items.offers import (
    AGENTS,
    PROGRAM,
    SEARCH,
    SHELL,
    UNKNOWN,
    cleaned_name,
    found_on_servers,
    letter,
    mcp_name,
)

_NOT_KEPT = "[results omitted: the item does not carry them]"  # read by the model


class Tool(NamedTuple):
    """A tool as calls name it: a function, which the client executes, or with `hosted` a tool that a server runs."""

    name: str
    hosted: bool = False


@dataclass(frozen=True, slots=True)
class ReadCall:
    """The model called `tool` with these arguments."""

    tool: Tool
    arguments: str
    omitted: int = 0  # always 0: a call has no notes
    freeform: bool = False  # the arguments are text as it is, not JSON


@dataclass(frozen=True, slots=True)
class ReadOutput:
    """What `tool` gave back."""

    tool: Tool
    body: Body  # as the model reads and sees it
    omitted: int = 0  # notes in it, for what the model cannot read


@dataclass(frozen=True, slots=True)
class Note:
    """What the model is told beside calls and outputs."""

    text: str
    omitted: int = 0  # what it stands for, and the model cannot read


@dataclass(frozen=True, slots=True)
class LateFunctions:
    """Functions that came in the middle of the conversation."""

    declarations: tuple[str, ...]  # each a JSON object, as text
    hosted: bool = False  # they are tools of a server's
    omitted: int = 0  # always 0


_PYTHON, _FILE_SEARCH, _GENERATE_IMAGE, _EDIT_IMAGE, _SEARCH, _PROGRAM = (
    Tool(name, hosted=True)
    for name in ("python", "file_search", "image_generation.generate", "image_generation.edit", SEARCH, PROGRAM)
)
ToolItem = ReadCall | ReadOutput | Note | LateFunctions
ToolOf = Callable[[str], Tool | None]  # the tool of an earlier call, by the call's id


def function_tool(name: str) -> Tool:
    """Return the tool that a function or custom tool of this name is."""
    return Tool(cleaned_name(name))


def read_tool_item(item: JsonObject, tool_of: ToolOf) -> Sequence[ToolItem]:
    """Return what the model reads of an item."""
    kind = str(item.get("type"))
    if kind in _CALLS:
        tool, field = _CALLS[kind]
        return [ReadCall(tool, _arguments(item.get(field)))]
    if kind in _OUTPUTS:
        return [_output(_OUTPUTS[kind], item.get("output"))]
    if kind in _READERS:
        return _READERS[kind](item, tool_of)
    return [Note(f"[{kind} omitted: this model cannot read it]", 1)]


def _output(tool: Tool, value: object) -> ReadOutput:
    return ReadOutput(tool, *body_and_omissions(value))


def _agent_message(item: JsonObject, _: ToolOf) -> list[ToolItem]:
    body, omitted = body_and_omissions(item.get("content"))
    return [Note(letter(_string(item, "author") or UNKNOWN, without_pictures(body)), omitted)]


def _action(item: JsonObject) -> Tool:
    return Tool(cleaned_name(f"{AGENTS}.{_string(item, 'action') or UNKNOWN}"), hosted=True)


def _computer_call(item: JsonObject, _: ToolOf) -> list[ToolItem]:
    action = item.get("action")
    return [ReadCall(Tool("computer"), json_text(item.get("actions") if action is None else action))]


def _shell(item: JsonObject, _: ToolOf) -> list[ToolItem]:
    tool = Tool(SHELL, hosted=True) if ran_in_container(item) else Tool("shell")
    return [ReadCall(tool, _arguments(item.get("action")))]


def _patch_output(item: JsonObject, _: ToolOf) -> list[ToolItem]:
    output = item.get("output")
    return [_output(Tool("apply_patch"), item.get("status") if output is None else output)]


def _search_tool(item: JsonObject) -> Tool:
    return _SEARCH if item.get("execution") == "server" else Tool("tool_search")


def _searched_tools(item: JsonObject, tool_of: ToolOf) -> list[ToolItem]:
    names = [*(tool.called for tool in read_tools(item.get("tools"))), *_on_servers(item)]
    text = f"Found: {', '.join(names)}." if names else "Nothing was found."
    return [ReadOutput(_search_tool(item), text), *(_more_tools(item, tool_of) if names else ())]


def _on_servers(item: JsonObject) -> dict[str, JsonObject]:
    tools = item.get("tools")
    return found_on_servers(tools) if isinstance(tools, list) else {}


def _code(item: JsonObject, _: ToolOf) -> list[ToolItem]:
    call = ReadCall(_PYTHON, _arguments(item.get("code")), freeform=True)
    return [call, _results(_PYTHON, item.get("outputs"))]


def _file_search(item: JsonObject, _: ToolOf) -> list[ToolItem]:
    call = ReadCall(_FILE_SEARCH, json_text({"queries": item.get("queries")}))
    return [call, _results(call.tool, item.get("results"))]


def _web_search(item: JsonObject, _: ToolOf) -> list[ToolItem]:
    action = item.get("action")
    fields: JsonObject = dict(action) if isinstance(action, dict) else {}
    kind, sources = fields.pop("type", None), fields.pop("sources", None)
    name = {"open_page": "browser.open", "find": "browser.find", "find_in_page": "browser.find"}.get(
        str(kind), "browser.search"
    )
    call = ReadCall(Tool(name, hosted=True), json_text(fields))
    if item.get("error") is not None:
        return [call, _error(call.tool, item["error"])]
    return [call, _results(call.tool, item.get("results") or sources)]


def _image(item: JsonObject, _: ToolOf) -> list[ToolItem]:
    """The picture itself is never written out: it is some hundred thousand characters."""
    tool = _EDIT_IMAGE if item.get("action") == "edit" else _GENERATE_IMAGE
    call = ReadCall(tool, json_text({"prompt": item.get("revised_prompt")}))
    if item.get("error") is not None:
        return [call, _error(call.tool, item["error"])]
    picture = item.get("result")
    if isinstance(picture, PicturePart):
        return [call, ReadOutput(call.tool, [picture])]
    return [call, ReadOutput(call.tool, IMAGE_OMITTED, 1)]


def _mcp_call(item: JsonObject, tool_of: ToolOf) -> list[ToolItem]:
    if isinstance(caller := item.get("caller"), dict) and caller.get("type") == "program":
        return []  # what it gave is the program's: the model reads what that prints
    tool = mcp_tool(item)
    request = tool_of(_string(item, "approval_request_id"))  # which was read as the call already
    call = [] if request else [ReadCall(tool, _arguments(item.get("arguments")))]
    if item.get("error") is not None:
        return [*call, _error(tool, item["error"])]
    return [*call, _results(tool, item.get("output"))]


def _mcp_answer(item: JsonObject, tool_of: ToolOf) -> list[ToolItem]:
    tool = tool_of(_string(item, "approval_request_id")) or Tool("mcp", hosted=True)
    if item.get("approve") is True:
        return []  # what comes of the call follows
    reason = _string(item, "reason")
    return [ReadOutput(tool, f"[the user did not approve this call{': ' if reason else ''}{reason}]")]


def _more_tools(item: JsonObject, _: ToolOf) -> list[ToolItem]:
    """Functions that came late: calls to them go to the client, which declared them."""
    tools = item.get("tools")
    declared = [tool for tool in tools if isinstance(tool, dict)] if isinstance(tools, list) else []
    functions, served = read_tools(tools), _on_servers(item)
    unknown = [tool for tool in declared if not (read_tools([tool]) or found_on_servers([tool]))]
    others = ", ".join(_string(tool, "name") or _string(tool, "type") or UNKNOWN for tool in unknown)
    outputs: list[ToolItem] = []
    if functions:
        outputs.append(LateFunctions(tuple(_declared(tool.declaration()) for tool in functions)))
    if served:
        outputs.append(LateFunctions(tuple(_declared_on_server(*each) for each in served.items()), hosted=True))
    if others or not (functions or served):
        outputs.append(Note(f"[tools omitted, they cannot be called here: {others or 'none'}]", 1))
    return outputs


def _declared(function: FunctionTool) -> str:
    parameters = orjson.loads(function.schema) if function.schema else None
    taken: JsonObject = {"input": "text"} if function.freeform else {"parameters": parameters}
    return json_text({"name": function.name, "description": function.description or None, **taken})


def _declared_on_server(name: str, tool: JsonObject) -> str:
    return json_text(
        {"name": name, "description": tool.get("description") or None, "parameters": tool.get("input_schema")}
    )


_CALLS: Mapping[str, tuple[Tool, str]] = {  # by the type of a call: the tool, and the field with its arguments
    "local_shell_call": (Tool("local_shell"), "action"),
    "apply_patch_call": (Tool("apply_patch"), "operation"),
}
_OUTPUTS: Mapping[str, Tool] = {  # by the type of an output
    "local_shell_call_output": Tool("local_shell"),
    "computer_call_output": Tool("computer"),
}
_READERS: Mapping[str, Callable[[JsonObject, ToolOf], Sequence[ToolItem]]] = {  # all other types
    "custom_tool_call": lambda item, _: [
        ReadCall(
            function_tool(called_name(_string(item, "name"), _string(item, "namespace"))),
            _arguments(item.get("input")),
            freeform=True,
        )
    ],
    "custom_tool_call_output": lambda item, tool_of: [
        _output(tool_of(_string(item, "call_id")) or Tool(UNKNOWN), item.get("output"))
    ],
    "computer_call": _computer_call,
    "shell_call": _shell,
    "shell_call_output": lambda item, tool_of: [
        _output(tool_of(_string(item, "call_id")) or Tool("shell"), item.get("output"))
    ],
    "apply_patch_call_output": _patch_output,
    "tool_search_call": lambda item, _: [ReadCall(_search_tool(item), _arguments(item.get("arguments")))],
    "tool_search_output": _searched_tools,
    "program": lambda item, _: [ReadCall(_PROGRAM, _arguments(item.get("code")), freeform=True)],
    "program_output": lambda item, _: [_output(_PROGRAM, item.get("result"))],
    "code_interpreter_call": _code,
    "file_search_call": _file_search,
    "web_search_call": _web_search,
    "image_generation_call": _image,
    "mcp_call": _mcp_call,
    "mcp_approval_request": lambda item, _: [ReadCall(mcp_tool(item), _arguments(item.get("arguments")))],
    "mcp_approval_response": _mcp_answer,
    "mcp_list_tools": lambda item, _: [],  # the request's own tools say which of them can be called
    "additional_tools": _more_tools,
    "multi_agent_call": lambda item, _: [ReadCall(_action(item), _arguments(item.get("arguments")))],
    "multi_agent_call_output": lambda item, _: [_output(_action(item), item.get("output"))],
    "agent_message": _agent_message,
}


def _results(tool: Tool, value: object) -> ReadOutput:
    """Return what a tool that a server ran gave back; clients may keep such an item without it."""
    return ReadOutput(tool, _NOT_KEPT, 1) if value is None else _output(tool, value)


def _error(tool: Tool, value: object) -> ReadOutput:
    body, omitted = body_and_omissions(value)
    return ReadOutput(tool, f"Error: {without_pictures(body)}", omitted)


def mcp_tool(item: JsonObject) -> Tool:
    """Return the tool of an MCP server that an item calls, or asks to call."""
    return Tool(mcp_name(_string(item, "server_label"), _string(item, "name")), hosted=True)


def _string(item: Mapping[str, object], name: str) -> str:
    value = item.get(name)
    return value if isinstance(value, str) else ""


def _arguments(value: object) -> str:
    return value if isinstance(value, str) else json_text(value)
