"""The tools of the server as clients use them everywhere: each entry of `cases` is a row of `test_everywhere`."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from openai.types.responses import Response

from tests.kit.image_server import ImageServer, as_base64, image_server
from tests.kit.mcp_servers import PROGRAM, McpServer, mcp_server
from tests.kit.sandboxes import needs_bubblewrap
from tests.kit.search_servers import ddgs, searxng
from tests.kit.server import ROOT
from tests.kit.threads import in_a_thread
from tests.kit.web_server import WebServer, answer, web_server

OLD_PROGRAM = "tests.unit.tools.mcp.old_program"
INTERPRETER = {"type": "code_interpreter", "container": {"type": "auto"}}
SLOW_QUERY = "slow"
MCP_EVENTS = ("in_progress", "arguments.delta", "arguments.done", "completed")


@dataclass(frozen=True)
class Counterparts:
    """What the tools talk to: MCP servers by their kinds, a web that is searched, a service that makes images.

    `store_ids` are vector stores with a file on holidays, once there is a server that has them.
    """

    mcp: dict[str, McpServer]
    web: WebServer
    images: ImageServer
    store_ids: list[str] = field(default_factory=list)

    def settings(self, *, ddgs: bool) -> dict[str, object]:
        """Return what sets a server up for them, with one of the two searches."""
        environ = {"PYTHONPATH": str(ROOT)}
        programs = {
            label: {"command": sys.executable, "args": ["-m", module], "env": environ}
            for label, module in (("program", PROGRAM), ("old-program", OLD_PROGRAM))
        }
        return {
            "mcp_allowed_hosts": "127.0.0.1",
            "mcp_servers": json.dumps(programs),
            "search_url": f"ddgs+{self.web.url()}" if ddgs else self.web.url(),
            "search_allowed_hosts": f"127.0.0.1:{self.web.port}",
            "image_service_url": self.images.url,
            "sandbox_memory_bytes": 256 * 1024 * 1024,
        }


@dataclass(frozen=True)
class Slow:
    """A response whose worker is killed: behind the event `until`. `check` is what another worker has made of it."""

    asked: str
    until: str
    check: Callable[[Response], None]


@dataclass(frozen=True)
class Case:
    """A tool. `item` is the type of its calls; `asked` are two turns of a chain, and `check` what came of each.

    `events` are those of one call, and `calls` how many a turn makes. `first` is the worker that has the first turn; it
    has the second one, too, where it is `alone`.
    """

    item: str
    tools: Callable[[Counterparts], list[Any]]
    asked: tuple[str, str]
    check: Callable[[Response, int], None]
    events: Sequence[str]
    calls: int = 1
    first: int = 0
    alone: bool = False
    slow: Sequence[Slow] = field(default=())
    marks: Sequence[pytest.MarkDecorator] = ()

    def calls_of(self, response: Response) -> list[Any]:
        return [item for item in response.output if item.type == self.item]


# MCP.


def mcp_at(kind: str, **fields: object) -> Callable[[Counterparts], list[Any]]:
    """Return the declaration of a server over HTTP; it asks for no approval unless `fields` say so."""
    return lambda there: [
        {
            "type": "mcp",
            "server_label": "tests",
            "server_url": there.mcp[kind].url,
            "require_approval": "never",
            **fields,
        }
    ]


def mcp_of(label: str) -> Callable[[Counterparts], list[Any]]:
    """Return the declaration of a program of the operator's."""
    return lambda _: [{"type": "mcp", "server_label": label, "require_approval": "never"}]


def added(response: Response, turn: int) -> None:
    """Assert that `add` was called, and its server listed only once in the chain."""
    kinds = [item.type for item in response.output]
    assert kinds.count("mcp_list_tools") == (1 if turn == 0 else 0)
    (call,) = (item for item in response.output if item.type == "mcp_call")
    assert (call.name, call.status, call.error) == ("add", "completed", None)
    arguments = json.loads(call.arguments)
    assert call.output == str(arguments["a"] + arguments["b"])
    assert f"it returned: {call.output}." in response.output_text


def not_made_twice(response: Response) -> None:
    """Assert that a call which may change something has failed, with a typed error."""
    (call,) = (item for item in response.output if item.type == "mcp_call")
    assert (call.status, call.output) == ("failed", None)
    error: Any = call.error
    assert (error["type"] if isinstance(error, dict) else error.type) == "mcp_tool_execution_error"
    assert "the server stopped while the tool ran" in response.output_text


