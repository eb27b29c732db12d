"""Workers die while they carry out requests with an `Idempotency-Key`: the clients send them again, as SDKs do.

Only this finds a request with a key that a death loses, or that is carried out twice.
"""

import asyncio
import random
from collections.abc import Mapping
from pathlib import Path

import httpx
import pytest
from openai import AsyncOpenAI, ConflictError

from engine.formats.harmony.encoding import encode_harmony
from tests.kit.balancer import Balancer
from tests.kit.clients import http_client, ready, text_of
from tests.kit.laws import assert_laws
from tests.kit.pairs import LONG, NUMBERS, REDIS, Pair, two_workers
from tests.kit.redis_server import RedisServer
from tests.kit.scripts import BEGIN
from tests.kit.server import Server
from tests.kit.stored import stored
from tests.kit.waiting import eventually
from tests.wire.transports.test_idempotency import CHAT, events_of, key, read_until

TIMES = 3  # that a worker is killed at some moment
TO_20 = len(encode_harmony(LONG[: LONG.index("20 21") + 2]))  # tokens


def gated(folder: Path) -> list[dict[str, object]]:
    """Return a script: `[gated]` and `[long]` say the same, the first one not beyond 20 until `open_gate`."""
    gate = {"hang_after": TO_20, "wait_for_file": str(folder / "gate")}
    return [
        {"when": "[gated]", "say": LONG, **gate},
        {"when": "[long]", "say": LONG, "delay": 0.002},
        {"say": f"{BEGIN}Hello.<|return|>"},
    ]


def open_gate(folder: Path) -> None:
    """Let `[gated]` go on, wherever it runs."""
    (folder / "gate").touch()


def sdk_of(balancer: Balancer, header: dict[str, str]) -> AsyncOpenAI:
    """Return an SDK as its user makes it who wants each request carried out once."""
    return AsyncOpenAI(base_url=balancer.base_url, api_key="none", max_retries=8, default_headers=header)


def rows(pair: Pair, text: str) -> list[tuple[str, str, int]]:
    """Return id, status and epoch of the responses that were asked this."""
    found = stored(pair.workers[0], "SELECT id, status, epoch, input_items FROM responses_app_response")
    return [(row[0], row[1], row[2]) for row in found if text in row[3]]


async def is_running(pair: Pair, text: str) -> bool:
    """Whether a response that was asked this has begun, by its log."""
    query = "SELECT r.input_items FROM responses_app_response r JOIN responses_app_logpart l ON l.response_id = r.id"
    return any(text in row[0] for row in stored(pair.workers[0], query))


@pytest.mark.parametrize("bell", REDIS[:2])
async def test_a_stream_goes_on_where_it_was_and_is_read_from_its_beginning(
    folder: Path, redis: RedisServer, bell: str
) -> None:
    settings = {"redis_url": redis.url} if bell == "with Redis" else {}
    header, body = key(), {"input": "[gated]", "stream": True}
    async with two_workers(folder, script=gated(folder), **settings) as pair:
        owner, other = pair.workers
        async with http_client(owner) as http, http_client(other) as elsewhere:
            async with http.stream("POST", "/responses", json=body, headers=header) as answer:
                begun = await read_until(answer, '"20"')
                await asyncio.to_thread(pair.kill, owner)
            open_gate(folder)
            # At once: its worker is not known to be dead yet.
            again = await elsewhere.post("/responses", json=body, headers=header)
            events = events_of(again.content)
            assert_laws(events)
            seen = events_of(begun.rpartition(b"\n\n")[0])
            assert seen == events[: len(seen)], "what was told stays"
            response = events[-1]["response"]
            assert (response["status"], text_of(response)) == ("completed", NUMBERS)
            assert rows(pair, "[gated]") == [(response["id"], "completed", 2)]


