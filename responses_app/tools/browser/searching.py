"""Web searches: the contract of a search backend, the backends, and the page that shows their results.

Backends that answer with JSON over HTTP: a SearXNG of the operator's, or the server that comes with `ddgs`.

    SEARCH_URL=http://searxng:8080         GET /search?q=…&format=json   {"results": [{"url", "title", "content"}]}
    SEARCH_URL=ddgs+http://127.0.0.1:8000  GET /search/text?query=…      {"results": [{"href", "title", "body"}]}

The operator names the server, so it may be anywhere; a redirect of it may not lead elsewhere in the operator's network.

A search by a tool of an MCP server: SEARCH_MCP names the server's label in MCP_SERVERS, or `label.tool`.

    SEARCH_MCP=brave                      the first tool of the server whose name has `search` in it
    SEARCH_MCP=brave.brave_web_search     this one

No standard says how such a tool answers. It is read as JSON, in which a list of objects with addresses is looked
for, or else as text: `URL: …` lines, links in Markdown, or bare addresses.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from engine import orjson
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.output.citations import ListedPage
from responses_app.tools.base import BaseTool, ToolFailed, ToolUse
from responses_app.tools.browser.fetching import Fetched, Fetcher, FetchLimits
from responses_app.tools.mcp.named import NamedTool, NoSuchTool, parameter_of, parameters_of
from responses_app.tools.network import AddressRefused, AllowedHosts, Network, NetworkError, normal_host
from responses_app.tools.reading.pages import WebPage, domain_of, escaped, link, one_line, wrapped
from responses_app.tools.settings import DDGS

MAX_QUERY = 1000  # characters
MAX_SNIPPET = 400  # characters of what a result says of its page
MAX_URL = 2048  # characters
MAX_RESULTS = 20
_FEW = 5  # domains that a query can name: search engines cut longer ones
# `http://…` or `https://…`, up to white space or a control character.
_URL = re.compile(r"https?://[^\s\x00-\x1f\x7f]+", re.IGNORECASE)


class SearchFailed(Exception):
    """The backend gave no results; the text is for the model and the client, and may name a setting."""


@dataclass(frozen=True, slots=True)
class SearchResult:
    """A page that was found."""

    url: str
    title: str
    snippet: str = ""  # a little of its text


class BaseSearch(ABC):
    """Searches the web. Belongs to one event loop, which closes it."""

    @abstractmethod
    async def search(self, query: str, *, count: int) -> list[SearchResult]:
        """Return results, the best first: about `count`, any number is right. Raises `SearchFailed`."""

    async def aclose(self) -> None:
        """Close connections."""
        return None


def result_of(url: object, title: object, snippet: object) -> SearchResult | None:
    """Return a result that a backend tells of, None where it is not one: backends may tell anything."""
    if not isinstance(url, str) or len(url) > MAX_URL or not _URL.fullmatch(url) or not domain_of(url):
        return None
    shown = escaped(one_line(title)) if isinstance(title, str) else ""
    text = escaped(one_line(snippet))[:MAX_SNIPPET] if isinstance(snippet, str) else ""
    return SearchResult(url, shown or domain_of(url), text)


def within(query: str, domains: Collection[str]) -> str:
    """Return a query for pages of these domains only, where they are few enough to be named."""
    if not 0 < len(domains) <= _FEW:
        return query
    return f"{query} {' OR '.join(f'site:{domain}' for domain in domains)}"


def is_within(url: str, domains: Collection[str]) -> bool:
    """Whether a URL is of one of these domains, or of one below them; no domains are all."""
    # Compared in one form: `BÜCHER.example` is `xn--bcher-kva.example`.
    host = normal_domain(domain_of(url))
    return not domains or any(host == domain or host.endswith(f".{domain}") for domain in domains)


def normal_domain(domain: str) -> str:
    """Return a domain in the form in which domains are compared: that of the name system."""
    try:
        return normal_host(domain)
    except AddressRefused:
        return domain.lower()


def results_page(query: str, results: Iterable[SearchResult]) -> tuple[WebPage, Sequence[ListedPage]]:
    """Return the page that shows results, and where on it each stands."""
    lines, listed, links = ["# Search Results", ""], [], []
    for number, result in enumerate(results):
        listed.append(ListedPage(len(lines), result.url, result.title))
        links.append(result.url)
        shown = link(number, result.title, domain_of(result.url))
        lines += [
            f"    {line}" if place else f"  * {line}" for place, line in enumerate(wrapped(f"{shown} {result.snippet}"))
        ]
    if not links:
        lines.append("Nothing was found.")
    return WebPage(url="", title=escaped(one_line(query)), lines=lines, links=links, is_list=True), listed


SEARCH_LIMITS = FetchLimits(seconds=20, max_bytes=2 * 1024 * 1024, max_redirects=2, whole=True)


class JsonSearch(BaseSearch):
    """A search over HTTP. Its subclasses say its parameters, and which fields of a result are which."""

    path: ClassVar[str]
    fields: ClassVar[tuple[str, str, str]]  # of a result: address, title and text

    def __init__(self, url: str) -> None:
        # The operator may have named the path or not.
        self._url = url.rstrip("/").removesuffix(self.path) + self.path
        self._fetcher = Fetcher(Network("SEARCH_URL", AllowedHosts.of_url(url)))

    async def search(self, query: str, *, count: int) -> list[SearchResult]:
        try:
            fetched = await self._fetcher.get(
                self._url, SEARCH_LIMITS, params=self.parameters(query, count), accept="application/json"
            )
        except NetworkError as problem:
            raise SearchFailed(f"The search failed. {problem}") from None
        if fetched.status != 200:
            raise SearchFailed(self.refusal(fetched.status))
        return self._results(fetched)[:count]

    async def aclose(self) -> None:
        await self._fetcher.aclose()

    def parameters(self, query: str, count: int) -> Mapping[str, str]:
        """Return the parameters of a query."""
        raise NotImplementedError

    def refusal(self, status: int) -> str:
        """Return the meaning of a status that is not 200."""
        return f"The search failed: the search server (SEARCH_URL) answered with status {status}."

    def _results(self, fetched: Fetched) -> list[SearchResult]:
        try:
            answer = orjson.loads(fetched.body)
        except orjson.JSONDecodeError:
            raise SearchFailed("The search failed: the search server (SEARCH_URL) did not answer with JSON.") from None
        entries = answer.get("results") if isinstance(answer, dict) else None
        if not isinstance(entries, list):
            raise SearchFailed("The search failed: the answer of the search server (SEARCH_URL) has no 'results'.")
        address, title, text = self.fields
        objects = (each for each in entries if isinstance(each, dict))
        results = (result_of(each.get(address), each.get(title), each.get(text)) for each in objects)
        return [result for result in results if result is not None]


class SearxngSearch(JsonSearch):
    """A SearXNG."""

    path = "/search"
    fields = ("url", "title", "content")

    def parameters(self, query: str, count: int) -> Mapping[str, str]:
        return {"q": query, "format": "json"}

    def refusal(self, status: int) -> str:
        if status == 403:
            return (
                "The search failed: SearXNG answered with status 403. Its settings.yml must have 'json' among "
                "'search.formats'."
            )
        if status == 429:
            return (
                "The search failed: SearXNG answered with status 429. Its limiter must let this server in "
                "('server.limiter' in its settings.yml)."
            )
        return super().refusal(status)


class DdgsSearch(JsonSearch):
    """The server that comes with the package `ddgs`."""

    path = "/search/text"
    fields = ("href", "title", "body")

    def parameters(self, query: str, count: int) -> Mapping[str, str]:
        return {"query": query, "max_results": str(min(count, MAX_RESULTS))}


def json_search(url: str) -> JsonSearch:
    """Return the search of a SEARCH_URL."""
    return DdgsSearch(url.removeprefix(DDGS)) if url.startswith(DDGS) else SearxngSearch(url)


_QUERIES = ("query", "q", "search_query", "search_term", "keywords", "search", "text", "input")
_COUNTS = ("count", "max_results", "num_results", "numResults", "maxResults", "limit", "top_k", "topn")
_ADDRESSES = ("url", "link", "href", "uri")
_TITLES = ("title", "name", "heading")
_TEXTS = ("snippet", "description", "content", "body", "text", "summary", "highlights")
_DEEPEST = 5  # levels of JSON in which results are looked for
# `[title](https://…)`.
_MARKDOWN = re.compile(r"\[([^\]\n]{1,300})\]\((https?://[^\s)]{1,2048})\)")
# `Title: …`, `1. **URL:** …`: a name, a colon and a value, whatever signs stand around them.
_NAMED = re.compile(
    r"^[\W\d]*(title|name|url|link|description|snippet|content|text|summary)\W*:\W*(\S.*)$", re.IGNORECASE
)
# An address in a text, without the bracket or quote behind it.
_BARE = re.compile(r"https?://[^\s<>\"'\])]{3,2048}")


class McpSearch(BaseSearch):
    """Searches with a tool of one of the operator's MCP servers; `mcp` calls those, and is another's to close."""

    def __init__(self, mcp: BaseTool, named: str) -> None:
        self._tool = NamedTool(mcp, named, words=("search",), about="whose name has search in it")
        # The server is the operator's, and is told nothing of who asks: all projects share one connection.
        self._use = ToolUse(declared={}, project="", response_id="web search", chain_id="web search")

    async def search(self, query: str, *, count: int) -> list[SearchResult]:
        try:
            result = await self._tool.call(self._use, lambda tool: _arguments(tool, query, count))
        except NoSuchTool as missing:
            server = f"the MCP server '{self._tool.label}' of SEARCH_MCP"
            raise SearchFailed(f"The search failed: {server} has {missing}") from None
        except ToolFailed as problem:
            raise SearchFailed(f"The search failed: the MCP server of SEARCH_MCP says: {problem}") from None
        if result.failed:
            raise SearchFailed(f"The search failed: the MCP server of SEARCH_MCP says: {result.text[:500]}")
        return read_results(result.text)[:count]


def read_results(text: str) -> list[SearchResult]:
    """Return the results that a tool's output tells of, each address once."""
    try:
        results = list(_of_json(orjson.loads(text), 0))
    except orjson.JSONDecodeError:
        # From the surest form to the vaguest; the first that gives anything is meant.
        results = [*_of_json_lines(text)] or [*_of_named_lines(text)] or [*_of_links(text)]
    by_address: dict[str, SearchResult] = {}
    for result in results:
        # The first of an address counts: results come best first.
        by_address.setdefault(result.url, result)
    return list(by_address.values())


def _arguments(tool: JsonObject, query: str, count: int) -> JsonObject:
    known = parameters_of(tool)
    # Only a parameter that takes the number: a refused call is worse than other results.
    counted = next((name for name in _COUNTS if _takes(known.get(name), count)), None)
    return {parameter_of(tool, _QUERIES): query, **({counted: count} if counted else {})}


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
    # The last line ends the last result.
    for line in [*text.split("\n"), "---", "Title: end"]:
        # Bounded: a line may be megabytes long.
        named = _NAMED.match(line[:4096])
        if named is None:
            continue
        name = _FIELDS.get(named[1].lower(), "text")
        # A field that comes again belongs to the next result.
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
        entry = value.get(name)
        if isinstance(entry, list) and entry and isinstance(entry[0], str):
            return " ".join(each for each in entry if isinstance(each, str))
        if isinstance(entry, str) and entry:
            return entry
    return None
