"""A worker is killed (-9) at each state of a response with agents: all goes on, and no tool is called twice.

The root starts an agent and waits; that one tells the root something, calls a tool, and answers.

    root    start ─────> wait ───────────────> again ──────────────────────> end
    agent            └─> tell ── a message ──^        book ── (the tool) ──> answer ──^

Each turn begins with a thought that names it. A gate in one of them, or in the tool, says where the kill comes.

Only this finds a state of agents that a death loses.
"""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from engine.formats.harmony.encoding import encode_harmony
from tests.kit.server import Server
from tests.wire.transports.effects import Hearing, hearing

HEADERS = {"OpenAI-Beta": "responses_multi_agent=v1"}
PATIENCE = 60.0
CUT = "the server stopped while the tool ran"
THOUGHT = "<|channel|>analysis<|message|>This is the turn: {}."
Event = dict[str, Any]


def call(tool: str, **arguments: str) -> str:
    return f"<|channel|>commentary to={tool} code<|message|>{json.dumps(arguments)}<|call|>"


def answer(text: str) -> str:
    return f"<|channel|>final<|message|>{text}<|return|>"


# By the names of turns: what the last message has in it, and what is said.
TURNS: Mapping[str, tuple[str, str]] = {
    "start": ("[job]", call("agents.spawn_agent", task_name="a", message="[work]")),
    "wait": ('{"task_name":"/root/a"}', call("agents.wait_agent")),
    "again": ("Half of it", call("agents.wait_agent")),
    "end": ("All of it", answer("It is done.")),
    "tell": ("[work]", call("agents.send_message", target="/root", message="Half of it is done.")),
    "book": ("The message was sent", call("tests.book", text="a")),
    "answer": ("", answer("All of it is done.")),
}
AGENTS_TURNS = ("tell", "book", "answer")  # all others are the root's
SAID_BY_AGENT = Counter(
    {
        "reasoning: This is the turn: tell.": 1,
        "reasoning: This is the turn: book.": 1,
        "reasoning: This is the turn: answer.": 1,
        "multi_agent_call: ": 1,
        "multi_agent_call_output: The message was sent to /root.": 1,
        "agent_message: Half of it is done.": 1,
        "agent_message: All of it is done.": 1,
        "mcp_call: ": 1,
        "message: All of it is done.": 1,
    }
)


def worker(folder: Path, gate_in: str = "") -> Server:
    """Return a server whose model stands still behind the thought of a turn, until there is a file `gate`."""
    script = []
    for name, (when, said) in TURNS.items():
        thought = THOUGHT.format(name)
        entry = {"say": f"{thought}<|end|><|start|>assistant{said}", **({"when": when} if when else {})}
        if name == gate_in:
            entry |= {"hang_after": len(encode_harmony(thought)), "wait_for_file": str(folder / "gate")}
        script.append(entry)
    return Server(folder, script=script, worker_lease_seconds=1, mcp_allowed_hosts="127.0.0.1")


@pytest.fixture
async def hears(tmp_path: Path) -> AsyncIterator[Hearing]:
    """The server whose tool counts its calls."""
    async with hearing(tmp_path) as hears:
        yield hears


async def events_of(stream: httpx.Response) -> AsyncIterator[Event]:
    assert stream.status_code == 200, await stream.aread()
    async for line in stream.aiter_lines():
        if line.startswith("data: {"):
            yield json.loads(line[6:])


async def read_until(server: Server, tools: object, reached: Callable[[list[Event]], bool]) -> list[Event]:
    """Begin the response in the background, and read its stream until something has been reached."""
    body = {"input": "[job]", "background": True, "stream": True, "multi_agent": {"enabled": True}, "tools": tools}
    events: list[Event] = []
    async with (
        httpx.AsyncClient(timeout=PATIENCE) as http,
        http.stream("POST", f"{server.base_url}/responses", json=body, headers=HEADERS) as stream,
    ):
        async for event in events_of(stream):
            events.append(event)
            if reached(events):
                return events
    raise AssertionError(f"the stream ended before that, with {events[-1:]}")


