"""The tools that clients execute, and how the model calls each, of which the items of calls are made.

They are made of the tools as they are echoed in the response object and of nothing else: so whoever makes the machine
of a response, on any worker and at any time, makes the same items. Tools that clients do not execute (a web
search) are left out, and so is what cannot be read: an older version may have kept it.

A tool's `allowed_callers` says whether the model calls it itself (`direct`), or its programs do (`programmatic`), or
both.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from engine.formats.base import FunctionTool
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.files.skills import ToldSkill, told
from responses_app.protocol.items.calls import CLIENT_KINDS, NAME, called_name, is_hosted_shell, json_text

_NAME = re.compile(NAME)  # what is kept of an older version may have any name
_IN_BACKGROUND = (
    "This runs in the background: its output comes later, when it is done. Do not wait for it, and do not call it "
    "again for the same thing: go on with what can be done without it, or tell the user that it runs."
)


@dataclass(frozen=True, slots=True)
class ClientTool:
    """One tool that clients execute."""

    type: str  # `function`, `custom`, or a kind of `CLIENT_KINDS`
    name: str
    namespace: str | None = None
    description: str = ""
    schema: str = ""  # of a call's arguments, as JSON text; "": nothing is said of them
    # False: the schema is only shown. None, in a tool that came later: it is enforced where it can be.
    strict: bool | None = True
    format: JsonObject | None = None  # of a custom tool's input; None: any text
    is_async: bool = False  # the model goes on before its output has come
    deferred: bool = False  # a search for tools is to find it before it is shown
    found: bool = False  # a search of this server's finds it
    at: str = ""  # where it stands in the request
    by_model: bool = True  # the model calls it itself
    by_programs: bool = False  # programs of the model's call it
    output_schema: str = ""  # of what comes of a call, as JSON text; programs are told of it

    @property
    def called(self) -> str:
        """What the model calls."""
        return called_name(self.name, self.namespace)

    @property
    def is_custom(self) -> bool:
        """Whether it is called with text as it is."""
        return self.type == "custom"

    @property
    def definition(self) -> str:
        """The grammar of a custom tool's input; "" for any text."""
        return str((self.format or {}).get("definition") or "")

    @property
    def content_at(self) -> str:
        """Where the request says what may stand in a call."""
        return f"{self.at}.{'format.definition' if self.is_custom else 'parameters'}"

    @property
    def field(self) -> str:
        """The field of a request that an error about its content names; a late tool may stand in an earlier one."""
        return self.content_at if self.at.startswith("tools") else "input"

    def declaration(self) -> FunctionTool:
        """Return what the model is told of it."""
        lines = [self.description] if self.description else []
        if self.definition:
            syntax = str((self.format or {}).get("syntax"))
            lines.append(f"Its input is text as it is, no JSON, in this grammar ({syntax}):\n{self.definition}")
        elif self.is_custom:
            lines.append("Its input is text as it is, no JSON.")
        if self.is_async:
            lines.append(_IN_BACKGROUND)
        return FunctionTool(self.called, "\n".join(lines), self.schema, freeform=self.is_custom)


class ClientTools:
    """The tools of one request, by what the model calls; immutable."""

    def __init__(self, tools: Iterable[ClientTool] = ()) -> None:
        self.by_name: Mapping[str, ClientTool] = {tool.called: tool for tool in tools}  # by what the model calls
        self._by_type = {tool.type: tool for tool in reversed(self.by_name.values())}  # the first of each
        self.by_namespace: dict[str, list[ClientTool]] | None = None  # made when it is asked for first

    def __iter__(self) -> Iterator[ClientTool]:
        return iter(self.by_name.values())

    def __len__(self) -> int:
        return len(self.by_name)

    @property
    def names(self) -> Collection[str]:
        """What the model can call."""
        return self.by_name.keys()

    @property
    def in_background(self) -> Collection[str]:
        """What the model calls and goes on without: the output may come at any time."""
        return [called for called, tool in self.by_name.items() if tool.is_async]

    def get(self, called: str) -> ClientTool | None:
        """Return the tool that the model calls so."""
        return self.by_name.get(called)

    def of_type(self, type: str) -> ClientTool | None:
        """Return the tool of a kind of which there is one."""
        return self._by_type.get(type)

    def in_namespace(self, name: str) -> Sequence[ClientTool]:
        """Return the members of a namespace."""
        if self.by_namespace is None:
            self.by_namespace = {}
            for tool in self:
                if tool.namespace is not None:
                    self.by_namespace.setdefault(tool.namespace, []).append(tool)
        return self.by_namespace.get(name, ())

    def shown(self) -> list[ClientTool]:
        """Return those that the model is told of: but for what it can look for, all."""
        searches = "tool_search" in self._by_type
        return [tool for tool in self.by_name.values() if not (tool.deferred and (searches or tool.found))]

    def joined(self, more: Iterable[ClientTool]) -> "ClientTools":
        """Return these, and those that came later: they can be called now."""
        joined = list(self)
        for tool in more:
            known = self.get(tool.called)  # a search of this server's may have found it
            found = tool.found or (known is not None and known.found)
            joined.append(replace(tool, deferred=False, found=found))
        return ClientTools(joined)


