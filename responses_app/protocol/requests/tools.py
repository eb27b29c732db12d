"""The tools a request declares, validated and as they are echoed, and its choice among them (`tool_choice`).

Those that a server runs are `server_tools`'s to read; whether they can be had here is known to the service alone.
`computer` is accepted, and left out there, since the model cannot see a screen. What all others are to the model is
`client_tools`'s to say, but for what may stand in their calls: that takes the engine's grammars (`content_of`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from pydantic import Field

from engine.contents.budget import SharedBudgetSpent, shared_budget
from engine.contents.regexes import check_regex
from engine.contents.schemas import enforceable
from engine.errors import GrammarRefused
from engine.types import AnyObject, AnyText, Content, JsonSchema, Lark, Regex
from responses_app.protocol.errors import ApiError, JsonObject, invalid_request, invalid_value, unsupported_parameter
from responses_app.protocol.fields import (
    CallableTool,
    ClientModel,
    ToolModel,
    missing,
    note_ignored,
    one_of,
    text_at,
    validate,
    wrong_type,
)
from responses_app.protocol.items.calls import CLIENT_KINDS, MAX_NAME, NAME, called_name
from responses_app.protocol.items.client_tools import (
    ClientTool,
    ClientTools,
    functions_of_programs,
    is_search_of_server,
    read_tools,
    schema_text,
)
from responses_app.protocol.items.offers import SEARCH_CALL as SEARCH_CALL
from responses_app.protocol.items.offers import OfferedTool
from responses_app.protocol.requests.server_tools import (
    ITEMS,
    NO_SCREEN,
    SCREENS,
    SHELL_ITEM,
    item_of,
    parse_server_tool,
    refuse_double_labels,
    refuse_without_programs,
)

# Kinds whose calls are held to another schema than the model is shown: one that is easier to read.
_SHOWN_OTHERWISE = [kind.type for kind in CLIENT_KINDS.values() if kind.shown != kind.schema]
# The schema of a function without parameters.
_NO_ARGUMENTS = '{"type":"object","properties":{},"additionalProperties":false}'


class _Callable(CallableTool):
    """What functions and custom tools have in common."""

    name: str = Field(min_length=1, max_length=MAX_NAME, pattern=NAME)
    description: str | None = None
    is_async: bool | None = Field(default=None, alias="async")  # the model goes on before its output has come
    defer_loading: bool | None = None  # a search for tools is to find it before the model is shown it
    allowed_callers: Sequence[str] | None = None

    def further(self) -> JsonObject:
        """Return the fields that are echoed only where they were given."""
        fields: JsonObject = {
            "async": self.is_async,
            "defer_loading": self.defer_loading,
            "allowed_callers": self.allowed_callers,
        }
        return {name: value for name, value in fields.items() if value is not None}


class Function(_Callable):
    """A function tool in the Responses API's flat form."""

    parameters: dict[str, object] | None = None  # a JSON schema
    strict: bool | None = None  # None: where its schema can be enforced
    output_schema: dict[str, object] | None = None

    allowed_callers: list[Literal["direct", "programmatic"]] | None = Field(default=None, min_length=1)

    refused: ClassVar = {}

    def echoed(self) -> JsonObject:
        """Return it as OpenAI does."""
        output_schema: JsonObject = {} if self.output_schema is None else {"output_schema": self.output_schema}
        return {
            "type": "function",
            "name": self.name,
            "description": self.description,
            "parameters": self.parameters,
            "strict": _is_strict(self.parameters) if self.strict is None else self.strict,
            **output_schema,
            **self.further(),
        }


class CustomFormat(ClientModel):
    """What the input of a custom tool is: any text, or what a grammar derives."""

    type: Literal["text", "grammar"]
    syntax: Literal["lark", "regex"] | None = None
    definition: str | None = Field(default=None, min_length=1)  # the grammar; for `grammar` alone


class Custom(_Callable):
    """A custom tool: its input is text."""

    format: CustomFormat | None = None

    def echoed(self) -> JsonObject:
        """Return it as OpenAI does."""
        form = self.format or CustomFormat(type="text")
        shown = {"type": "text"} if form.type == "text" else form.model_dump()
        described = {} if self.description is None else {"description": self.description}
        return {"type": "custom", "name": self.name, **described, "format": shown, **self.further()}


