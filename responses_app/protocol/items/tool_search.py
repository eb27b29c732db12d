"""The search for tools that this server runs: what is searched, what the model is told of it, and what it finds.

    a request's `tools` with `defer_loading` ──> groups ──> told: the groups' names ──> the model searches
                                                    └──────────────────────────────────> find() ──> late declarations

A group is a namespace, an MCP server, or what stands in none. Of deferred tools the prompt has nothing but the names
and descriptions of their groups. What a search has found stands in an item of its own, and the model reads it there,
behind everything else: so the prompt before it stays as it was. `find` is pure, and ranks by words: a word counts more
in a tool's name than in the names of its arguments, and there more than in a description; one that many tools have
counts less.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from engine import orjson
from engine.formats.base import FunctionTool, ToolNamespace
from engine.types import JsonSchema
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.items.calls import json_text
from responses_app.protocol.items.client_tools import is_search_of_server, schema_text
from responses_app.protocol.items.offers import SEARCH, SEARCH_CALL, SEARCH_NAMESPACE, Offer, OfferedTool

MAX_FOUND = 8  # tools that one search finds by words
MIN_SHARE = 0.25  # of the best one's score that a tool needs to be found by words
MAX_NAMED = 64  # tools that one search loads by names, of tools and of groups
MAX_FOUND_BYTES = 256 * 1024  # of what one search finds, as JSON
MAX_WORDS = 16  # of a query; more are not looked for
MAX_PATHS = 32  # that one search names
MAX_READ = 2_000  # characters of a description in which words are looked for
MAX_TOLD = 200  # groups that the model is told of
MAX_TOLD_CHARACTERS = 500  # of what a group says of itself

_WORD = re.compile(r"[A-Z]?[^\W_A-Z]+|[A-Z]+(?![^\W_A-Z])")  # `listOpenOrders`, `list_open_orders`: three words each
_SCHEMA = json_text(
    {
        "type": "object",
        "properties": {
            "query": {"type": "string", "description": "what the tool is to do, in a few words"},
            "paths": {
                "type": "array",
                "items": {"type": "string"},
                "description": "names of namespaces, or of tools, that are to be loaded",
            },
        },
        "required": [],  # one of them is enough
        "additionalProperties": False,
    }
)
_TOLD = (
    "Finds tools that are not listed here. Those that it finds can be called from then on: search before you say that "
    "something cannot be done."
)


@dataclass(frozen=True, slots=True)
class ToolQuery:
    """What a search is for."""

    words: str = ""
    paths: Sequence[str] = ()  # names of groups or tools

    @classmethod
    def of(cls, arguments: str) -> "ToolQuery":
        """Return what the model asked for; arguments that cannot be read ask for nothing."""
        try:
            read = orjson.loads(arguments)
        except orjson.JSONDecodeError:
            read = {}
        query, paths = (read.get("query"), read.get("paths")) if isinstance(read, dict) else (None, None)
        named = [each for each in paths if isinstance(each, str)] if isinstance(paths, list) else []
        return cls(query if isinstance(query, str) else "", named[:MAX_PATHS])


@dataclass(frozen=True, slots=True)
class Searched:
    """A tool that can be found."""

    called: str  # what the model calls
    name: str  # in its group
    description: str
    arguments: str  # its schema, as JSON text
    shown: JsonObject = field(repr=False)  # how the item of the search's output shows it


@dataclass(frozen=True, slots=True)
class Group:
    """A namespace or an MCP server with deferred tools, or the tools in none."""

    name: str  # "" for the tools in none
    description: str
    head: JsonObject  # its declaration without the tools; empty for the tools in none
    tools: Sequence[Searched]

    def showing(self, tools: Sequence[Searched]) -> list[JsonObject]:
        """Return some of its tools as the item of the search's output shows them."""
        shown = [tool.shown for tool in tools]
        if not self.head:
            return shown
        allowed = {"allowed_tools": [tool.name for tool in tools]} if self.head["type"] == "mcp" else {}
        return [{**self.head, **allowed, "tools": shown}]


def is_deferred(tool: JsonObject) -> bool:
    """Whether a declared tool is one that is to be found before the model is shown it."""
    return tool.get("defer_loading") is True


def search_offer(tools: Sequence[JsonObject]) -> Offer | None:
    """Return the search that the model gets, where a request declares one for this server to run.

    None where it does not, and where there is nothing to be found.
    """
    if not any(map(is_search_of_server, tools)):
        return None
    told = [*_told(tools)]
    alone = any(tool.get("type") in ("function", "custom") and is_deferred(tool) for tool in tools)
    if not (told or alone):
        return None
    lines = [_TOLD]
    if told:
        more = [f"- and {len(told) - MAX_TOLD} more"] if len(told) > MAX_TOLD else []
        lines += ["It finds what is in these namespaces:", *told[:MAX_TOLD], *more]
    if alone:
        lines.append("And tools in no namespace." if told else "It finds tools in no namespace.")
    function = FunctionTool("search", "Finds tools by words, or by the names of namespaces or tools.", _SCHEMA)
    offered = OfferedTool(name=SEARCH, item=SEARCH_CALL, repeatable=True)
    return Offer(
        ToolNamespace(SEARCH_NAMESPACE, "\n".join(lines), (function,)), [offered], {SEARCH: JsonSchema(_SCHEMA)}
    )


