"""What real clients make of their keys: one that opens, one that is revoked, and one that is over its limits.

The SDKs never try a revoked key again, and a limit as often as they are told to. Codex tries both again, each in its
own way; so it does with OpenAI.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest
from websockets.exceptions import InvalidStatus

from tests.clients.codex import cli
from tests.clients.javascript import node
from tests.kit.closed import ClosedServer
from tests.kit.fixtures import module_server
from tests.kit.wiretap import Wiretap

POST, UPGRADE = "POST /v1/responses HTTP/1.1", "GET /v1/responses HTTP/1.1"
SAID = "1 2 3"
ASKED = {"model": "demo", "input": "count to 3"}
RETRIES = 1
CODEX_RETRIES = 1


@dataclass(frozen=True)
class Keys:
    """One that opens, one that is revoked, and one that may have no response at all."""

    good: str
    revoked: str
    limited: str


server = module_server("keys", ClosedServer, auth="on")


@pytest.fixture(scope="module")
def keys(server: ClosedServer) -> Keys:
    return Keys(*server.some_keys())


@pytest.fixture
async def tap(server: ClosedServer) -> AsyncIterator[Wiretap]:
    async with Wiretap(server.port) as tapped:
        yield tapped


def assert_limited(error: openai.RateLimitError) -> None:
    assert (error.status_code, error.code, error.type) == (429, "rate_limit_exceeded", "rate_limit_error")
    assert error.response.headers["retry-after"] == "1"


async def test_openais_sdk(tap: Wiretap, keys: Keys) -> None:
    def ask(key: str) -> str:
        with openai.OpenAI(base_url=tap.base_url, api_key=key, max_retries=RETRIES) as client:
            return client.responses.create(**ASKED).output_text

    assert await asyncio.to_thread(ask, keys.good) == SAID
    with pytest.raises(openai.AuthenticationError, match="Incorrect API key provided"):
        await asyncio.to_thread(ask, keys.revoked)
    assert tap.count(POST) == 2, "it is not tried again"
    with pytest.raises(openai.RateLimitError) as limited:
        await asyncio.to_thread(ask, keys.limited)
    assert_limited(limited.value)
    assert tap.count(POST) == 3 + RETRIES


async def test_openais_async_sdk_streaming_and_over_its_websocket(tap: Wiretap, keys: Keys) -> None:
    def client(key: str) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=tap.base_url, api_key=key, max_retries=RETRIES)

    async with client(keys.revoked) as revoked:
        with pytest.raises(openai.AuthenticationError):
            await revoked.responses.create(**ASKED, stream=True)
        with pytest.raises(InvalidStatus, match="401"):
            async with revoked.responses.connect():
                pass
    assert (tap.count(POST), tap.count(UPGRADE)) == (1, 1)
    async with client(keys.limited) as limited:
        with pytest.raises(openai.RateLimitError):
            await limited.responses.create(**ASKED, stream=True)
        async with limited.responses.connect() as connection:
            await connection.response.create(**ASKED)
            event = await connection.recv()
            assert event.type == "error"
            assert (event.error.code, event.error.type) == ("rate_limit_exceeded", "rate_limit_error")
    assert tap.count(POST) == 2 + RETRIES


@pytest.mark.parametrize("model", ["OpenAIResponsesModel", "OpenAIResponsesWSModel"])
async def test_the_agents_sdk(tap: Wiretap, keys: Keys, model: str) -> None:
    import agents  # takes seconds, which all who collect tests would wait for

    agents.set_tracing_disabled(True)

    async def ask(key: str) -> str:
        async with openai.AsyncOpenAI(base_url=tap.base_url, api_key=key, max_retries=RETRIES) as client:
            served = getattr(agents, model)(model="demo", openai_client=client)
            result = await agents.Runner.run(agents.Agent(name="Desk", model=served), ASKED["input"])
            await served.close()
            return str(result.final_output)

    over_http = model == "OpenAIResponsesModel"
    assert await ask(keys.good) == SAID
    with pytest.raises(openai.AuthenticationError if over_http else InvalidStatus, match="401"):
        await ask(keys.revoked)
    assert tap.count(POST if over_http else UPGRADE) == 2
    with pytest.raises(openai.RateLimitError if over_http else Exception, match=r"Rate limit reached|rate_limit"):
        await ask(keys.limited)


async def test_the_javascript_sdks(tap: Wiretap, keys: Keys, tmp_path: Path) -> None:
    packages = node.installed()

    async def told(name: str, key: str) -> dict[str, dict[str, Any]]:
        found: Any = await node.run(
            "keys.mjs", tap.base_url, key, str(RETRIES), packages=packages, folder=tmp_path / name
        )
        return found

    good = await told("good", keys.good)
    assert [way["said"] for way in good.values()] == [SAID] * 4
    before = tap.count(POST), tap.count(UPGRADE)
    revoked = await told("revoked", keys.revoked)
    for way in ("create", "stream", "agent"):
        assert (revoked[way]["error"], revoked[way]["status"]) == ("AuthenticationError", 401)
        assert revoked[way]["code"] == "invalid_api_key"
    assert "error" in revoked["agent_websocket"], "Node's WebSocket does not tell why"
    assert tap.count(POST) == before[0] + 3
    assert before[1] < tap.count(UPGRADE) <= before[1] + 1 + RETRIES
    limited = await told("limited", keys.limited)
    for way in ("create", "stream", "agent"):
        assert (limited[way]["error"], limited[way]["status"]) == ("RateLimitError", 429)
        assert limited[way]["code"] == "rate_limit_exceeded"
    assert "error" in limited["agent_websocket"]
    assert tap.count(POST) == before[0] + 3 + 3 * (1 + RETRIES)


@pytest.mark.parametrize("websockets", [True, False])
async def test_codex(tap: Wiretap, keys: Keys, tmp_path: Path, websockets: bool) -> None:
    program = cli.installed()
    printed = cli.config(base_url=tap.base_url, model="demo", websockets=websockets, retries=CODEX_RETRIES)

    async def ask(name: str, key: str) -> cli.Turn:
        codex = cli.Codex(program, tmp_path / name, config=printed)
        codex.environ["RESPSITE_API_KEY"] = key
        return await codex.ask(ASKED["input"])

    def why(turn: cli.Turn) -> str:
        assert turn.exit_code == 1
        (failed,) = [event for event in turn.events if event["type"] == "turn.failed"]
        return str(failed["error"])

    good = await ask("good", keys.good)
    assert (good.exit_code, good.last_message) == (0, SAID)
    assert tap.count(POST) == (0 if websockets else 1)
    assert "401 Unauthorized: Incorrect API key provided" in why(await ask("revoked", keys.revoked))
    before = tap.count(POST)
    assert "429 Too Many Requests" in why(await ask("limited", keys.limited))
    assert tap.count(POST) == before + 1 + CODEX_RETRIES, "it came in the end over HTTP, and was tried again"
