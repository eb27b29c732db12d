"""`web_search` inside responses: a small web on loopback, a model with its turns, and what clients and it read."""

from collections.abc import AsyncIterator, Sequence

import orjson
import pytest
from openai.types.responses import Response
from openai_harmony import ToolNamespaceConfig

from engine.formats.harmony.encoding import decode_tokens
from responses_app.protocol.errors import ApiError, JsonObject
from responses_app.protocol.response.input_codec import decode, encode
from responses_app.protocol.response.steps import Sampled, TurnBegan
from responses_app.tools.browser.fetching import Fetcher, PageCache, PageReader
from responses_app.tools.browser.searching import json_search
from responses_app.tools.browser.tool import DESCRIPTION, FUNCTIONS, Browser, BrowserTool
from responses_app.tools.network import AllowedHosts, Network
from tests.kit.fakes import FakeEngine, Site
from tests.kit.search_servers import searxng
from tests.kit.web_server import WebServer, answer
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
