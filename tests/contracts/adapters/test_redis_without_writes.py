"""A Redis that answers and takes no writes: limits hold in each worker, and what is wrong is told."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from responses_app.command_line.services import redis
from responses_app.limits.ledger import Ask, Charge
from responses_app.limits.redis import RIGHTS, RedisLedger
from responses_app.settings.conf import from_environ
from responses_app.wiring.redis_layer import PatientRedisLayer
from responses_app.wiring.relay import Relay
from tests.contracts.adapters.test_rates import connect
from tests.kit.redis_server import RedisServer
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