class Namespace(ToolModel):
    """Functions and custom tools under one name."""

    name: str = Field(min_length=1, max_length=MAX_NAME, pattern=NAME)
    description: str | None = None
    tools: list[object]  # each is read by itself, for errors with its place


class _LocalSkill(ClientModel):
    """What the model may read about in the client's files."""

    name: str
    description: str
    path: str


class _LocalEnvironment(ClientModel):
    """The client runs the commands."""

    type: Literal["local"] = "local"
    skills: list[_LocalSkill] | None = None


class Shell(CallableTool):
    """A shell that the client runs."""

    environment: _LocalEnvironment | None = None


class ApplyPatch(CallableTool):
    """Patches that the client applies."""


class Screen(ToolModel):
    """A computer that nobody here can look at: it is accepted, and left out."""

    idle: ClassVar = dict.fromkeys(
        ("display_height", "display_width", "environment"), "No model here sees a screen: the tool is left out."
    )


class LocalShell(ToolModel):
    """The older shell, which the client runs."""


class ToolSearch(ToolModel):
    """The search for tools: the client's, or this server's, which has words and a schema of its own."""

    execution: Literal["server", "client"] | None = None
    description: str | None = None
    parameters: dict[str, object] | None = None


CLIENT_TOOLS: Mapping[str, type[ToolModel]] = {
    "function": Function,
    "custom": Custom,
    "namespace": Namespace,
    "local_shell": LocalShell,
    "shell": Shell,
    "apply_patch": ApplyPatch,
    "tool_search": ToolSearch,
    "computer": Screen,
    "computer_use_preview": Screen,
}
_KINDS = dict.fromkeys((*CLIENT_TOOLS, *ITEMS))  # of all tools


def parse_tools(value: object, *, at: str = "tools") -> list[JsonObject]:
    """Validate `tools`: return all of them in the form they are echoed in."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise wrong_type(at, "an array of tools", value)
    # One budget for all: a thousand tools that each take long to check would hold a worker.
    with shared_budget():
        tools = [_tool(tool, f"{at}[{index}]") for index, tool in enumerate(value)]
    refuse_double_labels(tools)
    refuse_without_programs(tools)
    searches = [index for index, tool in enumerate(tools) if tool.get("type") == "tool_search"]
    if len(searches) > 1:
        raise invalid_value(f"tools[{searches[1]}]", "'tool_search' is declared twice. Declare it once.")
    return tools


def callable_tools(echoed: list[JsonObject]) -> ClientTools:
    """Return those of the tools that the model can call. Raises `ApiError` for two of one name."""
    tools = read_tools(echoed)
    known: dict[str, ClientTool] = {}
    for tool in tools:
        if tool.called in known:
            raise invalid_value(
                f"{tool.at}.name",
                f"the tool '{tool.called}' is declared twice, the first time in "
                f"'{known[tool.called].at}'. Give each tool a name of its own.",
            )
        known[tool.called] = tool
    return ClientTools(tools)


def _tool(tool: object, at: str) -> JsonObject:
    if not isinstance(tool, dict):
        raise wrong_type(at, "an object", tool)
    kind = one_of(f"{at}.type", tool.get("type"), _KINDS)
    if kind == "namespace":
        return _namespace(tool, at)
    if kind in ("function", "custom"):
        return _callable(tool, at, namespace=None)
    if tool.get("async") is not None:
        raise _unknown_parameter(f"{at}.async")
    if item_of(tool) is not None:
        return parse_server_tool(tool, at)
    return _run_by_client(tool, at)


def _run_by_client(tool: JsonObject, at: str) -> JsonObject:
    environment = tool.get("environment") if tool["type"] == "shell" else None
    kind = environment.get("type") if isinstance(environment, dict) else "local"
    if kind is None:
        raise missing(f"{at}.environment.type")
    if kind != "local":  # one of the server's is read elsewhere
        known = "'local', 'container_auto' or 'container_reference'"
        raise invalid_value(f"{at}.environment.type", f"{str(kind)[:80]!r}. Supported values are: {known}.")
    # It is echoed as it came: the model of its kind only checks it.
    validate(CLIENT_TOOLS[str(tool["type"])], tool, at=at)
    if is_search_of_server(tool):
        for name in ("description", "parameters"):
            if tool.get(name) is not None:
                note_ignored(f"{at}.{name}")
    return tool


def _callable(tool: JsonObject, at: str, *, namespace: str | None) -> JsonObject:
    """Validate a function or a custom tool, in the Responses API's form or that of Chat Completions."""
    kind = str(tool["type"])
    nested = tool.get(kind)
    # Chat Completions nests the function; errors name it where its client has written it.
    if isinstance(nested, dict) and "name" not in tool:
        tool, at = {"type": kind, **nested}, f"{at}.{kind}"
    if kind == "function":
        declared: Function | Custom = validate(Function, tool, at=at)
    else:
        declared = _custom(tool, at)
    # The model calls `namespace.name`, whose length is bounded as a whole.
    if namespace is not None and len(namespace) + 1 + len(declared.name) > MAX_NAME:
        raise invalid_value(f"{at}.name", f"with its namespace it has more than {MAX_NAME} characters.")
    return declared.echoed()


