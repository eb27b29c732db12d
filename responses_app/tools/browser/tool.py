"""`BrowserTool`: the `web_search` tool of requests, which the model knows as the namespace `browser`.

`Browser` is what the model can do in the web: search, open a page or a place on it, and find a text there. Each shows a
page, which gets the next cursor of its chain. Whatever goes wrong is a sentence for the model, and nothing is shown
then.
"""

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import NoReturn

from engine import orjson
from engine.formats.base import FunctionTool, ToolNamespace
from engine.types import JsonSchema
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.items.offers import Offer, OfferedTool
from responses_app.protocol.output.citations import PAGES, PageStack, ShownPage
from responses_app.protocol.requests.server_tools import WEB_SEARCH
from responses_app.tools.base import BaseTool, Finish, ToolCall, ToolFailed, ToolResult, ToolUse, json_object
from responses_app.tools.browser.fetching import Fetcher, FetchLimits, PageCache, PageReader
from responses_app.tools.browser.searching import (
    MAX_QUERY,
    MAX_RESULTS,
    BaseSearch,
    SearchFailed,
    SearchResult,
    is_within,
    normal_domain,
    results_page,
    within,
)
from responses_app.tools.network import NetworkError
from responses_app.tools.reading.pages import BYTES_PER_TOKEN, WebPage, domain_of, one_line

ACTIONS = ("search", "open", "find")
PAGE_LIMITS = FetchLimits()
MAX_PAGES_AT_ONCE = 16  # that are fetched and read, each of up to 4 MiB; more wait, as long as their calls may take
ACCEPTED = "text/html,application/xhtml+xml,text/plain;q=0.9,*/*;q=0.5"
MAX_PATTERN = 500  # characters
MAX_VIEWS = 4  # a call may ask for so many times more lines than are shown by themselves
LINES_BEFORE_MATCH = 4  # that are shown of a page which is opened at a match
REST_NOT_READ = "[the page is longer, and was not read any further]"
_PAGE, _SOURCE, _FIND, _SEARCH = "page", "source", "find", "search"  # kinds of `ShownPage`


class BrowsingFailed(Exception):
    """The model asked for something impossible; the text is for it. `action` is shown by the item."""

    def __init__(self, reason: str, action: JsonObject | None = None) -> None:
        super().__init__(reason)
        self.action = action


@dataclass(frozen=True, slots=True, kw_only=True)
class BrowsingOptions:
    """How a request lets the web be browsed."""

    domains: Collection[str] = ()  # pages of these only; none: of all
    blocked: Collection[str] = ()  # and of these never
    view_tokens: int = 1024  # about how much of a page is shown at once
    results: int = 10  # of a search, at most

    def allow(self, url: str) -> bool:
        """Whether a page may be found and opened."""
        return is_within(url, self.domains) and not (self.blocked and is_within(url, self.blocked))

    @property
    def view_bytes(self) -> int:
        """The size of a view, in bytes of UTF-8."""
        return self.view_tokens * BYTES_PER_TOKEN


@dataclass(frozen=True, slots=True)
class Browsed:
    """The text for the model, and the `action` that clients see."""

    text: str  # for the model
    action: JsonObject  # for clients, in the call's item
    results: Sequence[JsonObject]  # likewise, where they are asked for: address, title and text of each page


