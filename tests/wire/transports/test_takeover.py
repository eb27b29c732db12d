"""Two workers on one database: what one runs is followed, deleted, cancelled and taken over by the other."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from responses_app.wiring.relay import Relay
from tests.kit.background import begin, cancel, get
from tests.kit.clients import Frame, Socket, http_client
from tests.kit.fixtures import two_of
from tests.kit.pairs import LONG_LEASE, REDIS, SHORT_LEASE, Pair, epoch_of, seen, two_workers
from tests.kit.raw_streams import RawStream
from tests.kit.redis_server import RedisServer
from tests.kit.server import Server
from tests.kit.stored import stored_statuses
from tests.kit.waiting import eventually, looks


@pytest.mark.parametrize("bell", REDIS[:2])
@pytest.mark.parametrize("moment", ["it runs", "its worker is dead", "it was taken over"])
async def test_it_is_deleted_and_cancelled_from_any_worker_at_any_moment(
    folder: Path, redis: RedisServer, bell: str, moment: str
) -> None:
    settings = {"redis_url": redis.url} if bell == "with Redis" else {}
    is_waited_for = moment == "it was taken over" or (moment == "its worker is dead" and bell == "with Redis")
    lease = SHORT_LEASE if is_waited_for else LONG_LEASE
    async with two_workers(folder, worker_lease_seconds=lease, **settings) as pair:
        owner, other = pair.workers
        async with http_client(owner) as http, http_client(other) as elsewhere:
            deleted, cancelled = [await begin(http, "[held]") for _ in range(2)]
            for response in (deleted, cancelled):
                await seen(other, response["id"])
            if moment != "it runs":
                await asyncio.to_thread(pair.kill, owner)
            if moment == "it was taken over":
                await eventually(lambda: epoch_of(other, cancelled["id"]) == 2)
            assert (await elsewhere.delete(f"/responses/{deleted['id']}")).status_code == 200
            if bell == "with Redis" or moment == "it was taken over":
                await eventually(lambda: is_cancelled(elsewhere, cancelled))
            else:
                refused = await elsewhere.post(f"/responses/{cancelled['id']}/cancel")
                assert (refused.status_code, "REDIS_URL" in refused.text) == (503, True)
                await asyncio.to_thread(redis_free_end, pair, owner)
            await eventually(lambda: nothing_runs(other, pair))
            assert deleted["id"] not in stored_statuses(other)
            assert (await elsewhere.get(f"/responses/{deleted['id']}")).status_code == 404


def redis_free_end(pair: Pair, owner: Server) -> None:
    """End the owner, if it lives: nothing else tells it to cancel."""
    if owner in pair.alive:
        pair.kill(owner)


async def is_cancelled(http: httpx.AsyncClient, response: Frame) -> bool:
    """Ask for it as clients do, who try again where that helps."""
    (answer,) = await cancel(http, response)
    return answer.get("status") == "cancelled" or "already" in str(answer)


async def nothing_runs(server: Server, pair: Pair) -> bool:
    """Whether nothing runs, or only what nobody may cancel here."""
    running = [each for each in stored_statuses(server).values() if each in ("queued", "in_progress")]
    return not running or len(pair.alive) == 1


async def test_a_foreground_stream_is_followed_from_another_worker(folder: Path, redis: RedisServer) -> None:
    async with two_workers(folder, delay=0.004, redis_url=redis.url) as pair:
        owner, other = pair.workers
        stream = await RawStream.create(owner, input="[held]")
        (created,) = await stream.take(1)
        followers = [await RawStream.resume(other, created["response"]["id"], last) for last in (None, 0, 40)]
        early = await followers[0].take(30)
        assert [event["sequence_number"] for event in early] == list(range(30))
        async with http_client(other) as http:
            assert (await get(http, created["response"]["id"]))["status"] == "in_progress", "it is followed live"
        pair.let_go_on()
        events = [created, *await stream.rest()]
        assert early + await followers[0].rest() == events
        assert await followers[1].rest() == events[1:]
        assert await followers[2].rest() == events[41:]


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
