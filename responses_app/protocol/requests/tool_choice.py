"""`tool_choice`: which of its tools the model may call, and whether it must."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from responses_app.protocol.errors import ApiError, JsonObject, invalid_request, invalid_value, unsupported_parameter
from responses_app.protocol.fields import text_at, wrong_type
from responses_app.protocol.items.calls import CLIENT_KINDS, called_name
from responses_app.protocol.items.client_tools import ClientTool, ClientTools, functions_of_programs
from responses_app.protocol.items.offers import OfferedTool
from responses_app.protocol.items.tool_search import ITEM as SEARCH_CALL
from responses_app.protocol.requests.server_tools import ITEMS, NO_SCREEN, SCREENS, SHELL_ITEM, item_of

PARAM = "tool_choice"
_WRONG = f"Invalid value for '{PARAM}'. "
_MODES = ("none", "auto", "required")


@dataclass(frozen=True, slots=True)
class HostedChoice:
    """Tools of this server that a choice names."""

    item: str  # the type of their items
    server: str = ""  # the label of an MCP server; "" for other tools
    tool: str = ""  # of an MCP server; "": all of its

    def names(self, offered: OfferedTool) -> bool:
        """Whether this tool is meant."""
        return offered.item == self.item and offered.server == self.server and self.tool in ("", offered.tool)


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Which tools the model may call, and whether it must."""

    mode: Literal["none", "auto", "required"] = "auto"  # the model may call nothing, anything, or must call something
    allowed: frozenset[str] | None = None  # what the model calls; None: all that it is shown
    echo: str | JsonObject = "auto"  # as OpenAI gives it back
    # It names what only the conversation can have, so it is parsed again with the tools of that.
    pending: bool = False
    hosted: tuple[HostedChoice, ...] = ()  # tools of this server, where `allowed` is set

    def allows(self, tool: OfferedTool) -> bool:
        """Whether the model may call a tool of this server; it may search for tools where no call is demanded."""
        if self.allowed is None or (tool.item == SEARCH_CALL and self.mode != "required"):
            return True
        return any(each.names(tool) for each in self.hosted)


class _Absent(ApiError):
    """A choice names a tool, and there is none of that name."""

    def __init__(self, message: str) -> None:
        super().__init__(_WRONG + message, param=PARAM, code="invalid_value")


def parse_tool_choice(
    value: object, tools: ClientTools, *, served: Sequence[JsonObject] = (), continues: bool = False
) -> ToolChoice:
    """Validate a request's `tool_choice`; `tools` are those it can name. Raises `ApiError` that names that field.

    `served` are those of its tools that a server runs. `continues`: there may be more tools, in what the request
    continues.
    """
    try:
        return _parsed(value, tools, served)
    except _Absent:
        if not continues:
            raise
        return ToolChoice(echo=value, pending=True)  # type: ignore[arg-type]  # only texts and objects name something


def refuse_of_programs(value: object, declared: Sequence[JsonObject]) -> None:
    """Raise `ApiError` where a choice names a function that only programs call; `declared` are a request's tools."""
    if not isinstance(value, dict) or value.get("type") != "function":
        return
    for tool in functions_of_programs(declared):
        if (tool.name, tool.namespace) == (value.get("name"), value.get("namespace")) and not tool.by_model:
            why = f"only programs call '{tool.called}'. Name 'direct' in its 'allowed_callers', too."
            raise invalid_value(PARAM, why)


def _parsed(value: object, tools: ClientTools, served: Sequence[JsonObject]) -> ToolChoice:
    if value is None:
        return ToolChoice()
    if isinstance(value, str):
        return _mode(value, tools, served)
    if not isinstance(value, dict):
        raise wrong_type(PARAM, "a string or an object", value)
    kind = text_at(f"{PARAM}.type", value.get("type"))
    if kind == "allowed_tools":
        return _allowed(value, tools, served)
    if kind in ITEMS or _is_hosted(kind, tools, served):
        hosted = _hosted(value, kind, served)
        if hosted is None:
            raise _absent(str(value.get("server_label") or kind))
        return ToolChoice("required", frozenset(), dict(value), hosted=(hosted,))
    tool, echo = _named(value, kind, tools, PARAM)
    if tool.found and tool.deferred:
        raise _Absent(f"The tool '{tool.called}' has 'defer_loading': it cannot be called before it is found.")
    return ToolChoice("required", frozenset((tool.called,)), echo)


def _mode(mode: str, tools: ClientTools, served: Sequence[JsonObject]) -> ToolChoice:
    match mode:
        case "required":
            if not (tools.shown() or served or any(tool.found for tool in tools)):
                raise _Absent("It is 'required', and no tool that the model can call is in 'tools'.")
            return ToolChoice("required", None, mode)
        case "none" | "auto":
            return ToolChoice(mode, None, mode)
    known = ", ".join(repr(each) for each in _MODES)
    raise invalid_value(PARAM, f"{mode[:80]!r}. Supported values are: {known}, and objects.")