@pytest.mark.parametrize("end", ["killed", "stopped"])
async def test_the_sdk_gets_the_answer_of_a_server_that_died(folder: Path, end: str) -> None:
    async with two_workers(folder, script=gated(folder)) as pair, Balancer(pair.workers) as balancer:
        client = sdk_of(balancer, key())
        asking = asyncio.create_task(client.responses.create(input="[gated]", model="scripted"))
        await eventually(lambda: is_running(pair, "[gated]"))
        owner = await owner_of(pair)
        await asyncio.to_thread(owner.stop if end == "stopped" else owner.kill)
        pair.alive.remove(owner)
        open_gate(folder)
        response = await asking
        assert (response.status, response.output_text) == ("completed", NUMBERS)
        ((response_id, status, epoch),) = rows(pair, "[gated]")
        assert (response_id, status, epoch > 1) == (response.id, "completed", True)
        await client.close()


async def owner_of(pair: Pair) -> Server:
    """Return the worker that runs the one response."""
    (owner,) = [worker for worker in pair.workers if (await ready(worker))["responses_in_flight"]]
    return owner


async def test_what_is_kept_nowhere_is_not_carried_out_twice(folder: Path) -> None:
    header, chat = key(), {**CHAT, "messages": [{"role": "user", "content": "[gated]"}]}
    async with two_workers(folder, script=gated(folder)) as pair:
        owner, other = pair.workers
        async with http_client(owner) as http, http_client(other) as elsewhere:
            async with http.stream("POST", "/chat/completions", json=chat, headers=header) as answer:
                begun = await read_until(answer, '"20"')
                # It follows what is kept, until it is known that no more comes.
                following = asyncio.create_task(followed(elsewhere, header, "/chat/completions", chat))
                await asyncio.to_thread(pair.kill, owner)
            assert begun.startswith(await following)
            async with Balancer([other]) as balancer, sdk_of(balancer, header) as client:
                with pytest.raises(ConflictError) as lost:
                    await client.post("/chat/completions", body=chat, cast_to=object)
            assert lost.value.code == "idempotency_answer_lost"
            refused = await elsewhere.post("/chat/completions", json=chat, headers=header)
            assert (refused.status_code, refused.headers["x-should-retry"]) == (409, "false")


async def followed(http: httpx.AsyncClient, header: dict[str, str], path: str, body: Mapping[str, object]) -> bytes:
    """Return what a follower gets before it is cut off or refused."""
    content = b""
    try:
        async with http.stream("POST", path, json=body, headers=header) as answer:
            if answer.status_code == 200:
                async for chunk in answer.aiter_bytes():
                    content += chunk
    except httpx.RemoteProtocolError:
        pass
    return content


async def test_where_no_response_is_stored_others_follow_and_dead_workers_are_known(folder: Path) -> None:
    header, body = key(), {"input": "[long]", "stream": True}
    async with two_workers(folder, script=gated(folder), responses_store="off") as pair:
        owner, other = pair.workers
        async with http_client(owner) as http, http_client(other) as elsewhere:
            async with http.stream("POST", "/responses", json=body, headers=header) as answer:
                await read_until(answer, '"20"')
                again = await elsewhere.post("/responses", json=body, headers=header)
            events = events_of(again.content)
            assert_laws(events)
            assert text_of(events[-1]["response"]) == NUMBERS
            header, body = key(), {"input": "[gated]", "stream": True}
            async with http.stream("POST", "/responses", json=body, headers=header) as answer:
                await read_until(answer, '"20"')
                await asyncio.to_thread(pair.kill, owner)
            await followed(elsewhere, header, "/responses", body)
            lost = await elsewhere.post("/responses", json=body, headers=header)
            assert (lost.status_code, lost.json()["error"]["code"]) == (409, "idempotency_answer_lost")


@pytest.mark.each_database
async def test_killed_at_any_moment_of_its_acceptance_it_is_made_once(folder: Path) -> None:
    chance = random.Random(16)
    async with two_workers(folder, delay=0.0) as pair, Balancer(pair.workers) as balancer:
        for number in range(TIMES):
            text = f"Number {number}."
            async with sdk_of(balancer, key()) as client:
                asking = asyncio.create_task(client.responses.create(input=text, model="scripted"))
                await asyncio.sleep(chance.uniform(0.0, 0.03))
                victim = pair.workers[number % 2]
                await asyncio.to_thread(pair.kill, victim)
                response = await asking
                assert (response.status, response.output_text) == ("completed", "Hello.")
                await asyncio.to_thread(pair.start, victim)
            assert [row[:2] for row in rows(pair, text)] == [(response.id, "completed")]