class Browser:
    """The web of one worker, for all chains: the pages that a chain was shown come with each call."""

    def __init__(self, search: BaseSearch, fetcher: Fetcher, reader: PageReader, cache: PageCache) -> None:
        self._pages_at_once = asyncio.Semaphore(MAX_PAGES_AT_ONCE)
        self._search = search
        self._fetcher = fetcher
        self._reader = reader
        self._cache = cache

    async def act(
        self,
        action: str,
        arguments: JsonObject,
        stack: PageStack,
        options: BrowsingOptions,
        *,
        project: str,
        found: Sequence[SearchResult] | None = None,
    ) -> Browsed:
        """Do one of `ACTIONS`, and put the page that is shown on the stack. Raises `BrowsingFailed`.

        `found` are the results of a search, where it was made already.
        """
        visit = _Visit(self, stack, options, project)
        match action:
            case "search":
                return await visit.search(arguments, found)
            case "open":
                return await visit.open(arguments)
            case "find":
                return await visit.find(arguments)
        raise BrowsingFailed(f"Unknown function: {action[:80]}")

    async def found(self, arguments: JsonObject, options: BrowsingOptions) -> list[SearchResult]:
        """Make the search of a call. Raises `BrowsingFailed`, and `SearchFailed`."""
        count = _whole(arguments, "topn", options.results)
        query = _text(arguments, "query", MAX_QUERY)
        return await self.results(query, options, min(max(count, 1), options.results))

    async def results(self, query: str, options: BrowsingOptions, count: int) -> list[SearchResult]:
        """Search, and return the results that the options allow. Raises `SearchFailed`."""
        results = await self._search.search(within(query, options.domains), count=count)
        # The backend may not know `site:`, so its results are looked at again.
        return [result for result in results if options.allow(result.url)][:count]

    async def page(self, url: str, project: str, *, anew: bool = False) -> WebPage:
        """Return a page, from the cache where it is there. Raises `NetworkError`."""
        page = None if anew else self._cache.get(project, url)
        if page is None:
            # Without `get`: what was opened by its address is to be as it is now.
            page = await self.fetched(url)
            # Under the address that it has behind its redirects.
            self._cache.put(project, page.url, page)
        return page

    async def fetched(self, url: str, *, as_written: bool = False) -> WebPage:
        """Return a page as it is now; with `as_written` its source. Raises `NetworkError`."""
        async with self._pages_at_once:
            # Fetching and reading share a place: both hold the page in memory.
            fetched = await self._fetcher.get(url, PAGE_LIMITS, accept=ACCEPTED)
            if not 200 <= fetched.status < 300:
                raise NetworkError(f"The server answered with status {fetched.status}.")
            page = await self._reader.read(replace(fetched, content_type="text/plain") if as_written else fetched)
        return replace(page, lines=[*page.lines, REST_NOT_READ]) if page.truncated else page

    async def aclose(self) -> None:
        """Close connections, and end the process that reads pages."""
        await self._search.aclose()
        await self._fetcher.aclose()
        await self._reader.aclose()


