"""Limits of keys and projects on real servers: over HTTP and WebSocket, with OpenAI's SDK, by several workers."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager
from itertools import takewhile
from pathlib import Path

import httpx
import openai
import pytest
from redis import Redis

from tests.kit.clients import Socket
from tests.kit.closed import ClosedServer, bearer, limit, post
from tests.kit.fixtures import server_of_each_kind
from tests.kit.redis_server import RedisServer
from tests.kit.waiting import PATIENCE, eventually, looks

KNOWN_WITHIN = 2.0  # seconds until a changed limit holds
SLACK = 8.0  # seconds, on a machine that is busy
NAMES = ("limit", "remaining", "reset")


closed = server_of_each_kind(
    "limited", ClosedServer, auth="on", engine_options={"tokens_per_second": 100, "chunk_tokens": 1}
)


def get(server: ClosedServer, path: str, key: str) -> httpx.Response:
    return httpx.get(f"{server.base_url}{path}", headers=bearer(key), verify=False)


def brief(server: ClosedServer, key: str) -> int:
    """Return the status of a response of one token."""
    return post(server, key, max_output_tokens=1).status_code


def streamed(server: ClosedServer, key: str) -> AbstractContextManager[httpx.Response]:
    """Begin a stream."""
    body = {"input": "Hello", "stream": True}
    return httpx.stream("POST", f"{server.base_url}/responses", json=body, headers=bearer(key), verify=False)


def told(answer: httpx.Response, line: str) -> dict[str, str]:
    return {name: answer.headers.get(f"x-ratelimit-{name}-{line}", "") for name in NAMES}


def assert_limited(error: dict[str, object]) -> None:
    assert (error["type"], error["code"], error["param"]) == ("rate_limit_error", "rate_limit_exceeded", None)


def test_every_answer_says_what_is_left(closed: ClosedServer) -> None:
    key = closed.new_key("--requests-per-minute", "2", "--tokens-per-day", "100000")  # one comes back after 30 seconds
    first = get(closed, "/models", key)  # costs nothing
    assert told(first, "requests") == {"limit": "2", "remaining": "2", "reset": "0ms"}
    assert told(first, "tokens")["remaining"] == "100000"
    made = post(closed, key)
    assert (told(made, "requests")["limit"], told(made, "requests")["remaining"]) == ("2", "1")
    assert told(made, "requests")["reset"].endswith("s")
    used = made.json()["usage"]["total_tokens"]
    later = get(closed, f"/responses/{made.json()['id']}", key)
    assert 100_000 - used <= int(told(later, "tokens")["remaining"]) <= 100_000 - used + 5
    assert told(get(closed, "/responses/resp_none", key), "requests")["remaining"] == "1"
    with streamed(closed, key) as stream:
        assert stream.headers["x-ratelimit-remaining-requests"] == "0"
        assert int(stream.headers["openai-processing-ms"]) >= 0
        stream.read()
    assert "x-ratelimit-limit-requests" not in get(closed, "/models", closed.new_key()).headers


def test_over_the_limit_is_a_429_that_says_when_to_come_back(closed: ClosedServer) -> None:
    key = closed.new_key("--requests-per-minute", "2")
    assert [brief(closed, key) for _ in range(3)] == [200, 200, 429]
    refused = post(closed, key)
    assert_limited(refused.json()["error"])
    assert "Limit 2" in refused.json()["error"]["message"]
    assert 1 <= int(refused.headers["retry-after"]) <= 30
    assert told(refused, "requests")["remaining"] == "0"
    counted = httpx.post(
        f"{closed.base_url}/responses/input_tokens", json={"input": "Hello"}, headers=bearer(key), verify=False
    )
    assert counted.status_code == 429
    assert get(closed, "/models", key).status_code == 200


def test_a_response_that_ends_makes_room(closed: ClosedServer) -> None:
    key = closed.new_key("--concurrent-responses", "1")
    kept = post(closed, key, input="count to 9000", background=True).json()["id"]  # would take minutes
    assert_limited(post(closed, key).json()["error"])
    httpx.post(f"{closed.base_url}/responses/{kept}/cancel", headers=bearer(key), verify=False)
    assert any(get(closed, f"/responses/{kept}", key).json()["status"] == "cancelled" for _ in looks(PATIENCE))
    assert [brief(closed, key) for _ in range(5)] == [200] * 5, "the next one never waits for the last"


def test_a_client_that_leaves_makes_room(closed: ClosedServer) -> None:
    key = closed.new_key("--concurrent-responses", "1")
    for _ in range(3):
        with streamed(closed, key) as answer:
            assert answer.status_code == 200
            next(answer.iter_lines())
        statuses = takewhile(lambda status: status != 200, (brief(closed, key) for _ in looks(PATIENCE)))
        assert {*statuses} <= {429}
        assert brief(closed, key) == 200


def test_a_changed_limit_is_known_within_two_seconds(closed: ClosedServer) -> None:
    key = closed.new_key()
    assert brief(closed, key) == 200
    limit(closed, "--key", key, "--requests-per-minute", "1")
    assert any(brief(closed, key) == 429 for _ in looks(KNOWN_WITHIN + SLACK))
    limit(closed, "--key", key[:9], "--requests-per-minute", "none")
    assert any(brief(closed, key) == 200 for _ in looks(KNOWN_WITHIN + SLACK))


def test_a_project_limits_all_its_keys_together(closed: ClosedServer) -> None:
    one, two = (closed.new_key("--project", "shared") for _ in range(2))
    assert "requests per minute: no limit" in limit(closed, "--project", "shared")
    said = limit(closed, "--project", "shared", "--requests-per-minute", "3", "--tokens-per-day", "900000")
    assert "requests per minute: 3" in said
    assert "tokens per day: 900000" in said
    assert any(
        {told(get(closed, "/models", key), "requests")["limit"] for key in (one, two)} == {"3"}
        for _ in looks(KNOWN_WITHIN + SLACK)
    )
    assert [brief(closed, key) for key in (one, two, one, two)] == [200, 200, 200, 429]
    assert "project 'shared'" in post(closed, one).json()["error"]["message"]
    assert brief(closed, closed.new_key("--project", "other")) == 200


def test_openais_sdk_raises_what_it_raises_there(closed: ClosedServer) -> None:
    key = closed.new_key("--requests-per-minute", "1", "--input-tokens-per-minute", "500")
    with openai.OpenAI(api_key=key, base_url=closed.base_url, max_retries=0) as client:
        client.responses.create(model="demo", input="Hello", max_output_tokens=1)
        with pytest.raises(openai.RateLimitError) as caught:
            client.responses.create(model="demo", input="Hello")
        assert (caught.value.code, caught.value.type) == ("rate_limit_exceeded", "rate_limit_error")
    asked: list[httpx.Request] = []
    http = httpx.Client(event_hooks={"request": [asked.append]}, verify=False)
    with openai.OpenAI(api_key=key, base_url=closed.base_url, max_retries=5, http_client=http) as patient:
        with pytest.raises(openai.RateLimitError, match="Request too large"):
            patient.responses.create(model="demo", input="far too long " * 500)
        assert len(asked) == 1, "it does not try again what never fits"


async def test_over_a_websocket_it_is_an_error_frame(closed: ClosedServer) -> None:
    key = closed.new_key("--requests-per-minute", "2")
    async with await Socket.open(closed.ws_url, additional_headers=bearer(key)) as socket:
        assert socket.raw.response.headers["x-ratelimit-remaining-requests"] == "2"
        assert socket.raw.response.headers["x-request-id"]
        for _ in range(2):
            await socket.create(max_output_tokens=1)
            response = (await socket.until("response.incomplete"))[-1]["response"]
        await socket.create(previous_response_id=response["id"])
        error = await socket.receive()
        assert (error["type"], error["status"]) == ("error", 429)
        assert error["error"]["code"] == "rate_limit_exceeded"
        assert int(error["headers"]["retry-after"]) == int(error["error"]["headers"]["retry-after"]) >= 1
        # the limits of an open connection change too, and what it was refused can be asked again
        await asyncio.to_thread(limit, closed, "--key", key, "--requests-per-minute", "none")
        await eventually(lambda: _goes_on(socket, response["id"]), timeout=KNOWN_WITHIN + SLACK)


async def test_a_key_has_so_many_websockets(closed: ClosedServer) -> None:
    key = closed.new_key("--websockets", "1")
    async with await Socket.open(closed.ws_url, additional_headers=bearer(key)):
        async with await Socket.open(closed.ws_url, additional_headers=bearer(key)) as second:
            error = await second.receive()
            assert (error["status"], error["error"]["code"]) == (429, "websocket_connection_limit_reached")
            assert "open WebSockets: Limit 1" in error["error"]["message"]
            assert error["headers"]["retry-after"]
            assert await second.closed() == 1000
        async with await Socket.open(closed.ws_url, additional_headers=bearer(closed.new_key())) as other:
            await other.create(max_output_tokens=1)
            await other.until("response.incomplete")

    async def is_free() -> bool:
        async with await Socket.open(closed.ws_url, additional_headers=bearer(key)) as again:
            await again.create(max_output_tokens=1)
            return (await again.receive())["type"] != "error"

    await eventually(is_free)


async def test_the_dialect_that_wants_events_of_limits_gets_them(closed: ClosedServer) -> None:
    key = closed.new_key("--requests-per-minute", "2", "--tokens-per-day", "9000")
    headers = {**bearer(key), "respsite-dialect": "legacy-events"}
    async with await Socket.open(closed.ws_url, additional_headers=headers) as socket:
        await socket.create("Hello")
        frames = await socket.until("response.completed")
        types = [frame["type"] for frame in frames]
        assert types[types.index("response.in_progress") + 1] == "response.rate_limits.updated"
        assert types[-2] == "response.rate_limits.updated"
        requests, tokens = frames[-2]["rate_limits"]
        assert (requests["name"], requests["limit"], requests["remaining"]) == ("requests", 2, 1)
        assert 0 < requests["reset_seconds"] <= 30
        assert (tokens["name"], tokens["limit"]) == ("tokens", 9000)


async def _goes_on(socket: Socket, parent: str) -> bool:
    await socket.create(previous_response_id=parent, max_output_tokens=1)
    return (await socket.answer())[-1]["type"] != "error"


def end_leases_of_slots(server: RedisServer) -> None:
    """Let the time be over in which the slots of all workers that were killed are still taken."""
    with Redis.from_url(server.url) as redis:
        for slots in (key for key in redis.scan_iter() if redis.type(key) == b"zset"):
            redis.zadd(slots, dict.fromkeys((holder for holder, _ in redis.zscan_iter(slots)), 1))


class TestWorkers:
    """Two servers with one Redis."""

    @pytest.fixture
    async def pair(
        self, tmp_path: Path, own_redis_server: RedisServer
    ) -> AsyncIterator[tuple[ClosedServer, ClosedServer]]:
        options = json.dumps({"tokens_per_second": 2})
        one, two = (
            ClosedServer(tmp_path, auth="on", redis_url=own_redis_server.url, engine_options=options) for _ in range(2)
        )
        two.log = tmp_path / "second.log"
        with one, two:
            yield one, two

    async def test_a_killed_worker_locks_nobody_out(
        self, pair: tuple[ClosedServer, ClosedServer], own_redis_server: RedisServer
    ) -> None:
        one, two = pair
        key = one.new_key("--concurrent-responses", "2", "--websockets", "2", "--requests-per-minute", "10")
        sockets = [await Socket.open(one.ws_url, additional_headers=bearer(key)) for _ in range(2)]
        for socket in sockets:
            await socket.create("count to 9000")  # would take hours
            await socket.until("response.in_progress")
        refused = await asyncio.to_thread(post, two, key)
        assert_limited(refused.json()["error"])
        assert int(told(refused, "requests")["remaining"]) in (8, 9)  # one comes back every six seconds
        one.kill()
        end_leases_of_slots(own_redis_server)

        async def is_free() -> bool:
            return await asyncio.to_thread(brief, two, key) == 200

        await eventually(is_free)
        async with await Socket.open(two.ws_url, additional_headers=bearer(key)) as socket:
            await socket.create(max_output_tokens=1)
            await socket.until("response.incomplete")
