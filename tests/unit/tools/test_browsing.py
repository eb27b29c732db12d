"""`web_search`: searching, opening and finding in a small web on loopback, as the model does it.

Inside responses, with what clients and the model read; and by itself, with what a chain was shown.
"""

from collections.abc import AsyncIterator, Sequence
from typing import Any

import orjson
import pytest
from openai.types.responses import Response
from openai_harmony import ToolNamespaceConfig

from engine.formats.harmony.encoding import decode_tokens
from responses_app.protocol.errors import ApiError, JsonObject
from responses_app.protocol.output.citations import PageStack
from responses_app.protocol.response.input_codec import decode, encode
from responses_app.protocol.response.steps import Sampled, TurnBegan
from responses_app.tools.browser.fetching import Fetcher, PageCache, PageReader
from responses_app.tools.browser.searching import json_search
from responses_app.tools.browser.tool import (
    DESCRIPTION,
    FUNCTIONS,
    Browser,
    BrowserTool,
    BrowsingFailed,
    BrowsingOptions,
    options_of,
)
from responses_app.tools.network import AllowedHosts, Network
from responses_app.tools.reading.pages import WebPage
from tests.kit.fakes import FakeEngine, Site
from tests.kit.search_servers import searxng
from tests.kit.web_server import WebServer, answer, redirect
from tests.unit.runs.test_takeover import TokenEngine, left_at, taken_over, undisturbed

SEARCH: list[JsonObject] = [{"type": "web_search"}]
CITED = "<|channel|>final<|message|>Bone【1†L0-L1】, they say【0†L2】 and【9†L1】.<|return|>"


def call(function: str, **arguments: object) -> str:
    said = orjson.dumps(arguments).decode()
    return f"<|channel|>commentary to=browser.{function} <|constrain|>json<|message|>{said}<|call|>"


LOOK_UP = (call("search", query="turtles"), call("open", id=0))


@pytest.fixture
async def tool(web: WebServer) -> AsyncIterator[BrowserTool]:
    """A browser in front of a web with a search server and a page on turtles."""
    tool = browser_of(web)
    web.pages |= {
        "/search": searxng([(web.url("/turtles"), "Turtles, all", "They have a shell.")]),
        "/turtles": answer(b"<title>On turtles</title><p>The shell is bone.</p>"),
    }
    yield tool
    await tool.aclose()


def browser_of(web: WebServer) -> BrowserTool:
    """Return a worker's browser, which knows no page yet."""
    fetcher = Fetcher(Network("SEARCH_ALLOWED_HOSTS", AllowedHosts.parse(f"127.0.0.1:{web.port}")))
    return BrowserTool(Browser(json_search(web.url()), fetcher, PageReader(), PageCache()))


def site_of(tool: BrowserTool, *turns: str) -> Site:
    return Site(FakeEngine(turns), tools=[tool])


def prompt_of(site: Site, turn: int) -> str:
    return decode_tokens(site.engine.prompts[turn])


def searches(response: JsonObject) -> Sequence[JsonObject]:
    output = response["output"]
    assert isinstance(output, list)
    return [item for item in output if item["type"] == "web_search_call"]


def message_of(response: JsonObject) -> JsonObject:
    """Return the part of a response's answer."""
    part: JsonObject = response["output"][-1]["content"][0]  # type: ignore[index]
    return part


def test_the_model_is_told_in_the_words_it_was_trained_on() -> None:
    library = ToolNamespaceConfig.browser()
    assert library.description == DESCRIPTION
    told = [(tool.name, tool.description, tool.parameters) for tool in library.tools]
    assert told == [(each.name, each.description, orjson.loads(each.schema)) for each in FUNCTIONS]


async def test_it_searches_opens_and_cites(web: WebServer, tool: BrowserTool) -> None:
    site = site_of(tool, *LOOK_UP, CITED)
    events = await site.events(input="Shells?", tools=SEARCH)
    response: JsonObject = events[-1]["response"]  # type: ignore[assignment]
    Response.model_validate(response)
    assert [(item["status"], item["action"]) for item in searches(response)] == [
        ("completed", {"type": "search", "query": "turtles", "queries": ["turtles"]}),
        ("completed", {"type": "open_page", "url": web.url("/turtles")}),
    ]
    link = f"([127.0.0.1]({web.url('/turtles')}))"
    part = message_of(response)
    assert part["text"] == f"Bone {link}, they say {link} and【9†L1】."
    assert [(each["title"], each["url"]) for each in part["annotations"]] == [  # type: ignore[attr-defined]
        ("On turtles", web.url("/turtles")),
        ("Turtles, all", web.url("/turtles")),
    ]
    added = [event["annotation"] for event in events if event["type"] == "response.output_text.annotation.added"]
    assert added == part["annotations"]
    assert "## browser\n\n// Tool for browsing." in prompt_of(site, 0)
    assert "<|start|>browser.search to=assistant<|channel|>commentary<|message|>[0] turtles\n**viewing" in prompt_of(
        site, 1
    )
    assert (
        f"<|start|>browser.open to=assistant<|channel|>commentary<|message|>[1] On turtles ({web.url('/turtles')})"
        in (prompt_of(site, 2))
    )