def _told(tools: Iterable[JsonObject]) -> Iterator[str]:
    for tool in tools:
        if tool.get("type") == "namespace" and any(map(is_deferred, _members(tool))):
            yield _told_of(tool.get("name"), tool.get("description"))
        elif tool.get("type") == "mcp" and is_deferred(tool):
            yield _told_of(tool.get("server_label"), tool.get("server_description"))


def _told_of(name: object, description: object) -> str:
    # In one line: a description with line ends could pretend to be another group.
    words = " ".join(str(description or "")[:MAX_TOLD_CHARACTERS].split())
    return f"- {name}: {words}" if words else f"- {name}"


def groups_of(tools: Sequence[JsonObject], listed: Mapping[str, Offer]) -> list[Group]:
    """Return what can be found; `tools` are the request's, and `listed` what its deferred MCP servers have."""
    alone: list[Searched] = []
    groups: list[Group] = []
    for tool in tools:
        kind, name = tool.get("type"), str(tool.get("name"))
        if kind in ("function", "custom") and is_deferred(tool):
            alone.append(_of_client(tool, ""))
        elif kind == "namespace":
            found = [_of_client(each, f"{name}.") for each in _members(tool) if is_deferred(each)]
            head = {key: value for key, value in tool.items() if key != "tools"}
            groups += [Group(name, str(tool.get("description") or ""), head, found)] if found else []
        elif kind == "mcp" and is_deferred(tool):
            label = str(tool.get("server_label"))
            offer = listed.get(label)
            found = [*_of_server(offer)] if offer is not None else []
            groups += [Group(label, str(tool.get("server_description") or ""), dict(tool), found)] if found else []
    return [*groups, Group("", "", {}, alone)] if alone else groups


def _members(namespace: JsonObject) -> list[JsonObject]:
    members = namespace.get("tools")
    return [each for each in members if isinstance(each, dict)] if isinstance(members, list) else []


def _of_client(tool: JsonObject, prefix: str) -> Searched:
    name, parameters = str(tool.get("name")), tool.get("parameters")
    schema = schema_text(parameters if isinstance(parameters, dict) else None)
    return Searched(prefix + name, name, str(tool.get("description") or ""), schema, tool)


def _of_server(offer: Offer) -> Iterator[Searched]:
    for tool, function in zip(offer.tools, offer.namespace.functions, strict=True):
        shown: JsonObject = {
            "name": tool.tool,
            "description": function.description,
            "input_schema": orjson.loads(function.schema) if function.schema else None,
        }
        yield Searched(tool.name, tool.tool, function.description, function.schema, shown)


def find(query: ToolQuery, groups: Sequence[Group]) -> list[str]:
    """Return what a search finds, as the model calls it: what it names first, then what its words find, the best first.

    It takes time in proportion to the tools: 15 ms for 2,000.
    """
    named = _named(query, groups)[:MAX_NAMED]
    known = set(named)
    return [*named, *(called for called in _ranked(query.words, groups)[:MAX_FOUND] if called not in known)]


def _named(query: ToolQuery, groups: Sequence[Group]) -> list[str]:
    paths = {*query.paths, query.words}
    return [
        tool.called
        for group in groups
        for tool in group.tools
        if (group.name and group.name in paths) or tool.called in paths or tool.name in paths
    ]


def _ranked(query: str, groups: Sequence[Group]) -> list[str]:
    words = list(dict.fromkeys(_words(query)))[:MAX_WORDS]
    if not words:
        return []
    weights = [
        (tool.called, _weights(words, tool, group_text))
        for group in groups
        for group_text in [f"{group.name} {group.description[:MAX_READ]}".casefold()]
        for tool in group.tools
    ]
    # A word that every tool has says nothing of any of them.
    rarity = [
        math.log1p(len(weights) / max(1, sum(each[place] > 0 for _, each in weights))) for place in range(len(words))
    ]
    scores = [(sum(map(float.__mul__, each, rarity)), called) for called, each in weights]
    least = max((score for score, _ in scores), default=0.0) * MIN_SHARE
    # `sorted` keeps the order of the request among equals.
    return [called for score, called in sorted(scores, key=lambda each: -each[0]) if score > 0 and score >= least]


def _weights(words: Sequence[str], tool: Searched, group_text: str) -> list[float]:
    name, arguments = tool.name.casefold(), tool.arguments.casefold()
    own, text = set(_words(tool.name)), tool.description[:MAX_READ].casefold()
    return [
        (8.0 if word in own else 4.0 if word in name else 0.0)
        + (2.0 if word in arguments else 0.0)
        + (2.0 if word in text else 0.0)
        + (1.0 if word in group_text else 0.0)
        for word in words
    ]


def _words(text: str) -> list[str]:
    return [each.casefold() for each in _WORD.findall(text[:MAX_READ])]


def shown(found: Iterable[str], groups: Sequence[Group]) -> list[JsonObject]:
    """Return tools as the item of the search's output shows them, group by group; `MAX_FOUND_BYTES` at most."""
    size, kept = 0, set()
    by_name = {tool.called: tool for group in groups for tool in group.tools}
    for called in found:
        size += len(orjson.dumps(by_name[called].shown))
        if size > MAX_FOUND_BYTES:
            break
        kept.add(called)
    tools: list[JsonObject] = []
    for group in groups:
        own = [tool for tool in group.tools if tool.called in kept]
        tools += group.showing(own) if own else []
    return tools