def made_again(response: Response) -> None:
    """Assert that a call which only reads was made once more."""
    (call,) = (item for item in response.output if item.type == "mcp_call")
    assert (call.status, call.error, call.output) == ("completed", None, "looked 2 times")


def _mcp(tools: Callable[[Counterparts], list[Any]], **fields: Any) -> Case:
    return Case("mcp_call", tools, ("call add with 2", "call add with 3"), added, MCP_EVENTS, **fields)


# The code interpreter.


def kept(response: Response, turn: int) -> None:
    """Assert that the second turn knows the variables of the first."""
    (call,) = (item for item in response.output if item.type == "code_interpreter_call")
    assert (call.status, call.container_id[:5]) == ("completed", "cntr_")
    assert [output.logs for output in call.outputs or ()] == ["6\n" if turn == 0 else "42\n"]


def went_on(response: Response) -> None:
    """Assert that code which was running went on, and did not run twice."""
    (call,) = (item for item in response.output if item.type == "code_interpreter_call")
    assert call.status == "completed"
    assert [output.logs for output in call.outputs or ()] == ["1\n"]


# The shell.


def wrote(response: Response, turn: int = 0) -> None:
    """Assert that the second turn has the file of the first."""
    (call,) = (item for item in response.output if item.type == "shell_call")
    (output,) = (item for item in response.output if item.type == "shell_call_output")
    assert (call.status, output.status, output.call_id) == ("completed", "completed", call.call_id)
    assert [(each.stdout, each.stderr) for each in output.output] == [("six\n", "")]


def cut(response: Response) -> None:
    """Assert that a command which was running is not run again, and that what it had printed is kept."""
    (call,) = (item for item in response.output if item.type == "shell_call")
    (output,) = (item for item in response.output if item.type == "shell_call_output")
    assert (call.status, output.status) == ("completed", "incomplete")
    assert [(each.stdout, each.outcome.to_dict()["exit_code"]) for each in output.output] == [("begun\n", 137)]
    assert "the server stopped while the tool ran" in response.output_text


# Web search.


def found(response: Response, turn: int = 0) -> None:
    """Assert that it searched, opened the hit and cites it."""
    search, opened = (item for item in response.output if item.type == "web_search_call")
    assert [search.status, opened.status] == ["completed", "completed"]
    assert (search.action.type, opened.action.type) == ("search", "open_page")
    (message,) = (item for item in response.output if item.type == "message")
    part = message.content[0]
    assert part.type == "output_text"
    (cited,) = part.annotations
    assert cited.type == "url_citation"
    assert (cited.title, cited.url) == ("On turtles", opened.action.url)
    assert part.text[cited.start_index : cited.end_index] == f"([127.0.0.1]({cited.url}))"
    assert "The shell of a turtle is bone." in part.text


def _search(first: int, *slow: Slow) -> Case:
    asked = ("Please search for turtle shells.", "Please search for turtles.")
    events = ("in_progress", "searching", "completed")
    tools: list[Any] = [{"type": "web_search"}]
    return Case("web_search_call", lambda _: tools, asked, found, events, calls=2, first=first, slow=slow)


# File search, and images.


def looked_up(response: Response, turn: int = 0) -> None:
    (call,) = (item for item in response.output if item.type == "file_search_call")
    assert call.status == "completed"
    assert [(hit.filename, "30 days" in (hit.text or "")) for hit in call.results or ()] == [("handbook.md", True)]
    assert "30 days" in response.output_text


def drawn(response: Response, turn: int = 0) -> None:
    """Assert that an image was made, and the same one edited in the second turn."""
    (call,) = (item for item in response.output if item.type == "image_generation_call")
    what, action = ("a cat", "generate") if turn == 0 else ("a red cat", "edit")
    assert (call.status, call.result, call.to_dict()["action"]) == ("completed", as_base64(what), action)


def not_drawn_twice(response: Response) -> None:
    """Assert that an image which was being made is not made again."""
    (call,) = (item for item in response.output if item.type == "image_generation_call")
    assert (call.status, call.result) == ("failed", None)
    assert "the server stopped while the tool ran" in response.output_text