class _Visit:
    """One call of the model: a search, a page that is opened, or a text that is looked for."""

    def __init__(self, browser: Browser, stack: PageStack, options: BrowsingOptions, project: str) -> None:
        self._browser = browser
        self._stack = stack
        self._options = options
        self._project = project
        self._start = 0  # where a page is shown from, unless the model says it

    async def search(self, arguments: JsonObject, known_results: Sequence[SearchResult] | None) -> Browsed:
        query = _text(arguments, "query", MAX_QUERY)
        action: JsonObject = {"type": "search", "query": query, "queries": [query], "sources": []}
        try:
            results = known_results
            if results is None:
                results = await self._browser.found(arguments, self._options)
        except SearchFailed as problem:
            raise BrowsingFailed(str(problem), action) from None
        page, listed = results_page(query, results)
        action["sources"] = [{"type": "url", "url": result.url} for result in results]
        shown = ShownPage(kind=_SEARCH, url="", title=page.title, pattern=query, listed=tuple(listed))
        shown_results: list[JsonObject] = [
            {"url": each.url, "title": each.title, "text": each.snippet} for each in results
        ]
        return self._show(page, shown, action, found=shown_results)

    async def open(self, arguments: JsonObject) -> Browsed:
        kind = _SOURCE if arguments.get("view_source") is True else _PAGE
        target = _target(arguments)
        action: JsonObject = {"type": "open_page", **({"url": target} if isinstance(target, str) else {})}
        try:
            page, shown = await self._opened(kind, target, _whole(arguments, "cursor", -1), action)
        except NetworkError as problem:
            raise BrowsingFailed(f"{action['url']} could not be opened. {problem}", action) from None
        except BrowsingFailed as problem:
            raise BrowsingFailed(str(problem), action) from None
        return self._show(page, shown, action, arguments)

    async def find(self, arguments: JsonObject) -> Browsed:
        pattern = _text(arguments, "pattern", MAX_PATTERN)
        shown = self._at(_whole(arguments, "cursor", -1))
        action: JsonObject = {"type": "find_in_page", "pattern": pattern, "url": shown.url}
        if shown.kind in (_SEARCH, _FIND):
            raise BrowsingFailed("Cannot run `find` on search results page or find results page", action)
        try:
            page, _ = await self._again(shown)
        except NetworkError as problem:
            raise BrowsingFailed(f"{shown.url} could not be opened. {problem}", action) from None
        match = ShownPage(kind=_FIND, url=shown.url, title=shown.title, pattern=pattern)
        return self._show(page.find(pattern), match, action)

    async def _opened(self, kind: str, target: int | str, cursor: int, action: JsonObject) -> tuple[WebPage, ShownPage]:
        """Return a page and its record: one by its address, a link of another, or another place on it."""
        if isinstance(target, str):
            # By its address it is fetched again; by a link the cache will do.
            return await self._visited(kind, target, anew=True)
        shown = self._at(cursor)
        if shown.url:
            action["url"] = shown.url
        if target < 0 and kind != _SOURCE:
            return await self._again(shown)
        url = shown.url if target < 0 else await self._linked(shown, target)
        action["url"] = url
        return await self._visited(kind, url)

    async def _visited(self, kind: str, url: str, *, anew: bool = False) -> tuple[WebPage, ShownPage]:
        self._check(url)
        if kind == _SOURCE:
            page = await self._browser.fetched(url, as_written=True)
        else:
            page = await self._browser.page(url, self._project, anew=anew)
        self._check(page.url)  # it may have redirected
        return page, ShownPage(kind=kind, url=page.url, title=page.title)

    async def _again(self, shown: ShownPage) -> tuple[WebPage, ShownPage]:
        """Return the page that was shown, as it is now where it is not known any more. Raises `NetworkError`."""
        if shown.kind == _SEARCH:
            if not shown.listed:
                raise BrowsingFailed("These search results are too old. Search again.")
            # What they said of their pages is not kept.
            results = [SearchResult(each.url, each.title) for each in shown.listed]
            page, listed = results_page(shown.pattern, results)
            return page, replace(shown, listed=tuple(listed))
        page, _ = await self._visited(_SOURCE if shown.kind == _SOURCE else _PAGE, shown.url)
        return page.find(shown.pattern) if shown.kind == _FIND else page, shown

    async def _linked(self, shown: ShownPage, number: int) -> str:
        """Return where a link of a page leads; that of a match leads to its place on the page."""
        matches: Sequence[int] = ()
        if shown.kind == _SEARCH:
            links: Sequence[str] = [each.url for each in shown.listed]
        else:
            page, _ = await self._again(shown)
            links, matches = page.links, page.matches
        if number >= len(links):
            raise BrowsingFailed(f"Invalid link id `{number}`.")
        if matches:
            # With some lines before it, so that the model sees where it is.
            self._start = max(0, matches[number] - LINES_BEFORE_MATCH)
        return links[number]

    def _at(self, cursor: int) -> ShownPage:
        shown = self._stack.at(cursor)
        if shown is not None:
            return shown
        if not self._stack.pages:
            raise BrowsingFailed("No pages to access!")
        raise BrowsingFailed(
            f"Cursor `{cursor}` is out of range. Available cursor indices: "
            f"[{self._stack.first} - {self._stack.next_cursor - 1}]."
        )

    def _check(self, url: str) -> None:
        # Asked before the page is fetched, and again for where it redirected to.
        if self._options.allow(url):
            return
        allowed = ", ".join(sorted(self._options.domains)[:20])
        why = f"only pages of {allowed} are allowed" if allowed else "pages of its domain are not allowed"
        raise BrowsingFailed(f"{url[:200]} may not be opened: {why}.")

    def _show(
        self,
        page: WebPage,
        shown: ShownPage,
        action: JsonObject,
        arguments: JsonObject | None = None,
        found: Sequence[JsonObject] | None = None,
    ) -> Browsed:
        loc, count = _whole(arguments or {}, "loc", -1), max(_whole(arguments or {}, "num_lines", 0), 0)
        start = loc if loc >= 0 else self._start
        if start >= len(page.lines):
            last = len(page.lines) - 1
            raise BrowsingFailed(
                f"Invalid location parameter: `{start}`. Cannot exceed page maximum of {last}.", action
            )
        # With a number of lines of its own a call may see more; without, a view's usual size.
        max_bytes = self._options.view_bytes * (MAX_VIEWS if count else 1)
        text = page.view(self._stack.next_cursor, start=start, count=count, max_bytes=max_bytes)
        # Only now: what fails shows nothing, and takes no cursor.
        self._stack.push(shown)
        if found is None:
            now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
            found = [{"url": shown.url, "title": shown.title, "text": text, "retrieved_at": now}]
        return Browsed(text, action, found)


