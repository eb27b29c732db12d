"""What the tests of the connection limits share."""

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from redis.asyncio import Redis

from responses_app.limits.base import BaseConnectionLimit
from responses_app.limits.redis import RedisConnectionLimit
from tests.redis_server import RedisServer


class LimitCase:
    """Limits of any kind; a subclass gives the fixture `make_limit`."""

    @pytest.fixture
    async def open_limit(
        self,
        make_limit: Callable[..., BaseConnectionLimit],
    ) -> AsyncIterator[Callable[..., Awaitable[BaseConnectionLimit]]]:
        """Start limits, and close them at the end."""
        opened: list[BaseConnectionLimit] = []

        async def open_one(limit: int, **options: object) -> BaseConnectionLimit:
            one = make_limit(limit, **options)
            opened.append(one)
            await one.start()
            return one

        yield open_one
        for one in opened:
            await one.aclose()


class RedisCase(LimitCase):
    """Limits of one fresh prefix on the shared server, each standing for a worker process."""

    @pytest.fixture
    def server(self, redis_server: RedisServer) -> RedisServer:
        return redis_server

    @pytest.fixture
    def prefix(self) -> str:
        return f"test:{uuid.uuid4().hex}"

    @pytest.fixture
    def make_limit(self, server: RedisServer, prefix: str) -> Callable[..., RedisConnectionLimit]:
        def make(limit: int, **options: float) -> RedisConnectionLimit:
            return RedisConnectionLimit(limit, connect=lambda: connect(server), prefix=prefix, **options)

        return make

    @pytest.fixture
    async def client(self, server: RedisServer) -> AsyncIterator[Redis]:
        async with connect(server) as client:
            yield client


class OwnRedisCase(RedisCase):
    """The same on a server that the test may break."""

    @pytest.fixture
    def server(self, own_redis_server: RedisServer) -> RedisServer:
        return own_redis_server


OpenRedisLimit = Callable[..., Awaitable[RedisConnectionLimit]]


def connect(server: RedisServer) -> Redis:
    """Make a client as the wiring does."""
    return Redis.from_url(server.url, socket_timeout=None)


async def counts(client: Redis, prefix: str) -> list[int]:
    """Read the counts that stand in Redis, one a worker."""
    return sorted(int(value.split(b":")[1]) for value in await client.hvals(f"{{{prefix}}}:count"))


async def counts_are(client: Redis, prefix: str, expected: list[int]) -> bool:
    return await counts(client, prefix) == expected
