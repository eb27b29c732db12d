"""The channel layer over Redis: it listens patiently, and hears at once."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from channels_redis.utils import create_pool
from redis import ConnectionError as RedisConnectionError
from redis.asyncio import Connection, SSLConnection, UnixDomainSocketConnection

from responses_app.wiring import redis_layer
from responses_app.wiring.redis_layer import PatientRedisLayer, _patient
from tests.kit.redis_server import RedisServer
from tests.kit.waiting import eventually

GROUP, WORD = "group", {"type": "word"}
SECONDS = 60.0  # for all that is awaited here


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[float | None]:
    """How long each read of a connection may take."""
    timeouts: list[float | None] = []
    read = Connection.read_response

    async def noted(self: Connection, *arguments: Any, timeout: float | None = None, **options: Any) -> Any:
        timeouts.append(timeout)
        return await read(self, *arguments, timeout=timeout, **options)

    monkeypatch.setattr(Connection, "read_response", noted)
    return timeouts


@pytest.fixture
async def layer(redis_server: RedisServer, reads: list[float | None]) -> AsyncIterator[PatientRedisLayer]:
    layer = PatientRedisLayer(hosts=[{"address": redis_server.url, "socket_timeout": None}], prefix="patient")
    yield layer
    await layer.flush()


async def test_a_word_is_heard_while_a_read_waits(
    layer: PatientRedisLayer, reads: list[float | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no word ended it, the read would take an hour."""
    monkeypatch.setattr(redis_layer, "LISTEN_SECONDS", 3600.0)
    channel = await layer.new_channel("listener")
    await layer.group_add(GROUP, channel)
    async with asyncio.timeout(SECONDS):
        for _ in range(3):
            heard = asyncio.create_task(layer.receive(channel))
            await eventually(lambda: 3600.0 in reads)
            await layer.group_send(GROUP, WORD)
            assert await heard == WORD
    assert set(reads) <= {3600.0, None}, "none ends after a tenth of a second"


async def test_a_channel_that_comes_while_a_read_waits_is_heard_too(
    layer: PatientRedisLayer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_layer, "LISTEN_SECONDS", 3600.0)
    async with asyncio.timeout(SECONDS):
        await layer.new_channel("first")
        second = await layer.new_channel("second")
        await layer.send(second, WORD)
        assert await layer.receive(second) == WORD


@pytest.mark.parametrize(
    ("address", "plain"),
    [
        ("redis://:secret@10.0.0.1:7000/3?health_check_interval=5", Connection),
        ("rediss://10.0.0.1", SSLConnection),
        ("unix:///run/redis.sock", UnixDomainSocketConnection),
    ],
)
def test_each_kind_of_connection_stays_what_its_url_says(address: str, plain: type[Connection]) -> None:
    host = {"address": address, "socket_timeout": None}
    patient, bare = create_pool(_patient(host)), create_pool(host)
    assert bare.connection_class is plain
    assert issubclass(patient.connection_class, plain)
    assert patient.connection_kwargs.keys() == bare.connection_kwargs.keys()
    told = {name for name, value in bare.connection_kwargs.items() if isinstance(value, (str, int, float))}
    assert {name: patient.connection_kwargs[name] for name in told} == {
        name: bare.connection_kwargs[name] for name in told
    }


@pytest.mark.parametrize(("query", "patience"), [("", 30.0), ("?health_check_interval=5", 5.0)])
async def test_a_read_ends_in_time_for_the_health_checks_that_the_url_asks_for(
    reads: list[float | None], query: str, patience: float
) -> None:
    pool = create_pool(_patient({"address": f"redis://127.0.0.1:1{query}", "socket_timeout": None}))
    with pytest.raises(RedisConnectionError):
        await pool.make_connection().read_response(timeout=0.1)
    assert reads == [patience]