def options_of(tool: JsonObject) -> BrowsingOptions:
    """Return the options of a request's `web_search` tool, which has been validated."""
    size = str(tool.get("search_context_size") or "medium")
    filters = tool.get("filters")
    only, never = (filters.get(name) if isinstance(filters, dict) else None for name in _DOMAINS)
    tokens, results = _SIZES.get(size, _SIZES["medium"])
    return BrowsingOptions(
        domains=tuple(map(normal_domain, only or ())),
        blocked=tuple(map(normal_domain, never or ())),
        view_tokens=tokens,
        results=results,
    )


_DOMAINS = ("allowed_domains", "blocked_domains")
_SIZES = {"low": (512, 5), "medium": (1024, 10), "high": (2048, MAX_RESULTS)}  # tokens of a view, results of a search


def _target(arguments: JsonObject) -> int | str:
    """Return the page to be opened: a link's number, -1 for none, or an address."""
    target = arguments.get("id", -1)
    # `12` and `-1` as text are numbers, too: models write them so.
    if isinstance(target, str) and not target.strip().removeprefix("-").isdecimal():
        address = target.strip()
        return address if "://" in address or not address else f"https://{address}"
    return _whole(arguments, "id", -1)


def _text(arguments: JsonObject, name: str, most: int) -> str:
    value = arguments.get(name)
    if not isinstance(value, str) or not value.strip():
        _invalid(name, "a text")
    return value.strip()[:most]


def _whole(arguments: JsonObject, name: str, default: int) -> int:
    """Return a whole number; models write it as a text, too."""
    value = arguments.get(name)
    if value is None:
        return default
    # Few enough digits for a number that means something.
    if isinstance(value, str) and value.strip().removeprefix("-").isdecimal() and len(value) < 12:
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 10**9:
        _invalid(name, "a whole number")
    return int(value)


def _invalid(name: str, expected: str) -> NoReturn:
    raise BrowsingFailed(f"Invalid function arguments: `{name}` should be {expected}.")


NAMESPACE = "browser"
SEARCH = f"{NAMESPACE}.search"
SOURCES, RESULTS = "web_search_call.action.sources", "web_search_call.results"  # of `include`
CALL_SECONDS = 60.0  # of which a page may take half, and the process that reads it some

# These words are those that gpt-oss was trained on: see `ToolNamespaceConfig.browser()` of its library, and the tests.
DESCRIPTION = """Tool for browsing.
The `cursor` appears in brackets before each browsing display: `[{cursor}]`.
Cite information from the tool using the following format:
`【{cursor}†L{line_start}(-L{line_end})?】`, for example: `【6†L9-L11】` or `【8†L3】`.
Do not quote more than 10 words directly from the tool output.
sources=web (default: web)"""
_SEARCH_ABOUT = "Searches for information related to `query` and displays `topn` results."
_OPEN_ABOUT = """Opens the link `id` from the page indicated by `cursor` starting at line number `loc`, showing `num_lines` lines.
Valid link ids are displayed with the formatting: `【{id}†.*】`.
If `cursor` is not provided, the most recent page is implied.
If `id` is a string, it is treated as a fully qualified URL associated with `source`.
If `loc` is not provided, the viewport will be positioned at the beginning of the document or centered on the most relevant passage, if available.
Use this function without `id` to scroll to a new location of an opened page."""  # noqa: E501 - one line for the model
_FIND_ABOUT = "Finds exact matches of `pattern` in the current page, or the page given by `cursor`."
_UNSET: Mapping[str, object] = {"type": "number", "default": -1}
SCHEMAS: Mapping[str, JsonObject] = {
    "search": {
        "type": "object",
        "properties": {
            "query": {"type": "string"},
            "topn": {"type": "number", "default": 10},
            "source": {"type": "string"},
        },
        "required": ["query"],
    },
    "open": {
        "type": "object",
        "properties": {
            "id": {"type": ["number", "string"], "default": -1},
            "cursor": _UNSET,
            "loc": _UNSET,
            "num_lines": _UNSET,
            "view_source": {"type": "boolean", "default": False},
            "source": {"type": "string"},
        },
    },
    "find": {
        "type": "object",
        "properties": {"pattern": {"type": "string"}, "cursor": _UNSET},
        "required": ["pattern"],
    },
}
FUNCTIONS = tuple(
    FunctionTool(name, description, orjson.dumps(SCHEMAS[name]).decode())
    for name, description in (("search", _SEARCH_ABOUT), ("open", _OPEN_ABOUT), ("find", _FIND_ABOUT))
)