async def end_of(server: Server, before: list[Event]) -> Event:
    """Start a worker anew, and return the response at its end. What was told before stands where it stood."""
    await asyncio.to_thread(server.start)
    url = f"{server.base_url}/responses/{before[0]['response']['id']}?stream=true"
    async with httpx.AsyncClient(timeout=PATIENCE) as http, http.stream("GET", url) as stream:
        events = [event async for event in events_of(stream)]
    assert events[: len(before)] == before
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    places = {
        what: sorted(event["output_index"] for event in events if event["type"] == f"response.output_item.{what}")
        for what in ("added", "done")
    }
    assert places["added"] == places["done"] == list(range(len(places["done"])))
    response: Event = events[-1]["response"]
    assert response["status"] == "completed", response
    calls, outputs = (
        sorted(item["call_id"] for item in response["output"] if item["type"] == kind)
        for kind in ("multi_agent_call", "multi_agent_call_output")
    )
    assert calls == outputs
    return response


def said_by(response: Event, agent: str) -> Counter[str]:
    """Return what an agent has said, item by item: where others come between does not matter."""
    said = Counter[str]()
    for item in response["output"]:
        if item["agent"]["agent_name"] == agent:
            # The output of a tool is a text, which the tests look at by themselves.
            parts = [] if item["type"] == "mcp_call" else item.get("content") or item.get("output") or []
            said[f"{item['type']}: {''.join(part['text'] for part in parts)}"] += 1
    return said


def at_gate(turn: str) -> Callable[[list[Event]], bool]:
    """Return what tells whether a turn has come to its gate.

    Beside a turn of the root the agent works on, so its end is awaited, too: else the kill may find it in its tool.
    """

    def reached(events: list[Event]) -> bool:
        thoughts: dict[str, str] = {}
        for event in events:
            if event["type"] == "response.reasoning_text.delta":
                thoughts[event["item_id"]] = thoughts.get(event["item_id"], "") + event["delta"]
        return any(f"turn: {turn}." in thought for thought in thoughts.values()) and (
            turn in AGENTS_TURNS or any(_is_answer(event) for event in events)
        )

    return reached


def _is_answer(event: Event) -> bool:
    return bool(
        event["type"] == "response.output_item.done"
        and event["item"]["type"] == "message"
        and event["agent"]["agent_name"] == "/root/a"
    )


def calls_tool(events: list[Event]) -> bool:
    return bool(events[-1]["type"] == "response.mcp_call.in_progress")


@pytest.mark.parametrize(
    "turn",
    [
        "wait",  # the root generates, and has read nothing of its agent, which has ended
        "tell",  # the agent generates, and has told nothing
        "answer",  # the agent generates, and has called the tool; the root waits
        "end",  # the root generates, and has read all
    ],
)
async def test_a_kill_in_a_turn(tmp_path: Path, hears: Hearing, turn: str) -> None:
    with worker(tmp_path, turn) as server:
        before = await read_until(server, hears.tools(), at_gate(turn))
        server.kill()
        (tmp_path / "gate").touch()
        response = await end_of(server, before)
    assert said_by(response, "/root/a") == SAID_BY_AGENT
    assert said_by(response, "/root")["message: It is done."] == 1
    # The agent works while the root thinks: the kill may come between the permission of its call and the call.
    assert hears.heard["a"] == 1 or CUT in json.dumps(response["output"])
    assert hears.heard["a"] <= 1


async def test_a_kill_while_an_agents_tool_runs(tmp_path: Path, hears: Hearing) -> None:
    """It is not called again: the agent reads that it was cut, and goes on."""
    called, ended = asyncio.Event(), asyncio.Event()

    async def on_call(text: str) -> None:
        called.set()
        await ended.wait()

    hears.on_call = on_call
    with worker(tmp_path) as server:
        before = await read_until(server, hears.tools(), calls_tool)
        await asyncio.wait_for(called.wait(), PATIENCE)
        server.kill()
        ended.set()
        response = await end_of(server, before)
    assert said_by(response, "/root/a") == SAID_BY_AGENT
    (booked,) = (item for item in response["output"] if item["type"] == "mcp_call")
    assert CUT in json.dumps(booked)
    assert hears.heard == {"a": 1}
