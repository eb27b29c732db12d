"""Codex CLI 0.169's frames, in its key order and with everything that other clients never send.

A warm-up, the first turn, a tool's output, and what Codex does after an error: a new socket with everything again.
"""

import json
import uuid
from collections.abc import AsyncIterator

import httpx
import pytest
from websockets.asyncio.client import ClientConnection, connect

from responses_app.protocol.errors import JsonObject
from tests.kit.server import Server
from tests.wire.conformance.frames import TERMINAL, assert_whole_response, validate_frame

THREAD = str(uuid.UUID(int=0x01A1_FAB4_0000_7000_8000_0000_0000_0001))
HEADERS = {
    "authorization": "Bearer sk-local-test",
    "user-agent": "codex_exec/0.169.0 (Debian 12.0.0; x86_64) xterm (codex_exec; 0.169.0)",
    "originator": "codex_exec",
    "openai-beta": "responses_websockets=2026-02-06",
    "x-codex-turn-metadata": json.dumps({"session_id": THREAD, "turn_id": "", "request_kind": "prewarm"}),
    "x-codex-beta-features": "remote_compaction_v2",
    "session-id": THREAD,
    "thread-id": THREAD,
    "x-codex-window-id": f"{THREAD}:0",
}


def function(name: str, **properties: str) -> JsonObject:
    """Return a function tool as Codex declares it."""
    parameters = {
        "type": "object",
        "properties": {key: {"type": kind} for key, kind in properties.items()},
        "required": list(properties)[:1],
        "additionalProperties": False,
    }
    return {"type": "function", "name": name, "description": f"Does {name}.", "strict": False, "parameters": parameters}


TOOLS = [
    function("exec_command", cmd="string", timeout_ms="number"),
    function("write_stdin", session_id="number"),
    {
        "type": "namespace",
        "name": "multi_agent_v1",
        "description": "Tools for spawning and managing sub-agents.",
        "tools": [function("close_agent", id="string"), function("spawn_agent", message="string")],
    },
    function("get_goal"),
    {"type": "web_search", "external_web_access": False},
]


def message(role: str, *texts: str) -> JsonObject:
    """Return an input item with an id that the client made and the server has never seen."""
    content = [{"type": "input_text", "text": text} for text in texts]
    return {"type": "message", "id": f"msg_{uuid.uuid4()}", "role": role, "content": content}


BASE_PROMPT = message("developer", "You are a coding agent running in the Codex CLI. " * 300)
FIRST_TURN = [
    message("developer", "<skills_instructions>none</skills_instructions>", "<permissions instructions>ask"),
    message("user", "<environment_context><cwd>/repository</cwd></environment_context>"),
    message("user", "run exec_command with 'ls'"),
]


def create(items: list[JsonObject], **more: object) -> JsonObject:
    """Return a frame with the fields of every Codex request."""
    metadata = {"turn_id": "", "session_id": THREAD, "thread_id": THREAD, "x-codex-window-id": f"{THREAD}:0"}
    return {
        "type": "response.create",
        "model": "demo",
        "stream": True,
        "input": items,
        "tools": TOOLS,
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "reasoning": {"summary": "auto"},
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": THREAD,
        "client_metadata": metadata,
        **more,
    }


async def ask(socket: ClientConnection, frame: JsonObject) -> JsonObject:
    """Send a frame, hold its events to the rules, and return its response."""
    await socket.send(json.dumps(frame))
    frames: list[JsonObject] = []
    while not frames or frames[-1]["type"] not in TERMINAL:
        received = await socket.recv()
        assert isinstance(received, str), "Codex breaks on binary frames"
        frames.append(json.loads(received))
        assert frames[-1]["type"] != "error", frames[-1]
    assert_whole_response(frames)
    response = frames[-1]["response"]
    assert isinstance(response, dict)
    return response


def outputs_of(response: JsonObject) -> list[JsonObject]:
    """Return the outputs of a response's calls, each with an id of the client's own."""
    calls = [item for item in response["output"] if item["type"] == "function_call"]  # type: ignore[attr-defined]
    return [
        {
            "type": "function_call_output",
            "id": f"fco_{uuid.uuid4()}",
            "call_id": call["call_id"],
            "output": "Chunk ID: 1\nREADME.md",
        }
        for call in calls
    ]


@pytest.fixture
async def socket(demo_server: Server) -> AsyncIterator[ClientConnection]:
    """A socket with Codex's handshake, which offers compression."""
    async with connect(demo_server.ws_url, additional_headers=HEADERS, max_size=None) as opened:
        yield opened


async def test_a_session_of_warm_up_turn_and_tool_output(socket: ClientConnection) -> None:
    warm_up = await ask(socket, create([BASE_PROMPT], generate=False))
    assert warm_up["output"] == []

    turn = await ask(socket, create(FIRST_TURN, previous_response_id=warm_up["id"]))
    (call,) = [item for item in turn["output"] if item["type"] == "function_call"]  # type: ignore[attr-defined]
    assert (call["name"], json.loads(call["arguments"])["cmd"]) == ("exec_command", "ls")
    assert isinstance(turn["usage"], dict)
    assert {type(turn["usage"][name]) for name in ("input_tokens", "output_tokens", "total_tokens")} == {int}
    assert turn["tools"][2]["type"] == "namespace"  # type: ignore[index]
    assert turn["store"] is False

    answer = await ask(socket, create(outputs_of(turn), previous_response_id=turn["id"]))
    text = answer["output"][-1]["content"][0]["text"]  # type: ignore[index]
    assert "README.md" in text


async def test_everything_again_on_a_new_socket_after_an_error(demo_server: Server, socket: ClientConnection) -> None:
    warm_up = await ask(socket, create([BASE_PROMPT], generate=False))
    turn = await ask(socket, create(FIRST_TURN, previous_response_id=warm_up["id"]))
    outputs = outputs_of(turn)

    async with connect(demo_server.ws_url, additional_headers=HEADERS) as other:
        await other.send(json.dumps(create(outputs, previous_response_id=turn["id"])))
        frame = json.loads(await other.recv())
        validate_frame(frame)
        assert (frame["status"], frame["error"]["code"]) == (400, "previous_response_not_found")
        assert frame["error"]["type"] == "invalid_request_error"

    async with connect(demo_server.ws_url, additional_headers=HEADERS) as other:
        everything = [BASE_PROMPT, *FIRST_TURN, *turn["output"], *outputs]  # type: ignore[misc]
        answer = await ask(other, create(everything))
    assert "README.md" in answer["output"][-1]["content"][0]["text"]  # type: ignore[index]


async def test_what_is_not_built_yet_is_accepted_in_the_history(socket: ClientConnection) -> None:
    items: list[JsonObject] = [
        message("user", "search"),
        {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "x"}},
        {"type": "local_shell_call", "id": "ls_1", "call_id": "c", "status": "completed", "action": {"type": "exec"}},
        {"type": "function_call_output", "call_id": "c", "output": "README"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": None},
        message("user", "and now"),
    ]
    answer = await ask(socket, create(items))
    assert answer["status"] == "completed"


async def test_the_fallback_over_http_takes_the_same_body(demo_server: Server) -> None:
    body = create([BASE_PROMPT, *FIRST_TURN])
    del body["type"]
    async with httpx.AsyncClient() as client:
        answer = await client.post(
            f"{demo_server.base_url}/responses", json=body, headers={"accept": "text/event-stream"}
        )
    assert answer.status_code == 200
    assert "event: response.completed\n" in answer.text