async def test_sources_are_shown_where_they_are_asked_for(web: WebServer, tool: BrowserTool) -> None:
    site = site_of(tool, *LOOK_UP, CITED)
    response = await site.ask(input="Shells?", tools=SEARCH, include=["web_search_call.action.sources"])
    search, opened = searches(response)
    assert search["action"]["sources"] == [{"type": "url", "url": web.url("/turtles")}]  # type: ignore[index]
    assert "sources" not in opened["action"]  # type: ignore[operator]


async def test_results_are_shown_where_they_are_asked_for_and_lead_on(web: WebServer, tool: BrowserTool) -> None:
    """Also where nothing but the items comes back: links of a search go by its results."""
    site = site_of(tool, *LOOK_UP, CITED)
    response = await site.ask(input="Shells?", tools=SEARCH, include=["web_search_call.results"])
    search, opened = searches(response)
    url = web.url("/turtles")
    assert search["results"] == [{"url": url, "title": "Turtles, all", "text": "They have a shell."}]
    [page] = opened["results"]  # type: ignore[misc]
    assert (page["url"], "bone" in page["text"], "T" in page["retrieved_at"]) == (url, True, True)
    elsewhere = site_of(tool, call("open", id=0, cursor=0), CITED)
    items = [{"role": "user", "content": "Shells?"}, search, {"role": "user", "content": "And?"}]
    [again] = searches(await elsewhere.ask(input=items, tools=SEARCH))
    assert (again["status"], again["action"]) == ("completed", {"type": "open_page", "url": url})


async def test_pages_of_blocked_domains_are_neither_found_nor_opened(web: WebServer, tool: BrowserTool) -> None:
    site = site_of(tool, call("search", query="turtles"), call("open", id=web.url("/turtles")), CITED)
    tools = [{"type": "web_search", "filters": {"blocked_domains": ["127.0.0.1"]}}]
    response = await site.ask(input="Shells?", tools=tools, include=["web_search_call.results"])
    search, opened = searches(response)
    assert (search["results"], opened["status"]) == ([], "failed")
    assert "pages of its domain are not allowed" in opened["error"]["message"]  # type: ignore[index]


async def test_a_chain_goes_on_with_its_cursors_on_another_worker(web: WebServer, tool: BrowserTool) -> None:
    site = site_of(tool, *LOOK_UP, CITED)
    first = await site.ask(input="Shells?", tools=SEARCH)
    other = browser_of(web)
    elsewhere = Site(FakeEngine([call("find", pattern="bone", cursor=1), CITED]), store=site.store, tools=[other])
    second = await elsewhere.ask(input="More?", tools=SEARCH, previous_response_id=first["id"])
    assert "[2] Find results for text: `bone` in `On turtles`" in prompt_of(elsewhere, 1)
    assert searches(second)[0]["action"] == {"type": "find_in_page", "pattern": "bone", "url": web.url("/turtles")}
    assert len(message_of(second)["annotations"]) == 2  # type: ignore[arg-type]
    third = await elsewhere.ask(input="Again?", previous_response_id=second["id"])  # without the tool
    assert len(message_of(third)["annotations"]) == 2  # type: ignore[arg-type]
    await other.aclose()


async def test_what_a_client_carries_itself_is_known_by_its_items(web: WebServer, tool: BrowserTool) -> None:
    site = site_of(tool, *LOOK_UP, CITED)
    first = await site.ask(input="Shells?", tools=SEARCH, store=False)
    site.engine.turns = [[call("open", cursor=1)], [CITED]]
    site.engine.requests.clear()
    history = [{"role": "user", "content": "Shells?"}, *first["output"], {"role": "user", "content": "Again?"}]  # type: ignore[misc]
    await site.ask(input=history, tools=SEARCH, store=False)
    assert f"[2] On turtles ({web.url('/turtles')})" in prompt_of(site, 1)


