"""Redis: the channel layer over it, turns that workers share through it, and one that takes no writes."""

import asyncio
import os
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from channels_redis.utils import create_pool
from redis import ConnectionError as RedisConnectionError
from redis.asyncio import Connection, Redis, SSLConnection, UnixDomainSocketConnection

from engine.formats.base import MessageKind, RenderedMessage, as_tokens
from responses_app.command_line.checks import redis
from responses_app.limits.ledger import Ask, Charge
from responses_app.limits.redis import RIGHTS, RedisLedger
from responses_app.protocol.items.items import Exact
from responses_app.protocol.prompt.replaying import KnownTurn
from responses_app.protocol.sealing import Sealer
from responses_app.runs.known_turns import KnownTurns
from responses_app.runs.plan.settings import RunSettings
from responses_app.settings.conf import from_environ
from responses_app.stores.redis_turns import RedisTurns
from responses_app.wiring import redis_layer
from responses_app.wiring.redis_layer import PatientRedisLayer, _patient
from responses_app.wiring.relay import Relay
from tests.contracts.adapters.test_rates import connect
from tests.kit.redis_server import RedisServer, low_port
from tests.kit.waiting import eventually

Change = tuple[str, ...]
MINUTE = 60_000
LIMIT = 5
HEARTBEAT = 0.02
BREAKS: dict[str, tuple[Change, Change, str]] = {  # a command, what undoes it, and what is told
    "a replica": (("REPLICAOF", "127.0.0.1", "1"), ("REPLICAOF", "NO", "ONE"), "takes no writes"),
    "full": (("CONFIG", "SET", "maxmemory", "1"), ("CONFIG", "SET", "maxmemory", "0"), "full"),
    "rights to other keys": (
        ("ACL", "SETUSER", "default", "resetkeys", "~other:*"),
        ("ACL", "SETUSER", "default", "allkeys"),
        "lacks rights",
    ),
    "too few replicas": (
        ("CONFIG", "SET", "min-replicas-to-write", "3"),
        ("CONFIG", "SET", "min-replicas-to-write", "0"),
        "replicas",
    ),
    "no right to write": (
        ("ACL", "SETUSER", "default", "-set"),
        ("ACL", "SETUSER", "default", "+@all"),
        "lacks rights",
    ),
    "rights to no commands": (
        ("ACL", "SETUSER", "default", "-evalsha", "-eval"),
        ("ACL", "SETUSER", "default", "+@all"),
        "lacks rights",
    ),
}
ONE = Ask([Charge("requests_per_minute:key:k", MINUTE / LIMIT, MINUTE)])


@pytest.fixture
async def operator(own_redis_server: RedisServer) -> AsyncIterator[Redis]:
    async with connect(own_redis_server) as client:
        yield client


@pytest.fixture
async def ledger(own_redis_server: RedisServer) -> AsyncIterator[RedisLedger]:
    ledger = RedisLedger(
        lambda: connect(own_redis_server), lease_seconds=5.0, heartbeat_seconds=HEARTBEAT, timeout_seconds=5.0
    )
    await ledger.start()
    yield ledger
    await ledger.aclose()


@pytest.mark.parametrize("how", BREAKS)
async def test_a_limit_holds(how: str, operator: Redis, ledger: RedisLedger) -> None:
    break_it, mend_it, told = BREAKS[how]
    await operator.execute_command(*break_it)
    passed = 0
    for _ in range(4 * LIMIT):
        passed += (await ledger.ask(ONE)).granted
        await asyncio.sleep(2 * HEARTBEAT)  # heartbeats find the server there, and must not give the count up
    assert passed == LIMIT
    assert ledger.away is not None
    assert told in ledger.away
    await operator.execute_command(*mend_it)
    await eventually(lambda: ledger.away is None)
    assert (await ledger.ask(ONE)).granted, "all workers count together again"


async def test_many_short_outages_begin_with_no_fresh_limit(operator: Redis, ledger: RedisLedger) -> None:
    break_it, mend_it, _ = BREAKS["a replica"]
    passed = 0
    for _ in range(6):
        for change, is_away in ((break_it, True), (mend_it, False)):
            await operator.execute_command(*change)
            for _ in range(LIMIT):
                passed += (await ledger.ask(ONE)).granted
            await eventually(lambda is_away=is_away: (ledger.away is not None) is is_away)  # type: ignore[misc]
    assert LIMIT <= passed <= 2 * LIMIT + 2, "Redis' count, and this worker's own; some come back meanwhile"


