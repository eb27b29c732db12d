"""Search servers: what they find, and everything that they may answer instead."""

import re

import pytest

from responses_app.tools.browser.searching import (
    JsonSearch,
    SearchFailed,
    SearchResult,
    is_within,
    json_search,
    normal_domain,
    results_page,
    within,
)
from tests.kit.search_servers import RESULTS, as_json, ddgs, searxng
from tests.kit.web_server import WebServer, answer, redirect


@pytest.fixture(params=["searxng", "ddgs"])
async def search(request: pytest.FixtureRequest, web: WebServer) -> JsonSearch:
    web.pages |= {"/search": searxng(), "/search/text": ddgs()}
    return json_search(("ddgs+" if request.param == "ddgs" else "") + web.url("/"))


async def test_what_is_found_is_told(web: WebServer, search: JsonSearch) -> None:
    found = await search.search("turtles & shells", count=10)
    assert [(each.url, each.title, each.snippet) for each in found] == list(RESULTS)
    assert re.search(r"(q|query)=turtles\+%26\+shells", web.asked[0])
    assert len(await search.search("turtles", count=1)) == 1
    await search.aclose()


async def test_a_url_may_name_the_page_that_searches(web: WebServer) -> None:
    web.pages["/sub/search"] = searxng()
    search = json_search(web.url("/sub/search"))
    assert len(await search.search("turtles", count=10)) == 2
    await search.aclose()


async def test_what_is_not_a_result_is_left_out(web: WebServer, search: JsonSearch) -> None:
    odd = [
        *("text", 7, None, [], {}),
        {"url": 7, "href": 7},
        {"url": "javascript:x", "href": "file:///etc/passwd"},
        {"url": "http://", "href": "https:///x"},
        {"url": "https://a.example/\nx", "href": "https://a.example/ x"},
        {"url": "https://a.example/" + "x" * 3000, "href": "https://a.example/" + "x" * 3000},
        {"url": "https://a.example/", "href": "https://a.example/", "title": ["x"], "content": 7, "body": {}},
        {"url": "https://b.example/", "href": "https://b.example/", "title": "a\n 【0†b】", "content": "c\n" * 900,
         "body": "c\n" * 900},
    ]  # fmt: skip
    web.pages |= dict.fromkeys(("/search", "/search/text"), as_json({"results": odd}))
    first, second = await search.search("x", count=20)
    assert (first.title, first.snippet) == ("a.example", "")
    assert (second.title, len(second.snippet)) == ("a 〖0†b〗", 400)
    await search.aclose()


@pytest.mark.parametrize(
    ("page", "reason"),
    [
        (answer(b"no", status="500 Oops"), r"SEARCH_URL\) answered with status 500"),
        (answer(b"<html>"), "did not answer with JSON"),
        (as_json([]), "has no 'results'"),
        (as_json({"results": {"a": 1}}), "has no 'results'"),
        (answer(b"x" * 3_000_000, kind="application/json"), "more than 2097152 bytes"),
        (redirect("http://169.254.169.254/"), "not on the public internet"),
        (redirect("/search"), "redirects more than 2 times"),
    ],
)
async def test_every_other_answer_is_a_failure_with_its_reason(
    web: WebServer, search: JsonSearch, page: bytes, reason: str
) -> None:
    web.pages |= dict.fromkeys(("/search", "/search/text"), page)
    if b"Location: /search" in page and search.path != "/search":
        web.pages["/search/text"] = redirect("/search/text")
    with pytest.raises(SearchFailed, match=reason):
        await search.search("x", count=10)
    await search.aclose()


@pytest.mark.parametrize(
    ("status", "setting"), [("403 Forbidden", r"search\.formats"), ("429 Slow", r"server\.limiter")]
)
async def test_a_searxng_that_is_not_set_up_is_told_how(web: WebServer, status: str, setting: str) -> None:
    web.pages["/search"] = answer(b"", status=status)
    search = json_search(web.url())
    with pytest.raises(SearchFailed, match=setting):
        await search.search("x", count=10)
    await search.aclose()


async def test_a_server_that_is_away() -> None:
    away = json_search("http://127.0.0.1:9")
    with pytest.raises(SearchFailed, match="No connection"):
        await away.search("x", count=10)
    await away.aclose()


def test_the_page_of_results_says_where_each_stands() -> None:
    found = [SearchResult(*told) for told in (*RESULTS, ("https://l.example/", "Long", "word " * 40))]
    page, listed = results_page("turtles【", found)
    assert page.title == "turtles〖"
    assert page.lines[:4] == [
        "# Search Results",
        "",
        "  * 【0†Turtle shells†turtles.example】 The shell of a turtle is bone.",
        "  * 【1†Turtle - Wikipedia†en.wikipedia.org】 Turtles are reptiles of the order",
    ]
    assert [(each.line, page.lines[each.line][:6]) for each in listed] == [
        (2, "  * 【0"),
        (3, "  * 【1"),
        (5, "  * 【2"),
    ]
    assert page.links == [each.url for each in listed]
    nothing, listed = results_page("x", [])
    assert (nothing.lines[-1], listed) == ("Nothing was found.", [])


def test_domains_are_named_in_the_query_and_checked() -> None:
    assert within("q", ["a.example", "b.example"]) == "q site:a.example OR site:b.example"
    assert within("q", []) == within("q", [str(number) for number in range(6)]) == "q"
    assert is_within("https://A.example/x", ["a.example"])
    assert is_within("https://sub.a.example/x", ["a.example"])
    assert is_within("https://any.example/x", [])
    assert is_within("https://münchen.example/", [normal_domain("MÜNCHEN.example")])
    assert is_within("https://xn--mnchen-3ya.example/", [normal_domain("münchen.example")])
    assert not is_within("https://xa.example/", ["a.example"])
    assert not is_within("https://a.example.evil/", ["a.example"])
