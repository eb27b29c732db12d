"""`web_search` through whole servers and OpenAI's SDK: the demo engine searches a small web on loopback."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import pytest
from agents import Agent, OpenAIResponsesModel, Runner, WebSearchTool, set_tracing_disabled
from openai import AsyncOpenAI, OpenAI
from openai.types.responses import Response

from tests.server import Server
from tests.tools.search_servers import searxng
from tests.tools.web_server import WebServer, answer, web_server

ASKED = "Please search for turtle shells."
TOOLS = [{"type": "web_search"}]


@contextmanager
def small_web() -> Iterator[WebServer]:
    """Run a web server in a thread of its own, for tests that share it."""
    loop = asyncio.new_event_loop()
    thread = Thread(target=loop.run_forever, daemon=True)
    thread.start()
    running = web_server()
    web = asyncio.run_coroutine_threadsafe(running.__aenter__(), loop).result(10)
    web.pages |= {
        "/search": searxng([(web.url("/turtles"), "Turtles", "They have a shell.")]),
        "/turtles": answer(b"<title>On turtles</title><p>The shell of a turtle is bone.</p>"),
    }
    yield web
    asyncio.run_coroutine_threadsafe(running.__aexit__(None, None, None), loop).result(10)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)
    loop.close()


@pytest.fixture(scope="module")
def web() -> Iterator[WebServer]:
    """The web that they search."""
    with small_web() as web:
        yield web


@pytest.fixture(scope="module")
def server(web: WebServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that searches it."""
    with Server(tmp_path_factory.mktemp("searching"), **settings(web)) as server:
        yield server


def settings(web: WebServer) -> dict[str, str]:
    """Return what sets the search up."""
    return {"search_url": web.url(), "search_allowed_hosts": f"127.0.0.1:{web.port}"}


@pytest.fixture
def client(server: Server) -> Iterator[OpenAI]:
    """The SDK."""
    with OpenAI(base_url=server.base_url, api_key="none", max_retries=0) as client:
        yield client


def assert_found(response: Response, web: WebServer) -> None:
    """Assert that a response searched, opened the hit and cites it."""
    assert response.status == "completed"
    search, opened = (item for item in response.output if item.type == "web_search_call")
    assert (search.status, search.action.type) == ("completed", "search")
    assert (opened.action.type, opened.action.url) == ("open_page", web.url("/turtles"))
    message = response.output[-1]
    assert message.type == "message"
    part = message.content[0]
    assert part.type == "output_text"
    (cited,) = part.annotations
    assert cited.type == "url_citation"
    assert (cited.title, cited.url) == ("On turtles", web.url("/turtles"))
    assert part.text[cited.start_index : cited.end_index] == f"([127.0.0.1]({web.url('/turtles')}))"
    assert "The shell of a turtle is bone." in part.text


@pytest.mark.parametrize("store", [True, False])
def test_at_once_and_streamed(client: OpenAI, web: WebServer, store: bool) -> None:
    assert_found(client.responses.create(model="demo", input=ASKED, tools=TOOLS, store=store), web)
    types = []
    with client.responses.stream(model="demo", input=ASKED, tools=TOOLS, store=store) as stream:
        for event in stream:
            types.append(event.type.removeprefix("response."))
        assert_found(stream.get_final_response(), web)
    calls = [each for each in types if each.startswith("web_search_call")]
    assert calls == [f"web_search_call.{each}" for each in ("in_progress", "searching", "completed")] * 2
    assert types.count("output_text.annotation.added") == 1


def test_in_the_background_with_sources_and_a_chain(client: OpenAI, web: WebServer) -> None:
    include = ["web_search_call.action.sources"]
    response = client.responses.create(model="demo", input=ASKED, tools=TOOLS, background=True, include=include)
    while response.status in ("queued", "in_progress"):
        response = client.responses.retrieve(response.id)
    assert_found(response, web)
    assert [source.url for source in response.output[1].action.sources] == [web.url("/turtles")]
    again = client.responses.create(model="demo", input=ASKED, tools=TOOLS, previous_response_id=response.id)
    assert_found(again, web)
    assert "sources" not in again.output[1].to_json()


async def test_over_the_websocket(server: Server, web: WebServer) -> None:
    client = AsyncOpenAI(base_url=server.base_url, api_key="none")
    async with client, client.responses.connect() as connection:
        await connection.response.create(model="demo", input=ASKED, tools=TOOLS)
        async for event in connection:
            if event.type == "response.completed":
                assert_found(event.response, web)
                break


async def test_by_the_agents_sdk_with_a_history_that_it_carries(server: Server, web: WebServer) -> None:
    set_tracing_disabled(True)
    tool = WebSearchTool(search_context_size="low", user_location={"type": "approximate", "city": "Bern"})
    async with AsyncOpenAI(base_url=server.base_url, api_key="none") as client:
        agent = Agent(name="searcher", model=OpenAIResponsesModel("demo", client), tools=[tool])
        first = await Runner.run(agent, ASKED)
        assert [type(item).__name__ for item in first.new_items].count("ToolCallItem") == 2
        again = Runner.run_streamed(agent, [*first.to_input_list(), {"role": "user", "content": ASKED}])
        seen = {event.data.type async for event in again.stream_events() if event.type == "raw_response_event"}
    assert "response.output_text.annotation.added" in seen
    assert web.url("/turtles") in first.final_output
    assert web.url("/turtles") in again.final_output


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
