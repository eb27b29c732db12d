"""A search by a tool of an MCP server: SEARCH_MCP names the server's label in MCP_SERVERS, or `label.tool`.

    SEARCH_MCP=brave                      the first tool of the server whose name has `search` in it
    SEARCH_MCP=brave.brave_web_search     this one

Nobody has said what such a tool gives back. It is read as JSON, in which a list of objects with addresses is looked
for, or else as text: `URL: …` lines, links in Markdown, or bare addresses.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson

from responses_app.protocol.errors import JsonObject
from responses_app.tools.base import BaseTool, ToolCall, ToolFailed, ToolUse
from responses_app.tools.browser.searching import BaseSearch, SearchFailed, SearchResult, result_of

_QUERIES = ("query", "q", "search_query", "search_term", "keywords", "search", "text", "input")
_COUNTS = ("count", "max_results", "num_results", "numResults", "maxResults", "limit", "top_k", "topn")
_ADDRESSES = ("url", "link", "href", "uri")
_TITLES = ("title", "name", "heading")
_TEXTS = ("snippet", "description", "content", "body", "text", "summary", "highlights")
_DEEPEST = 5  # levels of JSON in which results are looked for
_MARKDOWN = re.compile(r"\[([^\]\n]{1,300})\]\((https?://[^\s)]{1,2048})\)")
_NAMED = re.compile(
    r"^[\W\d]*(title|name|url|link|description|snippet|content|text|summary)\W*:\W*(\S.*)$", re.IGNORECASE
)
_BARE = re.compile(r"https?://[^\s<>\"'\])]{3,2048}")


class McpSearch(BaseSearch):
    """Searches with a tool of one of the operator's MCP servers; `mcp` is what calls those, and another's to close."""

    def __init__(self, mcp: BaseTool, wanted: str) -> None:
        self._mcp = mcp
        self._label, _, self._tool = wanted.partition(".")
        declared: JsonObject = {"type": "mcp", "server_label": self._label, "server_url": None}
        # The server is the operator's, and is told nothing of who asks: all projects share one connection.
        self._use = ToolUse(declared=declared, project="", response_id="web search", chain_id="web search")

    async def search(self, query: str, *, count: int) -> list[SearchResult]:
        try:
            tool = self._chosen(await self._mcp.list_tools(self._use))
            call = ToolCall(
                use=self._use,
                name=f"{self._label}.{tool['name']}",
                tool=str(tool["name"]),
                arguments=orjson.dumps(_arguments(tool, query, count)).decode(),
                item_id="",
            )
            result = await self._mcp.call(call)
        except ToolFailed as problem:
            raise SearchFailed(f"The search failed: the MCP server of SEARCH_MCP says: {problem}") from None
        if result.failed:
            raise SearchFailed(f"The search failed: the MCP server of SEARCH_MCP says: {result.text[:500]}")
        return read_results(result.text)[:count]

    def _chosen(self, tools: Sequence[JsonObject]) -> JsonObject:
        names = [str(tool.get("name")) for tool in tools]
        wanted = self._tool if self._tool else next((name for name in names if "search" in name.lower()), "")
        if wanted not in names:
            raise SearchFailed(
                f"The search failed: the MCP server '{self._label}' of SEARCH_MCP has no tool "
                f"{wanted or 'whose name has search in it'}. It has: {', '.join(names)[:500] or 'none'}."
            )
        return tools[names.index(wanted)]


def read_results(text: str) -> list[SearchResult]:
    """Return the results that a tool's output tells of, each address once."""
    try:
        found = list(_of_json(orjson.loads(text), 0))
    except orjson.JSONDecodeError:
        found = [*_of_json_lines(text)] or [*_of_named_lines(text)] or [*_of_links(text)]
    results: dict[str, SearchResult] = {}
    for result in found:
        results.setdefault(result.url, result)
    return list(results.values())


def _arguments(tool: JsonObject, query: str, count: int) -> JsonObject:
    schema = tool.get("input_schema")
    properties = schema.get("properties") if isinstance(schema, dict) else None
    known: Mapping[str, Any] = properties if isinstance(properties, dict) else {}
    named = next((name for name in _QUERIES if name in known), None)
    if named is None:
        texts = (name for name, each in known.items() if isinstance(each, dict) and each.get("type") == "string")
        named = next(texts, "query")
    counted = next((name for name in _COUNTS if _takes(known.get(name), count)), None)
    return {named: query, **({counted: count} if counted else {})}


def _takes(schema: object, count: int) -> bool:
    """Whether a parameter takes this number."""
    if not isinstance(schema, dict) or schema.get("type") not in ("integer", "number"):
        return False
    most = schema.get("maximum")
    return not isinstance(most, int | float) or count <= most


def _of_json(value: object, depth: int) -> Iterator[SearchResult]:
    if depth > _DEEPEST:
        return
    if isinstance(value, list):
        for each in value:
            yield from _of_json(each, depth + 1)
    elif isinstance(value, dict):
        result = result_of(_first(value, _ADDRESSES), _first(value, _TITLES), _first(value, _TEXTS))
        if result is not None:
            yield result
            return
        for each in value.values():
            yield from _of_json(each, depth + 1)


def _of_json_lines(text: str) -> Iterator[SearchResult]:
    """Several results, each as a JSON object of its own: one content block a result."""
    for line in text.split("\n"):
        if line.lstrip().startswith("{"):
            try:
                yield from _of_json(orjson.loads(line), 0)
            except orjson.JSONDecodeError:
                continue


def _of_named_lines(text: str) -> Iterator[SearchResult]:
    """Lines as `Title: …`, `Description: …` and `URL: …`, in any order; a field that comes again begins a result."""
    fields: dict[str, str] = {}
    for line in [*text.split("\n"), "---", "Title: end"]:
        named = _NAMED.match(line[:4096])
        if named is None:
            continue
        name = _FIELDS.get(named[1].lower(), "text")
        if name in fields:
            result = result_of(fields.get("url"), fields.get("title"), fields.get("text"))
            if result is not None:
                yield result
            fields = {} if "url" in fields else fields
        fields[name] = named[2].strip()


_FIELDS = {"title": "title", "name": "title", "url": "url", "link": "url"}


def _of_links(text: str) -> Iterator[SearchResult]:
    for line in text.split("\n"):
        links = _MARKDOWN.findall(line[:8192])
        for title, url in links:
            if result := result_of(url, title, line.partition(f"({url})")[2]):
                yield result
        for url in () if links else _BARE.findall(line[:8192]):
            if result := result_of(url, "", line.replace(url, "")):
                yield result


def _first(value: JsonObject, names: Sequence[str]) -> object:
    for name in names:
        found = value.get(name)
        if isinstance(found, list) and found and isinstance(found[0], str):
            return " ".join(each for each in found if isinstance(each, str))
        if isinstance(found, str) and found:
            return found
    return None