class BrowserTool(BaseTool):
    """Searches the web, and reads its pages."""

    kinds = WEB_SEARCH
    max_seconds = CALL_SECONDS
    idle_seconds = CALL_SECONDS

    def __init__(self, browser: Browser) -> None:
        self._browser = browser

    async def aclose(self) -> None:
        await self._browser.aclose()

    def refusal(self, declared: JsonObject) -> str | None:
        if declared.get("external_web_access") is False:
            return "With 'external_web_access': false there is nothing to search: this server keeps no copy of the web."
        return None

    async def offer(self, use: ToolUse) -> Offer:
        namespace = ToolNamespace(NAMESPACE, _described(use.declared), FUNCTIONS)
        names = [f"{NAMESPACE}.{function.name}" for function in FUNCTIONS]
        # Pages that are opened depend on what was shown before, so only a search can begin early.
        tools = [OfferedTool(name=name, item=PAGES, repeatable=True, reads=name == SEARCH) for name in names]
        return Offer(
            namespace, tools, {name: JsonSchema(each.schema) for name, each in zip(names, FUNCTIONS, strict=True)}
        )

    async def call(self, call: ToolCall) -> ToolResult:
        return await self._act(call)

    async def begin(self, call: ToolCall) -> Finish:
        options = options_of(call.use.declared)
        try:
            results = await self._browser.found(json_object(call.arguments) or {}, options)
        except (BrowsingFailed, SearchFailed) as problem:
            raise ToolFailed(str(problem)) from None
        return lambda later: self._act(later, results)

    async def _act(self, call: ToolCall, found: Sequence[SearchResult] | None = None) -> ToolResult:
        stack = _stack_of(call)
        function = call.name.removeprefix(f"{NAMESPACE}.")
        try:
            arguments = json_object(call.arguments)
            if arguments is None:
                raise BrowsingFailed("Invalid function arguments: they should be a JSON object.")
            browsed = await self._browser.act(
                function, arguments, stack, options_of(call.use.declared), project=call.use.project, found=found
            )
        except BrowsingFailed as problem:
            error = {"type": "web_search_error", "message": str(problem)}
            shown = {"error": error, **_shown(problem.action, call.use)}
            raise ToolFailed(str(problem), shown=shown) from None
        shown = _shown(browsed.action, call.use)
        if RESULTS in call.use.include:
            shown["results"] = list(browsed.results)
        return ToolResult(browsed.text, shown=shown, state=stack.as_json())


def _described(declared: JsonObject) -> str:
    place = declared.get("user_location")
    if not isinstance(place, dict):
        return DESCRIPTION
    named = [place[name] for name in ("city", "region", "country", "timezone") if isinstance(place.get(name), str)]
    return f"{DESCRIPTION}\nThe user is in about this place: {one_line(', '.join(named))}" if named else DESCRIPTION


def _shown(action: JsonObject | None, use: ToolUse) -> JsonObject:
    if action is None:
        return {}
    if SOURCES not in use.include:
        action = {name: value for name, value in action.items() if name != "sources"}
    return {"action": action}


def _stack_of(call: ToolCall) -> PageStack:
    """Return the pages that the chain was shown; where only its items came back, those that they tell of."""
    if call.state is not None:
        return PageStack.from_json(call.state)
    stack = PageStack()
    for shown in _shown_before(call.use.items):
        stack.push(shown)
    return stack


def _shown_before(items: Iterable[JsonObject]) -> Iterable[ShownPage]:
    for item in items:
        action = item.get("action")
        if item.get("type") != PAGES or item.get("status") != "completed" or not isinstance(action, dict):
            continue
        url, query, pattern = (_text_in(action, name) for name in ("url", "query", "pattern"))
        match action.get("type"):
            case "open_page":
                yield ShownPage(kind="page", url=url, title=domain_of(url))
            case "find_in_page":
                yield ShownPage(kind="find", url=url, title=domain_of(url), pattern=pattern)
            case _:
                results = item.get("results")  # which a client has given back
                entries = results[:MAX_RESULTS] if isinstance(results, list) else []
                objects = [each for each in entries if isinstance(each, dict)]
                found_again = [SearchResult(_text_in(each, "url"), _text_in(each, "title")) for each in objects]
                page, listed = results_page(query, found_again)
                yield ShownPage(kind="search", url="", title=page.title, pattern=query, listed=tuple(listed))


def _text_in(action: JsonObject, name: str) -> str:
    value = action.get(name)
    return value if isinstance(value, str) else ""