@pytest.mark.parametrize(
    ("turn", "reason", "action"),
    [
        (call("open", cursor=5), "No pages to access!", {"type": "open_page"}),
        (call("search"), "`query` should be a text", {"type": "search", "query": "", "queries": []}),
        (call("find", pattern="x"), "No pages to access!", {"type": "find_in_page", "pattern": "x", "url": ""}),
        (call("open", id="http://169.254.169.254/latest"), "not on the public internet", None),
        (call("search", query="x").replace('"}', ""), "they should be a JSON object", None),
    ],
)
async def test_when_it_fails_the_model_is_told_and_goes_on(
    tool: BrowserTool, turn: str, reason: str, action: JsonObject | None
) -> None:
    site = site_of(tool, turn, CITED)
    events = await site.events(input="x", tools=SEARCH)
    response: JsonObject = events[-1]["response"]  # type: ignore[assignment]
    Response.model_validate(response)
    (item,) = searches(response)
    assert item["status"] == "failed"
    assert item["error"]["type"] == "web_search_error"  # type: ignore[index]
    assert reason in item["error"]["message"]  # type: ignore[index]
    assert reason in prompt_of(site, 1)
    assert response["status"] == "completed"
    if action is not None:
        assert item["action"] == action


async def test_a_request_that_forbids_to_go_out_has_no_search(web: WebServer, tool: BrowserTool) -> None:
    inside = [{"type": "web_search", "external_web_access": False}]
    site = site_of(tool, "<|channel|>final<|message|>ok<|return|>")
    response = await site.ask(input="x", tools=inside)
    assert (response["status"], response["tools"]) == ("completed", inside)
    assert "browser" not in prompt_of(site, 0)
    with pytest.raises(ApiError, match="external_web_access") as refused:
        await site.begin(input="x", tools=inside, tool_choice="required")
    assert refused.value.param == "tool_choice"


async def test_it_is_there_once_however_often_it_is_declared(tool: BrowserTool) -> None:
    site = site_of(tool, "<|channel|>final<|message|>ok<|return|>")
    await site.ask(input="x", tools=[*SEARCH, {"type": "web_search_preview"}])
    assert prompt_of(site, 0).count("namespace browser {") == 1


async def test_the_model_knows_about_where_the_user_is(tool: BrowserTool) -> None:
    place = {"type": "approximate", "city": "Bern\n", "country": "CH", "region": None}
    site = site_of(tool, "<|channel|>final<|message|>ok<|return|>")
    await site.ask(input="x", tools=[{"type": "web_search", "user_location": place}])
    assert "The user is in about this place: Bern , CH\n" in prompt_of(site, 0)
    await site.ask(input="x", tools=[{"type": "web_search", "user_location": {"type": "approximate"}}])
    assert "about this place" not in prompt_of(site, 1)


async def test_cut_anywhere_another_worker_goes_on_with_the_same_stream(web: WebServer, tool: BrowserTool) -> None:
    turns: list[str] = [*LOOK_UP, CITED]
    accepted, events = await undisturbed(turns, {"tools": SEARCH}, tools=[tool])
    assert "annotation.added" in str(events)
    inputs = list(decode(accepted.log))
    ends = [place for place, each in enumerate(inputs) if not isinstance(each, Sampled)]
    answer_begins = max(place for place, each in enumerate(inputs) if isinstance(each, TurnBegan))
    for count in sorted({*ends, *range(answer_begins, len(inputs), 9)}):  # in front of tools, and inside citations
        site = Site(TokenEngine(turns), await left_at(accepted, encode(inputs[:count])), worker="heir", tools=[tool])
        reading = await taken_over(site, str(accepted.response["id"]))
        assert await reading.to_the_end() == events, f"cut behind {count} of {len(inputs)} inputs"


SHELL = "".join(f"<p>Fact {number} about the shell of turtles.</p>" for number in range(100))
ANY = BrowsingOptions()


class Model:
    """Calls the browser as a model does, in one chain."""

    def __init__(self, browser: Browser, web: WebServer) -> None:
        self.browser = browser
        self.web = web
        self.stack = PageStack()
        self.action: Any = None

    async def call(self, action: str, options: BrowsingOptions = ANY, **asked: object) -> str:
        """Call a function, as if what was shown had been kept meanwhile, and return what it shows."""
        self.stack = PageStack.from_json(self.stack.as_json())
        browsed = await self.browser.act(action, dict(asked), self.stack, options, project="p")
        self.action = browsed.action
        return browsed.text


