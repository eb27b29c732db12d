"""The tools of a request: the client's are functions, those that the server runs are its own under other names.

custom                          function
bash_…, text_editor_…, memory_… function, with the schema that Anthropic's models know
web_search_…, web_fetch_…       web_search: one tool, which searches and opens pages
code_execution_…                code_interpreter
computer_…, browser_…           computer, which no model here sees
mcp_servers, mcp_toolset        mcp, without asking for approval
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from pydantic import Field

from responses_app.protocol.errors import JsonObject, invalid_value
from responses_app.protocol.fields import ClientModel, Refused, missing, note_ignored, validate, wrong_type
from responses_app.protocol.items.calls import MAX_NAME, NAME
from responses_app.protocol.messages.server_blocks import CACHED, CODE, FETCH, SEARCH

MAX_SERVERS = 20  # MCP servers of one request
_DIRECT = {
    "allowed_callers": Refused(
        "Code does not call tools here: the model calls them itself. Leave it out, or name 'direct'.",
        takes=(["direct"],),
    )
}
_IDLE = {
    **CACHED,
    "defer_loading": "The model is shown all tools.",
    "strict": "Calls are always constrained to their schema.",
    "response_inclusion": "What came of a call always stands in the answer.",
}


_IDLE_FUNCTION = {
    **CACHED,
    "defer_loading": "The model is shown all tools.",
    "allowed_callers": "The model calls them itself.",
    "input_examples": "Write them into the description.",
}
_TOLD_FUNCTION = ("defer_loading", "input_examples")


# Tools that Anthropic defines and the client runs: its models know them by their types, models here as functions.


class KnownTool(ClientModel):
    """One of these tools."""

    type: str
    name: str = Field(min_length=1, max_length=64)
    strict: bool | None = None

    idle: ClassVar = {**_IDLE_FUNCTION, "max_characters": "The client shows as much as it likes."}
    told: ClassVar = _TOLD_FUNCTION


def _object(required: str, **properties: JsonObject) -> JsonObject:
    return {"type": "object", "properties": properties, "required": required.split(), "additionalProperties": False}


def _text_field(about: str) -> JsonObject:
    return {"type": "string", "description": about}


def _command(*names: str) -> JsonObject:
    return {"type": "string", "enum": list(names)}


_PATH = _text_field("The path of a file or a folder.")
_RANGE: JsonObject = {"type": "array", "items": {"type": "integer"}, "description": "First and last line; -1: the end."}
_LINE: JsonObject = {"type": "integer", "description": "Of `insert`: the line behind which; 0: at the beginning."}
_EDITS: Mapping[str, JsonObject] = {
    "path": _PATH,
    "view_range": _RANGE,
    "file_text": _text_field("Of `create`: what the file is to hold."),
    "old_str": _text_field("Of `str_replace`: what stands there, exactly and once."),
    "new_str": _text_field("Of `str_replace`: what is to stand there."),
    "insert_line": _LINE,
}
_EDITS_BY = ("view", "create", "str_replace", "insert")
_RESTART: JsonObject = {"type": "boolean", "description": "Begin the shell anew."}
_BASH = _object("", command=_text_field("What to run."), restart=_RESTART)
_INSERTED = {"insert_text": _text_field("Of `insert`: the text.")}
_MEMORY = _object(
    "command",
    command=_command(*_EDITS_BY, "delete", "rename"),
    **_EDITS,
    **_INSERTED,
    old_path=_text_field("Of `rename`: what is renamed."),
    new_path=_text_field("Of `rename`: its new path."),
)
_ABOUT_BASH = "Run commands in a shell, which keeps its state from call to call."
_ABOUT_EDITOR = "View, create and edit files."
_ABOUT_MEMORY = "Keep what is worth remembering in files under /memories. Look there before you begin."
_Editor = tuple[str, str, JsonObject]
# By the type of a tool: its name, what the model is told of it, and the schema of its calls.
KNOWN_TOOLS: Mapping[str, _Editor] = {
    **dict.fromkeys(("bash_20241022", "bash_20250124"), ("bash", _ABOUT_BASH, _BASH)),
    **{
        kind: (name, _ABOUT_EDITOR, _object("command path", command=_command(*_EDITS_BY, *undo), **_EDITS, **inserted))
        for kind, name, undo, inserted in (
            ("text_editor_20241022", "str_replace_editor", ["undo_edit"], {}),
            ("text_editor_20250124", "str_replace_editor", ["undo_edit"], {}),
            ("text_editor_20250429", "str_replace_based_edit_tool", [], {}),
            ("text_editor_20250728", "str_replace_based_edit_tool", [], _INSERTED),
        )
    },
    "memory_20250818": ("memory", _ABOUT_MEMORY, _MEMORY),
}


class MessagesTool(ClientModel):
    """A function of the client's."""

    type: Literal["custom"] | None = None
    name: str = Field(min_length=1, max_length=MAX_NAME, pattern=NAME)
    description: str | None = None
    input_schema: dict[str, Any]
    strict: bool | None = None

    idle: ClassVar = {
        **_IDLE_FUNCTION,
        "eager_input_streaming": "What a call is made with always comes as it is written.",
    }
    told: ClassVar = _TOLD_FUNCTION


