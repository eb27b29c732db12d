"""What search servers answer: a SearXNG, and the one that comes with `ddgs`."""

import json
from collections.abc import Sequence

from tests.tools.web_server import answer

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
    """Return an answer with JSON."""
    return answer(json.dumps(value).encode(), kind="application/json")
