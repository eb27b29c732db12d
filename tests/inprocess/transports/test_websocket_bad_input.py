"""What a WebSocket client can get wrong: each is told in a frame, and the connection stays usable, unless said."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.inprocess.conftest import Connect
from tests.kit.clients import Frame, Socket, http_client, read_error_answer, read_error_frame, read_message
from tests.kit.inprocess import Server
from tests.kit.scripts import gate, release

CREATE = {"type": "response.create"}
HI = {**CREATE, "input": "Hi"}
ORPHAN = {"type": "function_call_output", "call_id": "call_nobody", "output": "1"}
LONG_INPUT = "word " * 5000
NOT_JSON = {"status": 400, "code": "invalid_json"}
NO_TYPE = {"status": 400, "code": "unknown_event_type", "param": "type"}
NO_LANE = {"status": 400, "code": "invalid_stream_id", "param": "stream_id"}


def wrong(param: str, code: str | None = "invalid_type", status: int = 400) -> dict[str, Any]:
    """Return what a wrong field is answered with."""
    return {"status": status, "code": code, "param": param}


def unsupported(param: str) -> dict[str, Any]:
    """Return what a field that is not built yet is answered with."""
    return wrong(param, "unsupported_parameter")


BAD_FRAMES: dict[str, tuple[object, dict[str, Any]]] = {
    "not-json": ("{", NOT_JSON),
    "lone-surrogate": ('{"type":"response.create","input":"\\ud800"}', NOT_JSON),
    "deep": ("[" * 5000, NOT_JSON),
    "array": ("[1]", NOT_JSON),
    "binary": (b'{"type":"response.create"}', NOT_JSON),
    "no-type": ({"input": "Hello"}, NO_TYPE),
    "unknown-type": ({"type": "response.dance"}, NO_TYPE),
    "item-without-type": (
        {**CREATE, "input": [{"role": "user", "content": "a"}, {"content": "b"}]},
        wrong("input[1].type", "missing_required_parameter"),
    ),
    "no-input": (CREATE, wrong("input", "missing_required_parameter")),
    "unknown-model": ({**HI, "model": "gpt-99"}, wrong("model", "model_not_found", 404)),
    "temperature-high": ({**HI, "temperature": 3}, wrong("temperature", "invalid_value")),
    "lane-bad-characters": ({**HI, "stream_id": "a b"}, NO_LANE),
    "lane-number": ({**HI, "stream_id": 5}, NO_LANE),
    "parent-unknown": (
        {**HI, "previous_response_id": "resp_nobody"},
        wrong("previous_response_id", "previous_response_not_found"),
    ),
    "call-unknown": ({**CREATE, "input": [ORPHAN]}, wrong("input", None)),
    "context": ({**CREATE, "input": LONG_INPUT}, wrong("input", "context_length_exceeded")),
    "conversation-unknown": ({**HI, "conversation": "conv_1"}, wrong("conversation", None, 404)),
    "not-built-prompt": ({**HI, "prompt": {"id": "pmpt_1"}}, unsupported("prompt")),
    "choice-absent": ({**HI, "tool_choice": "required"}, wrong("tool_choice", "invalid_value")),
    "of-forks-only": ({**HI, "cache_salt": "x"}, unsupported("cache_salt")),
}


@pytest.mark.parametrize("case", BAD_FRAMES)
async def test_bad_input_is_told_and_the_connection_goes_on(socket: Socket, case: str) -> None:
    frame, expected = BAD_FRAMES[case]
    await socket.send(frame)
    read_message(read_error_frame(await socket.error(), **expected), expected.get("param"))
    assert len(socket.log) == 1
    await socket.ask("Hello")


async def test_errors_name_their_lane(socket: Socket) -> None:
    await socket.create(5, "lane")
    read_error_frame(await socket.error("lane"), status=400, code="invalid_type", param="input")
    await socket.ask("Hello", "lane")


async def test_a_full_queue_refuses_and_keeps_what_it_has(server: Server, socket: Socket) -> None:
    for _ in range(5):  # one runs, four wait
        await socket.create(gate("d0"), "lane")
    await socket.create("Hello", "lane")
    while (frame := await socket.next("lane"))["type"] != "error":
        assert frame["type"] != "response.completed"
    assert "WEBSOCKET_MAX_QUEUED" in read_error_frame(frame, status=429, code="rate_limit_exceeded")
    release(server, "d0")
    for _ in range(5):
        assert (await socket.answer("lane"))[-1]["type"] == "response.completed"
    await socket.ask("Hello", "lane")


@pytest.mark.parametrize("word", ["[die]", "[crash]", "[break]", "[away]", "[full]"])
async def test_an_engine_that_dies_fails_the_response_and_no_other(socket: Socket, word: str) -> None:
    await socket.create("[hang]", "other")
    await socket.until("response.output_text.delta", "other")
    await socket.create(word)
    events = await socket.answer()
    failed = events[-1]
    assert events[0]["type"] == "response.created"
    assert failed["type"] == "response.failed", failed
    assert failed["response"]["status"] == "failed"
    assert failed["response"]["error"]["code"] == ("rate_limit_exceeded" if word == "[full]" else "server_error")
    read_message(failed["response"]["error"]["message"])
    await socket.ask("Hello")
    assert not [frame for frame in socket.frames("response.failed") if "stream_id" in frame]


async def test_what_is_unknown_or_comes_later_is_accepted(socket: Socket) -> None:
    """What Codex and the SDKs send in every request."""
    fields: Frame = {
        "client_metadata": {"a": "b"},
        "something_new": [1],
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "key",
        "service_tier": "auto",
        "reasoning": {"summary": "auto"},
        "tools": [
            {"type": "web_search", "external_web_access": False},
            {"type": "namespace", "name": "n", "tools": []},
        ],
        "parallel_tool_calls": True,
        "conversation": None,
        "prompt": None,
        "top_logprobs": 0,
        "tool_choice": "auto",
    }
    await socket.ask([{"role": "user", "content": "Hello", "id": "msg_of-the-client"}], **fields)


async def test_an_engine_that_is_not_ready_asks_to_come_back(folder: Path, open_socket: Connect) -> None:
    options = json.dumps({"start_seconds": 3600})
    server = Server(folder, script=[{"say": "x"}], engine_options=options)
    server.start(wait=False)
    try:
        socket = await open_socket(server)
        for lane in (None, "lane"):
            await socket.create("Hello", lane)
            read_error_frame(await socket.error(lane), status=503, code="server_is_overloaded")
        await check_http_while_loading(server)
    finally:
        assert server.stop() in (0, -15)
    assert "Traceback" not in server.output


async def check_http_while_loading(server: Server) -> None:
    """The same over HTTP: 503, and no event stream that never starts."""
    async with http_client(server) as http:
        for stream in (False, True):
            answer = await http.post("/responses", json={"input": "Hello", "stream": stream})
            read_error_answer(answer, status=503, code="server_is_overloaded")
        ready = await http.get(f"{server.url}/ready")
        assert ready.status_code == 503
        assert "starting" in ready.json()["engine"]
        assert (await http.get(f"{server.url}/health")).status_code == 200
        assert (await http.get("/models")).status_code == 200