@pytest.fixture
async def model(web: WebServer) -> AsyncIterator[Model]:
    """A model in front of a web with a search server, a page on turtles, and one on shells."""
    web.pages |= {
        "/search": searxng([(web.url("/turtles"), "Turtles", "All of them."), ("http://far.example/", "Far", "Away.")]),
        "/turtles": answer(f"<title>Turtles</title><h1>Turtles</h1><a href='/shell'>shell</a> {SHELL}".encode()),
        "/shell": answer(b"<title>The shell</title><p>It is <b>bone</b>.</p>"),
        "/moved": redirect("/shell"),
        "/gone": answer(b"gone", status="410 Gone"),
        "/picture": answer(b"\x89PNG", kind="image/png"),
    }
    tool = browser_of(web)
    yield Model(tool._browser, web)
    await tool.aclose()


async def test_a_search_its_first_hit_a_link_of_that_and_a_text_on_it(model: Model) -> None:
    url = model.web.url
    assert await model.call("search", query=" turtles ") == (
        "[0] turtles\n**viewing lines [0 - 3] of 3**\n\nL0: # Search Results\nL1: \n"
        "L2:   * 【0†Turtles†127.0.0.1】 All of them.\nL3:   * 【1†Far†far.example】 Away."
    )
    sources = [{"type": "url", "url": url("/turtles")}, {"type": "url", "url": "http://far.example/"}]
    assert model.action == {"type": "search", "query": "turtles", "queries": ["turtles"], "sources": sources}

    text = await model.call("open", id=0)
    assert text.startswith(f"[1] Turtles ({url('/turtles')})\n**viewing lines [0 - ")
    assert "L2: 【0†shell】" in text
    assert model.action == {"type": "open_page", "url": url("/turtles")}

    assert "[2] The shell" in await model.call("open", id="0", cursor="1")
    assert model.action == {"type": "open_page", "url": url("/shell")}

    text = await model.call("find", pattern="fact 7 ABOUT", cursor=1)
    assert "[3] Find results for text: `fact 7 ABOUT` in `Turtles`" in text
    assert "Fact 7 about the shell" in text
    assert model.action == {"type": "find_in_page", "pattern": "fact 7 ABOUT", "url": url("/turtles")}
    assert model.stack.source(3, 0) == (url("/turtles"), "Turtles")
    assert model.stack.source(0, 2) == (url("/turtles"), "Turtles")


async def test_a_match_is_opened_where_it_stands(model: Model) -> None:
    await model.call("open", id=model.web.url("/turtles"))
    found = await model.call("find", pattern="fact 60 ")
    line = int(found.partition("match at L")[2].partition("】")[0])
    assert f"**viewing lines [{line - 4} - " in (text := await model.call("open", id=0, cursor=1))
    assert f"L{line}: Fact 60 about" in text
    assert "**viewing lines [0 - 0]" in await model.call("open", id=0, cursor=1, loc=0, num_lines=1)


async def test_a_page_is_scrolled_without_being_fetched_again(model: Model) -> None:
    await model.call("open", id=model.web.url("/turtles"))
    asked = len(model.web.asked)
    text = await model.call("open", loc=50, num_lines=3)
    assert "**viewing lines [50 - 52] of" in text
    assert len(text.split("\n")) == 6
    await model.call("open", cursor=0, loc=10)
    assert len(model.web.asked) == asked
    await model.call("open", id=model.web.url("/turtles"))  # an address is read anew
    assert len(model.web.asked) == asked + 1
    assert model.stack.next_cursor == 4


async def test_another_worker_goes_on_with_what_was_shown(model: Model) -> None:
    await model.call("search", query="turtles")
    await model.call("open", id=0)
    await model.call("find", pattern="shell")
    model.browser._cache = PageCache()  # nothing is known there
    assert "[3] turtles" in (again := await model.call("open", cursor=0))
    assert "【1†Far†far.example】" in again
    assert "[4] The shell" in await model.call("open", cursor=1, id=0)
    assert "match at L" in await model.call("open", cursor=2)
    assert "[6] Turtles" in await model.call("open", cursor=0, id=0)


async def test_views_are_as_large_as_the_request_wants(model: Model) -> None:
    lengths = []
    for size in ("low", "medium", "high"):
        options = options_of({"type": "web_search", "search_context_size": size})
        lengths.append(len(await model.call("open", options, id=model.web.url("/turtles"))))
    assert lengths == sorted(lengths)
    assert 1900 < lengths[0] < 2200
    assert 3900 < lengths[1] < 4300
    text = await model.call(
        "open", options_of({"search_context_size": "low"}), id=model.web.url("/turtles"), num_lines=1000
    )
    assert len(text) < 4 * 2048 + 200