class Place(ClientModel):
    """About where the user is."""

    type: Literal["approximate"]
    city: str | None = None
    country: str | None = None
    region: str | None = None
    timezone: str | None = None


class WebTool(ClientModel):
    """A search of the web, or what opens its pages."""

    type: str
    name: Literal["web_search", "web_fetch"]
    allowed_domains: list[str] | None = None
    blocked_domains: list[str] | None = None
    max_uses: int | None = Field(default=None, ge=1)
    user_location: Place | None = None

    refused: ClassVar = {
        **_DIRECT,
        "url_sources": Refused("Which pages may be opened is said by 'allowed_domains' and 'blocked_domains'."),
    }
    idle: ClassVar = {
        **_IDLE,
        "citations": "The model cites what it has found, whatever is asked for.",
        "max_content_tokens": "How much of a page is shown at once is the server's.",
        "use_cache": "A page that is opened by its address is always fetched.",
    }
    told: ClassVar = ("defer_loading", "max_content_tokens")


class CodeTool(ClientModel):
    """Python, run by the server."""

    type: str
    name: Literal["code_execution"]

    refused: ClassVar = _DIRECT
    idle: ClassVar = {name: why for name, why in _IDLE.items() if name != "response_inclusion"}
    told: ClassVar = ("defer_loading",)


class ScreenTool(ClientModel):
    """A computer, or a browser, that the client shows: no model here sees it, so the tool is left out."""

    type: str
    name: str | None = None

    idle: ClassVar = dict.fromkeys(
        "allowed_callers cache_control configs defer_loading display_height_px display_number display_width_px "
        "enable_zoom input_examples strict".split(),
        "No model here sees a screen: the tool is left out.",
    )


class ToolSwitch(ClientModel):
    """Whether a tool of an MCP server may be called."""

    enabled: bool | None = None

    idle: ClassVar = {"defer_loading": "The model is shown all tools."}
    told: ClassVar = ("defer_loading",)


class McpToolset(ClientModel):
    """Which tools of an MCP server may be called."""

    type: Literal["mcp_toolset"]
    mcp_server_name: str = Field(min_length=1, max_length=256)
    default_config: ToolSwitch | None = None
    configs: dict[str, ToolSwitch] | None = None

    refused: ClassVar = {"tools": Refused("Send the block 'mcp_tool_listing' back, which says the same.")}
    idle: ClassVar = CACHED


class ServerTools(ClientModel):
    """Which tools of an MCP server may be called, as it was said before there were toolsets."""

    enabled: bool | None = None
    allowed_tools: list[str] | None = None


class MessagesMcpServer(ClientModel):
    """An MCP server at its URL; one without is the operator's, by its name."""

    type: Literal["url"]
    name: str = Field(min_length=1, max_length=64)
    url: str | None = Field(default=None, min_length=1)
    authorization_token: str | None = Field(default=None, repr=False)
    tool_configuration: ServerTools | None = None


