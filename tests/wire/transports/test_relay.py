"""A response that one worker runs is cancelled through another: Redis carries the word."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from responses_app.wiring.relay import Relay
from tests.kit.clients import Socket, http_client
from tests.kit.fixtures import two_of
from tests.kit.redis_server import RedisServer
from tests.kit.server import Server
from tests.kit.waiting import looks

SLOW = [{"say": "<|channel|>final<|message|>" + "word " * 500 + "<|return|>", "delay": 0.05}]


def eventually_logged(server: Server, line: str) -> None:
    """Wait until a server has said something."""
    assert any(line in server.output for _ in looks(10)), server.output[-3000:]


def begun(server: Server) -> str:
    """Return the id of a background response that has said something."""
    body = {"input": "hi", "background": True, "stream": True}
    with httpx.stream("POST", f"{server.base_url}/responses", json=body, timeout=20) as stream:
        for line in stream.iter_lines():
            event = json.loads(line.removeprefix("data: ")) if line.startswith("data: ") else {}
            if event.get("type") == "response.created":
                response_id = str(event["response"]["id"])
            if event.get("type") == "response.output_text.delta":
                break
    return response_id


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory, redis: RedisServer) -> Iterator[tuple[Server, Server]]:
    """Two workers with Redis; a test leaves them running."""
    first, second = two_of(tmp_path_factory.mktemp("both"), script=SLOW, redis_url=redis.url)
    with first, second:
        yield first, second


def test_a_response_is_cancelled_through_another_worker(both: tuple[Server, Server]) -> None:
    first, second = both
    response_id = begun(first)
    for _ in range(2):
        answer = httpx.post(f"{second.base_url}/responses/{response_id}/cancel", timeout=20)
        assert (answer.status_code, answer.json()["status"]) == (200, "cancelled")
        assert answer.json()["output"][0]["content"][0]["text"].startswith("word")
    assert "its client cancelled it" in first.output


async def test_a_deletion_is_heard_by_the_other_worker(both: tuple[Server, Server]) -> None:
    """What runs there ends, and what its connections remember is forgotten: also by those that ask no store."""
    first, second = both
    async with await Socket.open(first.ws_url) as socket, http_client(second) as http:
        await socket.create("hi")
        await socket.until("response.output_text.delta")
        running = socket.frames("response.created")[0]["response"]["id"]
        assert (await http.delete(f"/responses/{running}")).status_code == 200
        ended = (await socket.answer())[-1]
        assert (ended["type"], ended["response"]["status"]) == ("response.incomplete", "cancelled")
        assert "its client deleted it" not in second.output
        assert "it was deleted" in first.output
        assert (await http.get(f"/responses/{running}")).status_code == 404


def test_without_redis_it_says_what_is_missing(folder: Path) -> None:
    first, second = two_of(folder, script=SLOW)
    with first, second:
        response_id = begun(first)
        answer = httpx.post(f"{second.base_url}/responses/{response_id}/cancel", timeout=20)
        assert answer.status_code == 503
        assert "REDIS_URL" in answer.json()["error"]["message"]
        assert answer.headers["retry-after"]
        assert httpx.get(f"{second.base_url}/responses/{response_id}").json()["status"] == "in_progress"
        assert httpx.post(f"{first.base_url}/responses/{response_id}/cancel").json()["status"] == "cancelled"


def test_redis_away_delays_only_the_word(folder: Path) -> None:
    with RedisServer() as redis:
        first, second = two_of(folder, script=SLOW, redis_url=redis.url)
        with first, second:
            response_id = begun(first)
            redis.kill()
            eventually_logged(first, "the channel layer is away")
            answer = httpx.post(f"{second.base_url}/responses/{response_id}/cancel", timeout=20)
            assert answer.status_code == 503
            redis.start()
            for _ in range(10):
                answer = httpx.post(f"{second.base_url}/responses/{response_id}/cancel", timeout=20)
                if answer.status_code == 200:
                    break
            assert answer.json()["status"] == "cancelled"
            for server in (first, second):
                eventually_logged(server, "the channel layer is back")
                assert server.output.count("the channel layer is away") == 1
                assert "Traceback" not in server.output


class DeadLayer:
    """A channel layer whose Redis died while somebody listened."""

    def __init__(self) -> None:
        self.listening = asyncio.Event()

    async def new_channel(self, prefix: str) -> str:
        return prefix

    async def group_add(self, group: str, channel: str) -> None: ...

    async def receive(self, channel: str) -> None:
        self.listening.set()
        await asyncio.Event().wait()

    async def group_discard(self, group: str, channel: str) -> None:
        raise ConnectionRefusedError("Redis is away")


async def test_listening_stops_while_redis_is_away() -> None:
    layer = DeadLayer()
    relay = Relay(layer=layer)
    relay.start({})
    await layer.listening.wait()
    async with asyncio.timeout(10):
        await relay.aclose()


def test_a_server_stops_while_redis_is_away(folder: Path) -> None:
    with RedisServer() as redis, Server(folder, script=SLOW, redis_url=redis.url) as server:
        redis.kill()
        eventually_logged(server, "the channel layer is away")
        assert server.stop() == 0