async def test_only_allowed_domains_are_found_and_opened(model: Model) -> None:
    here = options_of({"filters": {"allowed_domains": ["Far.example"]}})
    text = await model.call("search", here, query="turtles")
    assert "Turtles" not in text
    assert "Far" in text
    assert "site:far.example" in model.web.asked[-1]
    with pytest.raises(BrowsingFailed, match=r"only pages of far\.example are allowed"):
        await model.call("open", here, id=model.web.url("/turtles"))
    assert options_of({}) == options_of({"filters": None, "search_context_size": None}) == ANY


async def test_redirects_and_sources(model: Model) -> None:
    assert "[0] The shell" in await model.call("open", id=model.web.url("/moved"))
    assert model.stack.source(0, 0) == (model.web.url("/shell"), "The shell")
    assert "L0: <title>The shell</title>" in await model.call("open", view_source=True)
    assert "L0: <title>The shell</title>" in await model.call("open", cursor=1)


WRONG: Sequence[tuple[str, dict[str, object], str]] = (
    ("click", {}, "Unknown function: click"),
    ("search", {}, "`query` should be a text"),
    ("search", {"query": 7}, "`query` should be a text"),
    ("open", {"cursor": 3}, "Cursor `3` is out of range"),
    ("open", {"cursor": "x"}, "`cursor` should be a whole number"),
    ("open", {"cursor": "--1"}, "`cursor` should be a whole number"),
    ("open", {"cursor": 1e300}, "`cursor` should be a whole number"),
    ("open", {"cursor": 0, "id": 7}, "Invalid link id `7`"),
    ("open", {"loc": 5000}, "Invalid location parameter: `5000`. Cannot exceed page maximum of"),
    ("open", {"id": "/gone"}, "The server answered with status 410"),
    ("open", {"id": "/picture"}, "It is image/png, which is not text"),
    ("open", {"id": "file:///etc/passwd"}, "not a URL of the web"),
    ("open", {"id": "http://169.254.169.254/latest"}, "not on the public internet"),
    ("open", {"id": "localhost:1"}, "SEARCH_ALLOWED_HOSTS"),
    ("open", {"id": ""}, "not a URL of the web"),
    ("find", {"pattern": " "}, "`pattern` should be a text"),
    ("find", {"pattern": "x", "cursor": 1}, "Cannot run `find` on search results page"),
)


async def test_what_cannot_be_done_is_said_and_nothing_is_shown(model: Model) -> None:
    with pytest.raises(BrowsingFailed, match="No pages to access!"):
        await model.call("open")
    await model.call("open", id=model.web.url("/shell"))
    await model.call("search", query="x")
    await model.call("open", cursor=0)
    for action, asked, reason in WRONG:
        target = asked.get("id")
        known = isinstance(target, str) and target.startswith("/")
        with pytest.raises(BrowsingFailed) as failed:
            await model.call(action, **asked | ({"id": model.web.url(str(target))} if known else {}))
        assert reason in str(failed.value), asked
        assert model.stack.next_cursor == 3


async def test_a_search_that_fails_says_why_and_what_was_asked(model: Model) -> None:
    model.web.pages["/search"] = answer(b"", status="403 Forbidden")
    with pytest.raises(BrowsingFailed, match=r"search\.formats") as failed:
        await model.call("search", query="x")
    assert failed.value.action == {"type": "search", "query": "x", "queries": ["x"], "sources": []}


def test_pages_are_kept_by_project_for_a_while_and_up_to_a_size() -> None:
    time = [0.0]
    cache = PageCache(max_bytes=7000, seconds=10, now=lambda: time[0])
    page = WebPage(url="u", title="t", lines=["x" * 1000])
    cache.put("a", "u", page)
    assert (cache.get("a", "u"), cache.get("b", "u")) == (page, None)
    for number in range(5):
        cache.put("a", str(number), page)
        assert cache.get("a", "0") == page  # what is asked for stays
    assert [cache.get("a", each) for each in ("u", "1", "2", "4")] == [None, None, page, page]
    assert cache.bytes <= 7000
    cache.put("a", "big", WebPage(url="u", title="t", lines=["x" * 9000]))
    assert cache.get("a", "big") is None
    time[0] = 11
    assert cache.get("a", "4") is None