def _custom(tool: JsonObject, at: str) -> Custom:
    form, form_at = tool.get("format"), f"{at}.format"
    grammar = form.get("grammar") if isinstance(form, dict) else None
    if grammar is not None:  # the Chat Completions form
        form_at = f"{form_at}.grammar"
        if not isinstance(grammar, dict):
            raise wrong_type(form_at, "an object", grammar)
        tool = {name: value for name, value in tool.items() if name != "format"}
    custom = validate(Custom, tool, at=at)
    if grammar is not None:
        form = validate(CustomFormat, {**grammar, "type": "grammar"}, at=form_at)
        custom = custom.model_copy(update={"format": form})
    if custom.format is not None and custom.format.type == "grammar":
        for name in ("syntax", "definition"):
            if getattr(custom.format, name) is None:
                raise missing(f"{form_at}.{name}")
        if custom.format.syntax == "regex":
            try:
                check_regex(custom.format.definition or "")
            except GrammarRefused as refused:
                raise invalid_value(f"{form_at}.definition", refused.reason) from refused
    return custom


def _namespace(tool: JsonObject, at: str) -> JsonObject:
    if tool.get("async") is not None:
        raise _unknown_parameter(f"{at}.async")
    namespace = validate(Namespace, tool, at=at)
    members: list[JsonObject] = []
    for index, member in enumerate(namespace.tools):
        where = f"{at}.tools[{index}]"
        if not isinstance(member, dict):
            raise wrong_type(where, "an object", member)
        one_of(f"{where}.type", member.get("type"), ("function", "custom"))
        members.append(_callable(member, where, namespace=namespace.name))
    return {
        "type": "namespace",
        "name": namespace.name,
        "description": namespace.description or "",
        "tools": members,
    }


def _is_strict(parameters: JsonObject | None) -> bool:
    """Whether the model is held to the parameters of a function that does not say `strict`."""
    try:
        return can_be_enforced(schema_text(parameters))
    except SharedBudgetSpent as spent:
        message = f"Invalid value for 'tools'. {spent.reason}"
        raise invalid_request(message, param="tools", code="invalid_value") from spent


def _unknown_parameter(param: str) -> ApiError:
    return invalid_request(
        f"Unknown parameter: '{param}'. Functions and custom tools alone can run in the background.",
        param=param,
        code="unknown_parameter",
    )


def content_of(tool: ClientTool) -> Content:
    """Return the content that a call of a tool may have."""
    if tool.is_custom:
        if not tool.definition:
            return AnyText()
        return (Regex if (tool.format or {}).get("syntax") == "regex" else Lark)(tool.definition)
    if tool.strict is False or (tool.strict is None and not can_be_enforced(tool.schema)):
        return AnyText()
    schema = CLIENT_KINDS[tool.type].schema if tool.type in _SHOWN_OTHERWISE else tool.schema
    # `{}` allows any arguments, which are an object all the same.
    return JsonSchema(schema or _NO_ARGUMENTS) if schema != "{}" else AnyObject()


def can_be_enforced(schema: str) -> bool:
    """Whether a model can be held to a schema: where `strict` is not said, it is to those that this is true of.

    Raises `SharedBudgetSpent`.
    """
    try:
        enforceable(schema or _NO_ARGUMENTS)
    # It is a `GrammarRefused`, too, and says nothing of this schema: another error than "no".
    except SharedBudgetSpent:
        raise
    except GrammarRefused:
        return False
    return True


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
    known = ", ".join(map(repr, ("function", "custom", "allowed_tools", *CLIENT_KINDS, *ITEMS)))
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
