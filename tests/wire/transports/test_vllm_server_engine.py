"""Real servers in front of a vLLM that comes, goes, comes back, or is not what was asked for."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from engine.formats.harmony.encoding import encode_harmony
from tests.kit.clients import Socket, http_client, read_error_answer, read_error_frame, server_sent, text_of
from tests.kit.fake_vllm import MODEL, SELDOM_LOOKED_AT, FakeVllm
from tests.kit.server import Server
from tests.kit.waiting import eventually
from tests.wire.transports.conftest import Connect

HELLO = "<|channel|>final<|message|>Hello there.<|return|>"
SCRIPT = ({"when": "[hang]", "say": HELLO, "hang_after": 5}, {"say": HELLO, "cached_tokens": 3})
BEFORE_THE_HANG = 2  # output_text deltas: "Hello" and " there"
LEAKS = ("127.0.0.1:", "aiohttp", "vLLM", "Error", "secret")


@asynccontextmanager
async def in_front_of(fake: FakeVllm, folder: Path, *, ready: bool = True, **settings: Any) -> AsyncIterator[Server]:
    """Run a server whose engine is this vLLM; blocking calls stay out of the loop that the vLLM lives in."""
    own = {"engine": "vllm-server", "engine_url": fake.url, "model": MODEL, "engine_options": SELDOM_LOOKED_AT}
    server = Server(folder, **own, **settings)  # type: ignore[arg-type]
    await asyncio.to_thread(server.start, wait=ready)
    try:
        yield server
    finally:
        await asyncio.to_thread(server.stop)
        assert "engine/backends" not in server.output, "a traceback of ours"


async def wait_until(server: Server, path: str, status: int) -> httpx.Response:
    """Ask a path until it answers so."""
    return await asyncio.to_thread(server.wait_until, path, status)


async def test_it_answers_through_vllm(folder: Path, open_socket: Connect) -> None:
    async with FakeVllm(*SCRIPT, api_key="the key") as fake:
        async with in_front_of(fake, folder, engine_api_key="the key") as server, http_client(server) as http:
            socket = await open_socket(server)
            response = await socket.ask("Hi", prompt_cache_key="mine", service_tier="priority")
            assert text_of(response) == "Hello there."
            assert response["usage"]["output_tokens"] == len(encode_harmony(HELLO))
            assert response["usage"]["input_tokens_details"]["cached_tokens"] == 3
            (asked,) = fake.generations
            assert asked.path == "/inference/v1/generate"
            assert asked.body["priority"] < 0
            assert asked.body["cache_salt"]
            assert asked.body["request_id"].startswith(response["id"])
            answer = await http.post("/responses", json={"input": "Hi"})
            assert text_of(answer.json()) == "Hello there."
        assert f"the engine is ready: vllm-server, {MODEL}, 4000 tokens of context, over /inference/v1" in server.output
        assert "the key" not in server.output


async def test_absent_at_the_start_and_then_there(folder: Path, open_socket: Connect) -> None:
    fake = FakeVllm(*SCRIPT)
    async with in_front_of(fake, folder, ready=False) as server, http_client(server) as http:
        assert (await http.get(f"{server.url}/ready")).status_code == 503
        refused = await http.post("/responses", json={"input": "Hi"})
        read_error_answer(refused, status=503, code="server_is_overloaded")
        socket = await open_socket(server)
        await socket.create("Hi")
        read_error_frame(await socket.error(), status=503, code="server_is_overloaded")
        async with fake:
            await wait_until(server, "/ready", 200)
            assert text_of(await socket.ask("Hi")) == "Hello there."


async def test_killed_in_the_middle_and_back(folder: Path, open_socket: Connect) -> None:
    async with FakeVllm(*SCRIPT) as fake, in_front_of(fake, folder) as server, http_client(server) as http:
        socket = await open_socket(server)
        await socket.create("[hang]")
        for _ in range(BEFORE_THE_HANG):
            await socket.until("response.output_text.delta")
        async with http.stream("POST", "/responses", json={"input": "[hang]", "stream": True}) as answer:
            events = server_sent(answer)
            while (await anext(events))[0] != "response.output_text.delta":
                pass
            await fake.kill()
            failed = (await socket.answer())[-1]
            (over_http,) = [data async for name, data in events if name == "response.failed"]
        for response in (failed["response"], over_http["response"]):
            assert response["status"] == "failed"
            assert response["error"]["code"] == "server_error"
            assert not [leak for leak in LEAKS if leak in json.dumps(response["error"])]
        await socket.create("Hi")
        read_error_frame(await socket.error(), status=503, code="server_is_overloaded")
        assert (await http.get(f"{server.url}/ready")).status_code == 503
        await fake.start()
        await wait_until(server, "/ready", 200)
        assert text_of(await socket.ask("Hi")) == "Hello there."
        assert "not used until it is better" in server.output


async def test_who_leaves_aborts_at_vllm(folder: Path) -> None:
    async with FakeVllm(*SCRIPT) as fake, in_front_of(fake, folder) as server:
        async with await Socket.open(server.ws_url) as socket:
            await socket.create("[hang]")
            await socket.until("response.output_text.delta")
            assert fake.engine.running == 1
        await eventually(lambda: fake.engine.running == 0)
        assert fake.engine.aborted == 1


@pytest.mark.parametrize(
    ("switches", "sentence"),
    [
        ({"api_key": "another"}, "refuses our key with 401: ENGINE_API_KEY is to be what it was given as --api-key."),
        ({"model": "other/model"}, f"does not serve MODEL={MODEL}; it serves other/model, an-adapter."),
        (
            {"scale_out": False, "knows_token_ids": False},
            "is too old to give token ids over /v1/completions: start it with --tokens-only or --enable-scale-out.",
        ),
    ],
    ids=["key", "model", "endpoint"],
)
async def test_what_cannot_work_ends_the_process(folder: Path, switches: dict[str, object], sentence: str) -> None:
    async with FakeVllm(*SCRIPT, **switches) as fake:
        server: Any = Server(folder, engine="vllm-server", engine_url=fake.url, model=MODEL, engine_api_key="the key")
        try:
            await asyncio.to_thread(server.start, wait=False)
        except AssertionError as ended:  # it may end before it answers
            assert "the server ended" in str(ended)  # noqa: PT017
        await eventually(lambda: server.process is not None and server.process.poll() is not None)
    (line,) = [line for line in server.output.splitlines() if "cannot start" in line]
    assert line.endswith(f"the vLLM server at {fake.url} {sentence}")
    assert "engine/backends" not in server.output, "a traceback of ours"
    assert "the key" not in server.output
