"""MCP through whole servers and OpenAI's SDK: the demo engine calls the tools of a server on loopback."""

import asyncio
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.responses import Response
from openai.types.responses.response_output_item import McpCall

from tests.server import ROOT, Server
from tests.tools.mcp.mcp_servers import PROGRAM, McpServer, mcp_server

ASKED = "call add with 2"
PROGRAMS = {
    "files": {"command": sys.executable, "args": ["-m", PROGRAM], "env": {"PYTHONPATH": str(ROOT)}},
}


@contextmanager
def in_a_thread() -> Iterator[McpServer]:
    """Run an MCP server in a thread of its own, for tests that share it."""
    loop = asyncio.new_event_loop()
    thread = Thread(target=loop.run_forever, daemon=True)
    thread.start()
    running = mcp_server()
    yield asyncio.run_coroutine_threadsafe(running.__aenter__(), loop).result(30)
    asyncio.run_coroutine_threadsafe(running.__aexit__(None, None, None), loop).result(30)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)
    loop.close()


@pytest.fixture(scope="module")
def mcp() -> Iterator[McpServer]:
    """The MCP server that they call."""
    with in_a_thread() as server:
        yield server


def settings() -> dict[str, str]:
    """Return what lets requests reach it, and what configures another one."""
    return {"mcp_allowed_hosts": "127.0.0.1", "mcp_servers": json.dumps(PROGRAMS)}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that may reach it."""
    with Server(tmp_path_factory.mktemp("calling"), **settings()) as server:
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[OpenAI]:
    """The SDK."""
    with OpenAI(base_url=server.base_url, api_key="none", max_retries=0) as client:
        yield client


def declared(mcp: McpServer, **fields: object) -> list[dict[str, object]]:
    return [{"type": "mcp", "server_label": "tests", "server_url": mcp.url, "require_approval": "never", **fields}]


def assert_added(response: Response) -> McpCall:
    """Assert that a response has called `add` and says what came of it."""
    assert response.status == "completed"
    (call,) = (item for item in response.output if item.type == "mcp_call")
    assert (call.name, call.server_label, call.status, call.error) == ("add", "tests", "completed", None)
    arguments = json.loads(call.arguments)
    assert call.output == str(arguments["a"] + arguments["b"])
    assert f"called tests.add and it returned: {call.output}." in response.output_text
    return call


@pytest.mark.parametrize("store", [True, False])
def test_at_once_and_streamed(client: OpenAI, mcp: McpServer, store: bool) -> None:
    tools = declared(mcp)
    at_once = client.responses.create(model="demo", input=ASKED, tools=tools, store=store)  # type: ignore[arg-type]
    assert_added(at_once)
    assert at_once.output[0].type == "mcp_list_tools"
    types = []
    with client.responses.stream(model="demo", input=ASKED, tools=tools, store=store) as stream:  # type: ignore[arg-type]
        for event in stream:
            types.append(event.type.removeprefix("response."))
        assert_added(stream.get_final_response())
    of_mcp = [each for each in dict.fromkeys(types) if each.startswith("mcp_")]
    assert of_mcp == [
        "mcp_list_tools.in_progress",
        "mcp_list_tools.completed",
        "mcp_call.in_progress",
        "mcp_call_arguments.delta",
        "mcp_call_arguments.done",
        "mcp_call.completed",
    ]


def test_in_the_background_and_in_a_chain(client: OpenAI, mcp: McpServer) -> None:
    response = client.responses.create(model="demo", input=ASKED, tools=declared(mcp), background=True)  # type: ignore[arg-type]
    while response.status in ("queued", "in_progress"):
        response = client.responses.retrieve(response.id)
    assert_added(response)
    again = client.responses.create(
        model="demo", input=ASKED, tools=declared(mcp), previous_response_id=response.id  # type: ignore[arg-type]
    )  # fmt: skip
    assert_added(again)
    assert "mcp_list_tools" not in [item.type for item in again.output]


async def test_over_the_websocket(server: Server, mcp: McpServer) -> None:
    client = AsyncOpenAI(base_url=server.base_url, api_key="none")
    async with client, client.responses.connect() as connection:
        tools = declared(mcp, require_approval="always")
        await connection.response.create(model="demo", input=ASKED, tools=tools, store=False)  # type: ignore[arg-type]
        async for event in connection:
            if event.type == "response.completed":
                first = event.response
                break
        request = first.output[-1]
        assert request.type == "mcp_approval_request"
        approval = {"type": "mcp_approval_response", "approval_request_id": request.id, "approve": True}
        await connection.response.create(
            model="demo", input=[approval], tools=tools, previous_response_id=first.id, store=False  # type: ignore
        )  # fmt: skip
        async for event in connection:
            if event.type == "response.completed":
                assert assert_added(event.response).approval_request_id == request.id
                break


def test_a_program_of_the_operators_by_its_label(client: OpenAI) -> None:
    tools = [{"type": "mcp", "server_label": "files", "require_approval": "never", "allowed_tools": ["add"]}]
    response = client.responses.create(model="demo", input=ASKED, tools=tools)  # type: ignore[arg-type]
    assert [item.type for item in response.output] == [
        "mcp_list_tools",
        "reasoning",
        "mcp_call",
        "reasoning",
        "message",
    ]
    listed, call = response.output[0], response.output[2]
    assert listed.type == "mcp_list_tools"
    assert [tool.name for tool in listed.tools] == ["add"]
    assert call.type == "mcp_call"
    assert call.status == "completed"


def test_asked_on_one_worker_approved_after_a_restart_on_another(mcp: McpServer, folder: Path) -> None:
    tools = declared(mcp, require_approval={"never": {"tool_names": ["say"]}}, authorization="a-secret-token")
    with Server(folder, **settings()) as server, OpenAI(base_url=server.base_url, api_key="none") as client:
        first = client.responses.create(model="demo", input=ASKED, tools=tools)  # type: ignore[arg-type]
        request = first.output[-1]
        assert request.type == "mcp_approval_request"
        said = server.output
    approval = {"type": "mcp_approval_response", "approval_request_id": request.id, "approve": True}
    with Server(folder, **settings()) as server, OpenAI(base_url=server.base_url, api_key="none") as client:
        second = client.responses.create(
            model="demo", input=[approval], tools=tools, previous_response_id=first.id  # type: ignore[arg-type,list-item]
        )  # fmt: skip
        assert assert_added(second).approval_request_id == request.id
        assert "a-secret-token" not in second.to_json() + said + server.output
