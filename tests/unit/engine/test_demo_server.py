"""The demo engine behind vLLM's wire: the contract of engines over it, what it refuses, and the program."""

import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from engine.backends.base import BaseEngine
from engine.backends.demo.engine import DemoEngine
from engine.backends.demo.server import MODEL, NO_GRAMMARS, DemoServer
from engine.backends.vllm.server import VllmServerEngine
from engine.formats.harmony.prompt import generation_start
from tests.contracts.engine import EngineContract
from tests.kit.server import ROOT, free_port
from tests.kit.waiting import eventually
from tests.unit.engine.prompts import prompt as user_prompt

MAX_MODEL_LEN = 4000


class Served:
    def __init__(self) -> None:
        self.demo = DemoServer(
            DemoEngine(model=MODEL, options={"max_model_len": MAX_MODEL_LEN}), max_model_len=MAX_MODEL_LEN
        )
        self.url = f"http://127.0.0.1:{free_port()}"

    @asynccontextmanager
    async def listening(self) -> AsyncIterator["Served"]:
        runner = web.AppRunner(self.demo.application(), handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", int(self.url.rpartition(":")[2])).start()
        try:
            yield self
        finally:
            await runner.cleanup()

    def engine(self) -> VllmServerEngine:
        return VllmServerEngine(model=MODEL, options={"urls": (self.url,), "api_key": ""})


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with Served().listening() as served:
        yield served


class TestContract(EngineContract):
    @pytest.fixture
    def new_engine(self, served: Served) -> VllmServerEngine:
        self.served = served
        return served.engine()

    def short_prompt(self) -> list[int]:
        return user_prompt("Hello")

    def long_prompt(self) -> list[int]:
        return user_prompt("count to 300")

    async def wait_until_idle(self, engine: BaseEngine) -> None:
        await eventually(lambda: self.served.demo.running == 0)


async def test_it_holds_nothing_to_a_grammar_and_says_so(served: Served) -> None:
    engine = served.engine()
    await engine.start()
    await engine.aclose()
    assert not engine.supports_grammar
    sampling = {"max_tokens": 1, "stop_token_ids": [], "structured_outputs": {"structural_tag": "{}"}}
    status, answer = await _post(served, {"request_id": "r", "model": MODEL, "sampling_params": sampling})
    assert (status, answer["error"]["message"]) == (400, NO_GRAMMARS)


async def test_a_prompt_that_is_too_long_is_refused_in_the_stream_as_vllm_does(served: Served) -> None:
    sampling = {"max_tokens": 1, "stop_token_ids": []}
    body = {"request_id": "r", "model": MODEL, "sampling_params": sampling, "token_ids": [1] * MAX_MODEL_LEN}
    async with aiohttp.ClientSession() as http, http.post(f"{served.url}/inference/v1/generate", json=body) as answer:
        assert answer.status == 200
        said = (await answer.read()).decode()
    assert "longer than the maximum model length" in said
    assert said.endswith("data: [DONE]\n\n")


@pytest.mark.parametrize("body", [{}, [], {"token_ids": "x"}, {"sampling_params": {"max_tokens": None}}])
async def test_what_is_not_a_request_is_a_400(served: Served, body: object) -> None:
    async with aiohttp.ClientSession() as http, http.post(f"{served.url}/inference/v1/generate", json=body) as answer:
        assert answer.status == 400


async def test_another_model_is_a_404(served: Served) -> None:
    sampling = {"max_tokens": 1, "stop_token_ids": []}
    status, answer = await _post(served, {"request_id": "r", "model": "another", "sampling_params": sampling})
    assert status == 404
    assert "another" in answer["error"]["message"]


async def _post(served: Served, body: dict[str, object]) -> tuple[int, dict[str, dict[str, str]]]:
    asked = {"token_ids": generation_start(), **body}
    async with aiohttp.ClientSession() as http, http.post(f"{served.url}/inference/v1/generate", json=asked) as answer:
        return answer.status, json.loads(await answer.read())


def test_the_program_says_where_it_serves_and_ends_when_told() -> None:
    port = free_port()
    command = [sys.executable, "-m", "engine.backends.demo.server", "--port", str(port), "--tokens-per-second", "50"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert f"http://127.0.0.1:{port}" in process.stdout.readline()
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