def _hosted(value: JsonObject, kind: str, served: Sequence[JsonObject]) -> HostedChoice | None:
    """Return which of the server's tools is named, None for one that is not declared."""
    # Versions of one tool (of the web search) are the same here: their items are.
    item, server = ITEMS.get(kind, SHELL_ITEM), str(value.get("server_label") or "")
    declared = any(item_of(tool) == item and str(tool.get("server_label") or "") == server for tool in served)
    return HostedChoice(item, server, str(value.get("name") or "") if kind == "mcp" else "") if declared else None


def _is_hosted(kind: str, tools: ClientTools, served: Sequence[JsonObject]) -> bool:
    """Whether this names the shell of this server: a request has that, or one of the client's."""
    return kind == "shell" and tools.of_type(kind) is None and SHELL_ITEM in map(item_of, served)


def _allowed(value: JsonObject, tools: ClientTools, served: Sequence[JsonObject]) -> ToolChoice:
    nested = value.get("allowed_tools")  # the Chat Completions form
    choice, at = (nested, f"{PARAM}.allowed_tools") if isinstance(nested, dict) else (value, PARAM)
    mode, entries = choice.get("mode"), choice.get("tools")
    if mode not in ("auto", "required"):
        raise _invalid("The 'mode' of 'allowed_tools' is 'auto' or 'required'.")
    if not isinstance(entries, list):
        raise _invalid("'allowed_tools' has 'tools': an array of tools.")
    groups: dict[int, Sequence[ClientTool]] = {}  # each once: thousands of entries may name one namespace
    echoed: list[JsonObject] = []
    hosted: list[HostedChoice] = []
    for index, entry in enumerate(entries):
        named = None
        if isinstance(entry, dict) and isinstance(kind := entry.get("type"), str):
            named = _hosted(entry, kind, served) if kind in ITEMS or _is_hosted(kind, tools, served) else None
        hosted += [named] if named is not None else []
        group, echo = ((), dict(entry)) if named is not None else _allowed_entry(entry, tools, f"{at}.tools[{index}]")
        groups[id(group)] = group
        echoed.append(echo)
    names = frozenset(tool.called for group in groups.values() for tool in group)
    if mode == "required" and not (names or hosted):
        raise _invalid("A call is 'required', and none of the allowed tools can be called.")
    echo = {"type": "allowed_tools", "mode": mode, "tools": echoed}
    return ToolChoice("required" if mode == "required" else "auto", names, echo, hosted=tuple(hosted))


def _allowed_entry(entry: object, tools: ClientTools, at: str) -> tuple[Sequence[ClientTool], JsonObject]:
    if not isinstance(entry, dict):
        raise wrong_type(at, "an object", entry)
    kind = text_at(f"{at}.type", entry.get("type"))
    if kind == "namespace":
        name = str(entry.get("name"))
        members = tools.in_namespace(name)
        if not members:
            raise _absent(name)
        return members, {"type": kind, "name": name}
    if kind in SCREENS or kind in ITEMS:  # one that is left out cannot be called anyway
        return (), dict(entry)
    tool, echo = _named(entry, kind, tools, at)
    return (tool,), echo


def _named(value: JsonObject, kind: str, tools: ClientTools, at: str) -> tuple[ClientTool, JsonObject]:
    """Return the tool that a choice names at this path, and how that is echoed."""
    if kind in ("function", "custom"):
        return _by_name(value, kind, tools, at)
    if kind in CLIENT_KINDS:
        tool = tools.of_type(kind)
        if tool is None and kind == "tool_search" and any(each.found for each in tools):
            raise _invalid("A search for tools that the server runs cannot be named: the model may always search.")
        if tool is None:
            raise _absent(kind)
        return tool, {"type": kind}
    if kind in SCREENS:
        raise unsupported_parameter(PARAM, NO_SCREEN)
    known = ", ".join(repr(each) for each in ("function", "custom", "allowed_tools", *CLIENT_KINDS, *ITEMS))
    raise invalid_value(f"{at}.type", f"{kind[:80]!r}. Supported values are: {known}.")


def _by_name(value: JsonObject, kind: str, tools: ClientTools, at: str) -> tuple[ClientTool, JsonObject]:
    nested = value.get(kind)  # the Chat Completions form
    choice, at = (nested, f"{at}.{kind}") if isinstance(nested, dict) else (value, at)
    name, namespace = text_at(f"{at}.name", choice.get("name")), choice.get("namespace")
    called = called_name(name, namespace if isinstance(namespace, str) else None)
    tool = tools.get(called)
    if tool is None or tool.type != kind:
        raise _absent(called)
    return tool, {"type": kind, "name": name, **({"namespace": namespace} if isinstance(namespace, str) else {})}


def _absent(name: str) -> ApiError:
    return _Absent(f"The tool '{name[:256]}' is not in 'tools'.")


def _invalid(message: str) -> ApiError:
    return invalid_request(_WRONG + message, param=PARAM, code="invalid_value")
