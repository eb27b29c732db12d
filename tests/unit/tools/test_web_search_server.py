"""`web_search` through whole servers that are started one after the other, which search a small web on loopback."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from openai import OpenAI

from tests.kit.search_servers import settings, small_web
from tests.kit.server import Server
from tests.kit.threads import in_a_thread
from tests.kit.web_server import WebServer

TOOLS = [{"type": "web_search"}]


@pytest.fixture(scope="module")
def web() -> Iterator[WebServer]:
    """The web that they search."""
    with in_a_thread(small_web()) as web:
        yield web


def calling(function: str, **arguments: object) -> str:
    """Return a turn that calls a function of the browser."""
    header = f"<|channel|>commentary to=browser.{function} <|constrain|>json<|message|>"
    return f"{header}{json.dumps(arguments)}<|call|>"


CITED = "<|channel|>final<|message|>Bone【1†L0】.<|return|>"
SCRIPT = [
    {"when": "Shells?", "say": calling("search", query="turtles")},
    {"when": "Search Results", "say": calling("open", id=0)},
    {"when": "On turtles (", "say": CITED},
    {"when": "More?", "say": calling("find", pattern="bone", cursor=1)},
    {"when": "Find results", "say": CITED},
]


def test_a_cursor_holds_over_a_restart(web: WebServer, folder: Path) -> None:
    """The second process has read no page: it knows what the chain was shown from the store."""
    previous, kinds = None, []
    for asked in ("Shells?", "More?"):
        with (
            Server(folder, script=SCRIPT, **settings(web)) as server,
            OpenAI(base_url=server.base_url, api_key="none", max_retries=0) as client,
        ):
            response = client.responses.create(
                model="scripted", input=asked, tools=TOOLS, previous_response_id=previous
            )
        previous = response.id
        kinds += [item.action.type for item in response.output if item.type == "web_search_call"]
        (cited,) = response.output[-1].content[0].annotations
        assert (cited.title, cited.url) == ("On turtles", web.url("/turtles"))
    assert kinds == ["search", "open_page", "find_in_page"]
    assert response.output[0].action.url == web.url("/turtles")