async def test_one_that_forgets_keys_when_it_is_full_is_told(
    own_redis_server: RedisServer, operator: Redis, tmp_path: Path
) -> None:
    told: dict[str, tuple[str | None, list[str]]] = {}
    settings, _ = from_environ({"REDIS_URL": own_redis_server.url, "DATA_DIR": str(tmp_path)})
    for policy, most in (("allkeys-lru", "0"), ("allkeys-lru", "100mb"), ("noeviction", "100mb")):
        await operator.config_set("maxmemory-policy", policy)
        await operator.config_set("maxmemory", most)
        ledger = RedisLedger(lambda: connect(own_redis_server), timeout_seconds=60.0)
        await ledger.start()
        findings = [each.text for each in await redis(settings, 60.0) if "forget" in each.text]
        told[f"{policy} {most}"] = ledger.forgets, findings
        await ledger.aclose()
    forgets, findings = told.pop("allkeys-lru 100mb")
    assert "noeviction" in str(forgets)
    assert forgets in findings[0]
    assert list(told.values()) == [(None, []), (None, [])]


async def test_the_rights_that_are_named_are_enough(own_redis_server: RedisServer, operator: Redis) -> None:
    await operator.execute_command("ACL", "SETUSER", "respsite", "on", ">secret", "resetkeys", *RIGHTS.split())
    url = own_redis_server.url.replace("redis://", "redis://respsite:secret@")
    ledger = RedisLedger(lambda: Redis.from_url(url, socket_timeout=None))
    await ledger.start()
    assert (await ledger.ask(ONE)).granted
    assert ledger.away is None
    await ledger.aclose()
    async with Redis.from_url(url) as client:
        assert await client.info("memory")
    async with asyncio.timeout(60):
        layer = PatientRedisLayer(hosts=[{"address": url, "socket_timeout": None}], prefix="respsite")
        channel = await layer.new_channel("relay")
        await layer.group_add("respsite-workers", channel)
        await layer.group_send("respsite-workers", {"type": "word"})
        assert await layer.receive(channel) == {"type": "word"}
        await layer.flush()


async def test_workers_that_do_not_hear_each_other_say_so(own_redis_server: RedisServer, operator: Redis) -> None:
    relay = Relay(
        layer=PatientRedisLayer(
            hosts=[{"address": own_redis_server.url, "socket_timeout": None}],
            prefix="respsite",
        )
    )
    relay.start({})
    await eventually(lambda: listens(operator))
    await operator.execute_command("ACL", "SETUSER", "default", "resetchannels")  # which cuts who listens
    await eventually(lambda: "lacks rights" in (relay.degraded or ""))
    await operator.execute_command("ACL", "SETUSER", "default", "allchannels")
    await eventually(lambda: relay.degraded is None)
    await relay.aclose()


async def listens(operator: Redis) -> bool:
    """Whether somebody listens to the group of workers."""
    return bool(await operator.pubsub_channels("respsite*"))


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


MESSAGES = (
    RenderedMessage(MessageKind.ANALYSIS, as_tokens([1, 2, 2**31])),
    RenderedMessage(MessageKind.COMMENTARY, as_tokens([200_005])),
)
TURN = KnownTurn(b"t" * 16, b"r" * 16, Exact("harmony", MESSAGES), 3)
KEY, OTHER = b"k" * 16, b"o" * 16


Worker = Callable[..., KnownTurns]


@pytest.fixture
async def worker() -> AsyncIterator[Worker]:
    """Make what one worker knows. Its client of Redis is closed behind the test."""
    made: list[RedisTurns] = []

    def known(url: str, prefix: str, *, secret: str = "s") -> KnownTurns:
        made.append(RedisTurns(lambda: Redis.from_url(url), prefix=prefix))
        sealer = Sealer([secret], random_bytes=os.urandom)
        return KnownTurns(RunSettings(responses_session_ttl=60), sealer=sealer, shared=made[-1])

    yield known
    for each in made:
        await each.aclose()


async def test_another_worker_knows_a_turn(
    redis_server: RedisServer, worker: Worker, caplog: pytest.LogCaptureFixture
) -> None:
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


async def test_without_redis_a_worker_knows_its_own(worker: Worker, caplog: pytest.LogCaptureFixture) -> None:
    alone = worker(f"redis://127.0.0.1:{low_port()}", "test:nobody")
    for _ in range(2):
        await alone.remember("mine", KEY, TURN)
        assert await alone.recall("mine", [KEY, OTHER]) == {KEY: TURN}
    assert caplog.text.count("Redis is away") == 1