class MessagesToolChoice(ClientModel):
    """Which tools the model may call; `name` is that of the type `tool`."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


WEB_TOOLS = tuple(
    f"{name}_{day}"
    for name, days in ((SEARCH, "20250305 20260209 20260318"), (FETCH, "20250910 20260209 20260309 20260318"))
    for day in days.split()
)
SCREEN_TOOLS = (
    *("computer_20241022", "computer_20250124", "computer_20251124"),
    *("computer_toolset_20260801", "browser_toolset_20260801"),
)
CODE_TOOLS = tuple(f"{CODE}_{day}" for day in "20250522 20250825 20260120 20260521".split())
TOOLS: Mapping[str, type[ClientModel]] = {
    "custom": MessagesTool,
    **dict.fromkeys(KNOWN_TOOLS, KnownTool),
    **dict.fromkeys(WEB_TOOLS, WebTool),
    **dict.fromkeys(CODE_TOOLS, CodeTool),
    **dict.fromkeys(SCREEN_TOOLS, ScreenTool),
    "mcp_toolset": McpToolset,
}
_FIELDS = (  # of the tools here, and as the client has them
    (".filters.allowed_domains", ".allowed_domains"),
    (".filters.blocked_domains", ".blocked_domains"),
    (".server_label", ".name"),
    (".server_url", ".url"),
    (".authorization", ".authorization_token"),
    (".parameters", ".input_schema"),
)


@dataclass(slots=True)
class ReadTools:
    """Tools as a request of the Responses API has them."""

    tools: list[JsonObject] = field(default_factory=list)
    places: list[str] = field(default_factory=list)  # where each stands in the client's request
    # Where each of the server's stands, and how often it may be called; None: as often as the model likes.
    uses: list[tuple[str, int | None]] = field(default_factory=list)
    choices: dict[str, JsonObject] = field(default_factory=dict)  # tools of the server, by the names that choose them

    @property
    def serves(self) -> bool:
        """Whether the server runs any of them."""
        return bool(self.uses)

    def name_of(self, index: int, rest: str) -> str:
        """Return the client's name of a field of a tool."""
        if index >= len(self.places):
            return "tools"
        at = self.places[index]
        if rest.startswith(".container"):
            return rest[1:]
        for old, new in _FIELDS:
            if rest.startswith(old):
                return at + new + rest[len(old) :]
        return at + rest

    def add(self, tool: JsonObject, at: str) -> None:
        """Take a tool, which stands at this path."""
        self.tools.append(tool)
        self.places.append(at)

    @property
    def max_calls(self) -> int | None:
        """How many calls of the server's tools are made; None: as many as the model likes."""
        bounds = [uses for _, uses in self.uses if uses is not None]
        return sum(bounds) if bounds and len(bounds) == len(self.uses) else None


def read_tools(tools: object, servers: object, container: str | None) -> ReadTools:
    """Validate the tools and the MCP servers of a request. Raises `ApiError` that names the field."""
    if tools is not None and not isinstance(tools, list):
        raise wrong_type("tools", "an array of tools", tools)
    reader = _ToolReader(container, _servers(servers))
    for index, value in enumerate(tools or ()):
        reader.take(value, f"tools[{index}]")
    reader.end()
    return reader.read


def choice_fields(choice: MessagesToolChoice | None, read: ReadTools) -> JsonObject:
    """Return the fields of a choice in a request of the Responses API."""
    if choice is None:
        return {}
    fields: JsonObject = {"parallel_tool_calls": False} if choice.disable_parallel_tool_use else {}
    match choice.type:
        case "tool":
            if not choice.name:
                raise missing("tool_choice.name")
            fields["tool_choice"] = read.choices.get(choice.name) or {"type": "function", "name": choice.name}
        case "any":
            fields["tool_choice"] = "required"
        case _:
            fields["tool_choice"] = choice.type
    return fields


def _servers(value: object) -> dict[str, tuple[str, MessagesMcpServer]]:
    """Return the MCP servers of a request by their names, each with where it stands."""
    if value is not None and not isinstance(value, list):
        raise wrong_type("mcp_servers", "an array of MCP servers", value)
    if value and len(value) > MAX_SERVERS:
        raise invalid_value("mcp_servers", f"at most {MAX_SERVERS} servers are taken.")
    servers: dict[str, tuple[str, MessagesMcpServer]] = {}
    for index, each in enumerate(value or ()):
        at = f"mcp_servers[{index}]"
        if not isinstance(each, dict):
            raise wrong_type(at, "an object", each)
        server = validate(MessagesMcpServer, each, at=at)
        if server.name in servers:
            raise invalid_value(f"{at}.name", f"'{server.name}' is declared twice. Give each server its own.")
        servers[server.name] = at, server
    return servers