CASES = {
    "MCP over HTTP": _mcp(
        mcp_at("http"),
        slow=(
            Slow("call wait", "response.mcp_call.in_progress", not_made_twice),
            Slow("call look", "response.mcp_call.in_progress", made_again),
            Slow("call add with 2", "response.mcp_call.completed", lambda response: added(response, 0)),
        ),
    ),
    "MCP over HTTP as it was": _mcp(mcp_at("old http")),
    "MCP over SSE": _mcp(mcp_at("sse")),
    "MCP over stdio": _mcp(mcp_of("program"), alone=True),
    "MCP over stdio as it was": _mcp(mcp_of("old-program"), first=1, alone=True),
    "interpreter": Case(
        "code_interpreter_call",
        lambda _: [INTERPRETER],
        ("python: x = 6\nprint(x)", "python: print(x * 7)"),
        kept,
        ("in_progress", "code.delta", "code.done", "interpreting", "completed"),
        slow=[
            Slow(
                "python: import time\nopen('runs', 'a').write('.')\ntime.sleep(10)\nprint(len(open('runs').read()))",
                "response.code_interpreter_call.interpreting",
                went_on,
            ),
            Slow(
                "python: x = 6\nprint(x)",
                "response.code_interpreter_call.completed",
                lambda response: kept(response, 0),
            ),
        ],
        marks=[needs_bubblewrap],
    ),
    "shell": Case(
        "shell_call",
        lambda _: [{"type": "shell", "environment": {"type": "container_auto"}}],
        ("shell: echo six > number; cat number", "shell: cat number"),
        wrote,
        ("command.added", "command.delta", "command.done", "output_content.delta", "output_content.done"),
        slow=[
            Slow("shell: echo begun; sleep 60", "response.shell_call_output_content.delta", cut),
            Slow("shell: echo six", "response.shell_call_output_content.done", wrote),
        ],
        marks=[needs_bubblewrap],
    ),
    "SearXNG": _search(
        0,
        Slow(f"Please search for {SLOW_QUERY} turtles.", "response.web_search_call.searching", found),
        Slow("Please search for turtles.", "response.web_search_call.completed", found),
    ),
    "ddgs": _search(1),
    "file search": Case(
        "file_search_call",
        lambda there: [{"type": "file_search", "vector_store_ids": there.store_ids}],
        ('call file_search.msearch for "holidays"', 'call file_search.msearch for "days a year"'),
        looked_up,
        ("in_progress", "searching", "completed"),
        slow=[
            Slow('call file_search.msearch for "holidays"', "response.file_search_call.completed", looked_up),
        ],
    ),
    "images": Case(
        "image_generation_call",
        lambda _: [{"type": "image_generation", "partial_images": 1}],
        ("Please draw a cat.", 'Please call image_generation.edit with "a red cat".'),
        drawn,
        ("in_progress", "generating", "partial_image", "completed"),
        slow=[
            Slow("Please draw slow.", "response.image_generation_call.generating", not_drawn_twice),
            Slow("Please draw a cat.", "response.image_generation_call.completed", drawn),
        ],
    ),
}


@contextmanager
def counterparts() -> Iterator[Counterparts]:
    with ExitStack() as stack:
        web = stack.enter_context(in_a_thread(_web()))
        kinds: Any = ("http", "old http", "sse")
        images = stack.enter_context(in_a_thread(image_server()))
        yield Counterparts({kind: stack.enter_context(in_a_thread(mcp_server(kind))) for kind in kinds}, web, images)


@asynccontextmanager
async def _web() -> AsyncIterator[WebServer]:
    async with web_server() as web:
        hits, never = [(web.url("/turtles"), "Turtles", "They have a shell.")], asyncio.Event()

        async def search(writer: asyncio.StreamWriter) -> None:
            """Answer as SearXNG; the first question for what is slow gets no answer."""
            asked = [each for each in web.asked if "/search?" in each and f"q={SLOW_QUERY}" in each]
            if len(asked) == 1 and asked[0] == web.asked[-1]:
                await never.wait()
            writer.write(searxng(hits))
            await writer.drain()

        web.pages |= {
            "/search": search,
            "/search/text": ddgs(hits),
            "/turtles": answer(b"<title>On turtles</title><p>The shell of a turtle is bone.</p>"),
        }
        yield web
