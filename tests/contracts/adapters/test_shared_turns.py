"""What a model has said at one worker is known at another, through a real Redis; while that is away, nothing breaks."""

import os
import uuid

import pytest
from redis.asyncio import Redis

from engine.formats.base import MessageKind, RenderedMessage, as_tokens
from responses_app.protocol.items.items import Exact
from responses_app.protocol.prompt.replaying import KnownTurn
from responses_app.protocol.sealing import Sealer
from responses_app.runs.known_turns import KnownTurns
from responses_app.runs.plan.settings import RunSettings
from responses_app.stores.redis_turns import RedisTurns
from tests.kit.redis_server import RedisServer, low_port

MESSAGES = (
    RenderedMessage(MessageKind.ANALYSIS, as_tokens([1, 2, 2**31])),
    RenderedMessage(MessageKind.COMMENTARY, as_tokens([200_005])),
)
TURN = KnownTurn(b"t" * 16, b"r" * 16, Exact("harmony", MESSAGES), 3)
KEY, OTHER = b"k" * 16, b"o" * 16


def worker(url: str, prefix: str, *, secret: str = "s", ttl: float = 60) -> KnownTurns:
    """Return what one worker knows."""
    shared = RedisTurns(lambda: Redis.from_url(url), prefix=prefix)
    return KnownTurns(
        RunSettings(responses_session_ttl=ttl), sealer=Sealer([secret], random_bytes=os.urandom), shared=shared
    )


async def test_another_worker_knows_a_turn(redis_server: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    prefix = f"test:{uuid.uuid4().hex}"
    here, there, stranger = (worker(redis_server.url, prefix, secret=each) for each in ("s", "s", "another"))
    await here.remember("mine", KEY, TURN)
    assert await there.recall("mine", [OTHER, KEY]) == {KEY: TURN}
    assert there.find("mine", KEY) == TURN, "it need not ask again"
    assert await there.recall("others", [KEY]) == {}
    assert await stranger.recall("mine", [KEY]) == {}
    assert "cannot be read" in caplog.text
    async with Redis.from_url(redis_server.url) as redis:
        [name] = [name async for name in redis.scan_iter(f"{prefix}:*")]
        assert 0 < await redis.pttl(name) <= 60_000
        assert b"harmony" not in await redis.get(name)
    for each in (here, there, stranger):
        await each.aclose()


async def test_without_redis_a_worker_knows_its_own(caplog: pytest.LogCaptureFixture) -> None:
    alone = worker(f"redis://127.0.0.1:{low_port()}", "test:nobody")
    for _ in range(2):
        await alone.remember("mine", KEY, TURN)
        assert await alone.recall("mine", [KEY, OTHER]) == {KEY: TURN}
    assert caplog.text.count("Redis is away") == 1
    await alone.aclose()