NO_CLIENT_TOOLS = ClientTools()


def read_tools(tools: object, *, at: str = "tools") -> list[ClientTool]:
    """Return the tools that clients execute and the model calls, of those that stand at the path `at`."""
    declared = [tool for tool in _read_all(tools, at) if tool.by_model]
    if any(map(is_search_of_server, tools if isinstance(tools, list) else ())):
        return [replace(tool, found=tool.deferred) for tool in declared]
    return declared


def by_programs(declared: JsonObject) -> bool:
    """Whether programs may call a declared tool."""
    callers = declared.get("allowed_callers")
    return isinstance(callers, list) and "programmatic" in callers


def by_model(declared: JsonObject) -> bool:
    """Whether the model may call a declared tool itself."""
    callers = declared.get("allowed_callers")
    return not isinstance(callers, list) or "direct" in callers


def functions_of_programs(tools: Sequence[JsonObject]) -> list[ClientTool]:
    """Return the functions of the client's that programs may call."""
    return [tool for tool in _read_all(list(tools), "tools") if tool.by_programs and tool.type == "function"]


def _read_all(tools: object, at: str) -> list[ClientTool]:
    declared: list[ClientTool] = []
    for index, tool in enumerate(tools if isinstance(tools, list) else ()):
        if isinstance(tool, dict):
            declared += _read(tool, f"{at}[{index}]", None)
    return declared


def is_search_of_server(tool: object) -> bool:
    """Whether a declared tool is the search for tools, and this server runs it."""
    return isinstance(tool, dict) and tool.get("type") == "tool_search" and tool.get("execution") != "client"


def late_tools(items: Iterable[JsonObject]) -> list[JsonObject]:
    """Return the tools that items of a conversation declare: those that came later, and those that a search found."""
    declared: list[JsonObject] = []
    for item in items:
        if item.get("type") in ("additional_tools", "tool_search_output"):
            tools = item.get("tools")
            declared += [tool for tool in tools if isinstance(tool, dict)] if isinstance(tools, list) else []
    return declared


def _read(tool: JsonObject, at: str, namespace: str | None) -> list[ClientTool]:
    kind, name = tool.get("type"), tool.get("name")
    if not isinstance(kind, str):
        return []
    if is_hosted_shell(tool):
        return []
    if kind in CLIENT_KINDS and namespace is None:
        return _of_kind(tool, at)
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        return []
    # A namespace in a namespace is left out: only one level has names.
    if kind == "namespace" and namespace is None:
        inside = tool.get("tools")
        members = enumerate(inside if isinstance(inside, list) else ())
        return [each for i, m in members if isinstance(m, dict) for each in _read(m, f"{at}.tools[{i}]", name)]
    if kind not in ("function", "custom"):
        return []
    parameters, form, strict = (tool.get(name) for name in ("parameters", "format", "strict"))
    returned = tool.get("output_schema")
    return [
        ClientTool(
            type=kind,
            name=name,
            namespace=namespace,
            description=_text(tool.get("description")),
            schema=schema_text(parameters if isinstance(parameters, dict) else None),
            strict=strict if isinstance(strict, bool) else None,
            format=form if isinstance(form, dict) else None,
            is_async=tool.get("async") is True,
            deferred=tool.get("defer_loading") is True,
            at=at,
            by_model=by_model(tool),
            by_programs=by_programs(tool),
            output_schema=schema_text(returned if isinstance(returned, dict) else None),
        )
    ]


def _of_kind(tool: JsonObject, at: str) -> list[ClientTool]:
    kind = CLIENT_KINDS[str(tool["type"])]
    description, schema = kind.description, kind.shown
    if kind.type == "tool_search":
        if is_search_of_server(tool):
            return []
        description = _text(tool.get("description")) or description
        own = tool.get("parameters")
        schema = json_text(own) if isinstance(own, dict) else schema
    if kind.type == "shell":
        description = "\n".join(filter(None, (description, _skills(tool.get("environment")))))
    return [ClientTool(type=kind.type, name=kind.type, description=description, schema=schema, at=at)]


def _skills(environment: object) -> str:
    """Return what the model is told of the skills that the client's shell has; "" for none."""
    skills = environment.get("skills") if isinstance(environment, dict) else None
    return told(
        ToldSkill(str(each.get("name")), str(each.get("description")), str(each.get("path")))
        for each in (skills if isinstance(skills, list) else ())
        if isinstance(each, dict)
    )


def schema_text(parameters: JsonObject | None) -> str:
    """Return a function's parameters as the schema that is kept of them; "" where nothing is said of arguments."""
    return "" if parameters is None else json_text(parameters)


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
