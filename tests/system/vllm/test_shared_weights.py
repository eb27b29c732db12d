"""Weights that change under two workers which share an engine core: what one of them is asked holds for both.

Only this finds a worker that samples by weights which the other one has changed.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator

import httpx
import pytest

from tests.kit.clients import http_client, server_sent
from tests.kit.sdk import MODEL
from tests.kit.served import Supervised
from tests.kit.server import Server
from tests.system.vllm.seeded_weights import OPTIONS
from tests.system.vllm.server import ENGINE_OPTIONS, MODEL_FOLDER, START_SECONDS

WORKERS = 2
PATIENT = 2 * START_SECONDS  # for three processes that load vLLM at once
PROMPT = list(range(1000, 1050))
LONG, SHORT = 600, 10  # tokens


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Supervised]:
    """Two workers, their engine core, and doors for trainers; without Redis."""
    server = Supervised(
        tmp_path_factory.mktemp("shared-weights"),
        workers=WORKERS,
        engine="vllm",
        model=MODEL_FOLDER,
        model_name=MODEL,
        engine_options=json.dumps({**ENGINE_OPTIONS, **OPTIONS}),
        engine_weights="on",
    )
    server.start_seconds = PATIENT
    try:
        Server.start(server)
        server.wait_for_line(" serves\n", count=WORKERS, seconds=PATIENT)
        yield server
    finally:
        if server.is_running:
            server.stop()


@pytest.fixture
async def clients(served: Supervised) -> AsyncIterator[list[httpx.AsyncClient]]:
    """Clients with connections of their own: some are served by one worker, and some by the other."""
    clients = [http_client(served) for _ in range(8)]
    for client in clients:
        client.timeout = httpx.Timeout(120)
    yield clients
    for client in clients:
        await client.aclose()


async def complete(client: httpx.AsyncClient, tokens: int) -> list[int]:
    body = {"prompt": PROMPT, "max_tokens": tokens, "temperature": 0, "return_token_ids": True, "ignore_eos": True}
    answer = await client.post("/completions", json=body)
    assert answer.status_code == 200, answer.text
    sampled: list[int] = answer.json()["choices"][0]["token_ids"]
    return sampled


async def ask(client: httpx.AsyncClient, what: str, **fields: object) -> dict[str, object]:
    answer = await client.post(f"/engine/{what}", json=fields)
    assert answer.status_code == 200, answer.text
    engine: dict[str, object] = answer.json()
    return engine


async def test_a_pause_and_an_update_hold_for_both_workers(clients: list[httpx.AsyncClient]) -> None:
    trainer, *others = clients
    await ask(trainer, "weights", action="apply", version="first", info={"seed": 1})
    before = await complete(trainer, LONG)
    streams = [asyncio.create_task(complete(client, LONG)) for client in others]
    body = {"prompt": PROMPT, "max_tokens": LONG, "temperature": 0, "ignore_eos": True, "stream": True}
    async with trainer.stream("POST", "/completions", json=body) as answer:
        await anext(aiter(server_sent(answer)))  # so they run
        engine = await ask(others[0], "pause", mode="keep")
        assert (engine["status"], engine["workers"]) == ("paused", WORKERS)
        done, _ = await asyncio.wait(streams, timeout=1.0)
        assert not done
        await ask(others[1], "weights", action="begin", version="second")
        await ask(others[2], "weights", action="update", info={"seed": 2})
        await ask(others[3], "weights", action="finish")
        engine = await ask(others[4], "resume")
    assert (engine["version"], engine["versions"]) == ("second", ["first", "second"])
    after = await complete(trainer, SHORT)
    assert after != before[:SHORT]
    for tokens in await asyncio.gather(*streams):
        assert len(tokens) == LONG
        same = next(place for place, pair in enumerate(zip(tokens, before, strict=True)) if pair[0] != pair[1])
        assert 0 < same < LONG, "it began with the old weights, and ended with the new ones"


async def test_each_worker_ends_what_it_runs(clients: list[httpx.AsyncClient]) -> None:
    trainer, *others = clients
    running = [
        asyncio.create_task(
            client.post("/completions", json={"prompt": PROMPT, "max_tokens": 4000, "ignore_eos": True})
        )
        for client in others
    ]
    await asyncio.wait(running, timeout=1.0)
    await ask(trainer, "pause", mode="abort")
    for answer in await asyncio.gather(*running):
        assert answer.status_code == 503, answer.text
        assert "again" in answer.json()["error"]["message"]
    await ask(trainer, "resume")
    assert len(await complete(trainer, SHORT)) == SHORT