class _ToolReader:
    """Reads the tools of a request, one after the other."""

    def __init__(self, container: str | None, servers: Mapping[str, tuple[str, MessagesMcpServer]]) -> None:
        self.read = ReadTools()
        self._container = container
        self._servers = servers
        self._used: dict[str, McpToolset] = {}  # toolsets, by the names of their servers
        self._web: JsonObject | None = None  # the one tool that web tools are

    def take(self, value: object, at: str) -> None:
        """Read a tool, which stands at this path."""
        if not isinstance(value, dict):
            raise wrong_type(at, "an object", value)
        kind = value.get("type") or "custom"
        model = TOOLS.get(kind) if isinstance(kind, str) else None
        if model is None:
            known = ", ".join(repr(each) for each in TOOLS)
            raise invalid_value(f"{at}.type", f"{str(kind)[:80]!r}. Supported values are: {known}.")
        tool = validate(model, value, at=at)
        match tool:
            case MessagesTool():
                self.read.add(_function(tool.name, tool.input_schema, tool.description, tool.strict), at)
            case KnownTool():
                name, about, schema = KNOWN_TOOLS[tool.type]
                _check_name(tool.name, name, at)
                self.read.add(_function(name, schema, about, tool.strict), at)
            case WebTool():
                _check_name(tool.name, tool.type.rpartition("_")[0], at)
                self._browses(tool, at)
            case CodeTool():
                self._serve({"type": "code_interpreter", "container": self._container or {"type": "auto"}}, at)
                self.read.choices[CODE] = {"type": "code_interpreter"}
            case ScreenTool():
                self.read.add({"type": "computer"}, at)
                self.read.choices[tool.name or "computer"] = {"type": "computer"}
            case McpToolset():
                self._uses(tool, at)

    def end(self) -> None:
        """Take the servers that no toolset names: all of them, as it was before there were toolsets."""
        for name, (at, server) in self._servers.items():
            if name in self._used:
                continue
            if self._used:
                raise invalid_value(f"{at}.name", f"no 'mcp_toolset' of 'tools' has 'mcp_server_name': '{name}'.")
            asked = server.tool_configuration or ServerTools()
            if asked.enabled is not False:
                self._serve(_mcp(server, asked.allowed_tools), at)
        if self.read.max_calls is None:
            # One bound holds for all of them, so a tool without one lifts those of the others.
            for at, uses in self.read.uses:
                if uses is not None:
                    note_ignored(f"{at}.max_uses")
        if self._container is not None and CODE not in self.read.choices:
            note_ignored("container")

    def _serve(self, tool: JsonObject, at: str, uses: int | None = None) -> None:
        self.read.add(tool, at)
        self.read.uses.append((at, uses))

    def _browses(self, tool: WebTool, at: str) -> None:
        if tool.allowed_domains and tool.blocked_domains:
            raise invalid_value(f"{at}.blocked_domains", "it cannot be used together with 'allowed_domains'.")
        filters = {"allowed_domains": tool.allowed_domains, "blocked_domains": tool.blocked_domains or None}
        declared: JsonObject = {
            "type": SEARCH,
            "filters": {name: value for name, value in filters.items() if value is not None},
        }
        if tool.user_location is not None:
            declared["user_location"] = tool.user_location.model_dump(exclude_none=True)
        self.read.choices[tool.name] = {"type": SEARCH}
        if self._web is None:
            self._web = declared
            self._serve(declared, at, tool.max_uses)
            return
        # One tool searches and opens pages here, so what is said of both has to be the same.
        if declared["filters"] != self._web["filters"]:
            raise invalid_value(at, "'web_search' and 'web_fetch' are one tool here: give both the same domains.")
        self._web.update(declared)
        self.read.uses.append((at, tool.max_uses))

    def _uses(self, toolset: McpToolset, at: str) -> None:
        name = toolset.mcp_server_name
        if name not in self._servers:
            raise invalid_value(f"{at}.mcp_server_name", f"no server of 'mcp_servers' is called {name[:80]!r}.")
        if name in self._used:
            raise invalid_value(f"{at}.mcp_server_name", f"'{name}' has a toolset already.")
        self._used[name] = toolset
        place, server = self._servers[name]
        if toolset.default_config is None or toolset.default_config.enabled is not False:
            for tool, switch in (toolset.configs or {}).items():
                if switch.enabled is False:
                    raise invalid_value(
                        f"{at}.configs",
                        f"{tool[:80]!r} alone cannot be switched off: switch all off in 'default_config', and those on "
                        "that may be called.",
                    )
            self._serve(_mcp(server, None), place)
            return
        self._serve(_mcp(server, [tool for tool, switch in (toolset.configs or {}).items() if switch.enabled]), place)


def _mcp(server: MessagesMcpServer, allowed: Sequence[str] | None) -> JsonObject:
    tool: JsonObject = {"type": "mcp", "server_label": server.name, "require_approval": "never"}
    given = {"server_url": server.url, "authorization": server.authorization_token, "allowed_tools": allowed}
    return tool | {name: value for name, value in given.items() if value is not None}


def _function(name: str, schema: JsonObject, description: str | None, strict: bool | None) -> JsonObject:
    function: JsonObject = {"type": "function", "name": name, "parameters": schema}
    if description is not None:
        function["description"] = description
    if strict is not None:
        function["strict"] = strict
    return function


def _check_name(given: str, name: str, at: str) -> None:
    if given != name:
        raise invalid_value(f"{at}.name", f"a tool of this type is called '{name}'.")
