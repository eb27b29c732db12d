"""What the tests of the connection limits share."""

import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from redis.asyncio import Redis

from responses_app.limits.ledger import BaseLedger
from responses_app.limits.rates import ConnectionLimit
from responses_app.limits.redis import RedisLedger
from tests.kit.redis_server import RedisServer

OpenLimit = Callable[..., Awaitable[ConnectionLimit]]


class LimitCase:
    """Limits over any ledger; a subclass gives the fixture `make_ledger`."""

    @pytest.fixture
    async def open_limit(self, make_ledger: Callable[..., BaseLedger]) -> AsyncIterator[OpenLimit]:
        """Start limits, and close them at the end."""
        opened: list[BaseLedger] = []

        async def open_one(limit: int, **options: object) -> ConnectionLimit:
            ledger = make_ledger(**options)
            opened.append(ledger)
            await ledger.start()
            return ConnectionLimit(ledger, limit)

        yield open_one
        for ledger in opened:
            await ledger.aclose()


class RedisCase(LimitCase):
    """Limits of one fresh prefix on the shared server, each standing for a worker process."""

    @pytest.fixture
    def server(self, redis_server: RedisServer) -> RedisServer:
        return redis_server

    @pytest.fixture
    def prefix(self) -> str:
        return f"test:{uuid.uuid4().hex}"

    @pytest.fixture
    def make_ledger(self, server: RedisServer, prefix: str) -> Callable[..., RedisLedger]:
        return lambda **options: RedisLedger(lambda: connect(server), prefix=prefix, **options)

    @pytest.fixture
    async def client(self, server: RedisServer) -> AsyncIterator[Redis]:
        async with connect(server) as client:
            yield client


class OwnRedisCase(RedisCase):
    """The same on a server that the test may break."""

    @pytest.fixture
    def server(self, own_redis_server: RedisServer) -> RedisServer:
        return own_redis_server


def connect(server: RedisServer) -> Redis:
    """Make a client as the wiring does."""
    return Redis.from_url(server.url, socket_timeout=None)


async def counts(client: Redis, prefix: str) -> list[int]:
    """Read how many connections of each worker stand in Redis; ids are "worker:number"."""
    ids = await client.zrange(f"{{{prefix}}}:connections", 0, -1)
    return sorted(Counter(id.partition(b":")[0] for id in ids).values())


async def counts_are(client: Redis, prefix: str, expected: list[int]) -> bool:
    return await counts(client, prefix) == expected
