"""`BrowserTool`: the `web_search` tool of requests, which the model knows as the namespace `browser`."""

from collections.abc import Iterable, Mapping, Sequence

from engine import orjson
from engine.formats.base import FunctionTool, ToolNamespace
from engine.types import JsonSchema
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.items.offers import Offer, OfferedTool
from responses_app.protocol.output.citations import PAGES, PageStack, ShownPage
from responses_app.protocol.requests.server_tools import WEB_SEARCH
from responses_app.tools.base import BaseTool, Finish, ToolCall, ToolFailed, ToolResult, ToolUse, json_object
from responses_app.tools.browser.browsing import Browser, BrowsingFailed, options_of
from responses_app.tools.browser.searching import MAX_RESULTS, SearchFailed, SearchResult, results_page
from responses_app.tools.reading.pages import domain_of, one_line

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
_SEARCH = "Searches for information related to `query` and displays `topn` results."
_OPEN = """Opens the link `id` from the page indicated by `cursor` starting at line number `loc`, showing `num_lines` lines.
Valid link ids are displayed with the formatting: `【{id}†.*】`.
If `cursor` is not provided, the most recent page is implied.
If `id` is a string, it is treated as a fully qualified URL associated with `source`.
If `loc` is not provided, the viewport will be positioned at the beginning of the document or centered on the most relevant passage, if available.
Use this function without `id` to scroll to a new location of an opened page."""  # noqa: E501 - one line for the model
_FIND = "Finds exact matches of `pattern` in the current page, or the page given by `cursor`."
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
    for name, description in (("search", _SEARCH), ("open", _OPEN), ("find", _FIND))
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
            found = await self._browser.found(json_object(call.arguments) or {}, options)
        except (BrowsingFailed, SearchFailed) as problem:
            raise ToolFailed(str(problem)) from None
        return lambda asked: self._act(asked, found)

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
    """Return what the chain was shown; where only its items came back, what they say of it."""
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
        url, query, pattern = (_text(action, name) for name in ("url", "query", "pattern"))
        match action.get("type"):
            case "open_page":
                yield ShownPage(kind="page", url=url, title=domain_of(url))
            case "find_in_page":
                yield ShownPage(kind="find", url=url, title=domain_of(url), pattern=pattern)
            case _:
                found = [SearchResult(_text(each, "url"), _text(each, "title")) for each in _results(item)]
                page, listed = results_page(query, found)
                yield ShownPage(kind="search", url="", title=page.title, pattern=query, listed=tuple(listed))


def _results(item: JsonObject) -> list[JsonObject]:
    """Return the results that an item shows, which a client has given back."""
    results = item.get("results")
    shown = results if isinstance(results, list) else []
    return [each for each in shown[:MAX_RESULTS] if isinstance(each, dict)]


def _text(action: JsonObject, name: str) -> str:
    value = action.get(name)
    return value if isinstance(value, str) else ""
