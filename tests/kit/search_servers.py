"""What search servers answer: a SearXNG, and the one that comes with `ddgs`; and a small web to search."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from tests.kit.web_server import WebServer, answer, web_server

RESULTS = (
    ("https://turtles.example/shell", "Turtle shells", "The shell of a turtle is bone."),
    ("https://en.wikipedia.org/wiki/Turtle", "Turtle - Wikipedia", "Turtles are reptiles of the order Testudines."),
)


def searxng(results: Sequence[tuple[str, str, str]] = RESULTS) -> bytes:
    """Return an answer of SearXNG's."""
    found = [{"url": url, "title": title, "content": text, "engine": "x", "score": 1.0} for url, title, text in results]
    return as_json({"query": "q", "number_of_results": 0, "results": found, "answers": [], "unresponsive_engines": []})


def ddgs(results: Sequence[tuple[str, str, str]] = RESULTS) -> bytes:
    """Return an answer of the server of `ddgs`."""
    return as_json({"results": [{"title": title, "href": url, "body": text} for url, title, text in results]})


def as_json(value: object) -> bytes:
    return answer(json.dumps(value).encode(), kind="application/json")


@asynccontextmanager
async def small_web() -> AsyncIterator[WebServer]:
    """Run a web with one page that searches, and one that is found."""
    async with web_server() as web:
        web.pages |= {
            "/search": searxng([(web.url("/turtles"), "Turtles", "They have a shell.")]),
            "/turtles": answer(b"<title>On turtles</title><p>The shell of a turtle is bone.</p>"),
        }
        yield web


def settings(web: WebServer) -> dict[str, str]:
    """Return what makes a server search a web."""
    return {"search_url": web.url(), "search_allowed_hosts": f"127.0.0.1:{web.port}"}
