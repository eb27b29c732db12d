"""Attempts at one task on a real server in front of two replicas: their prompt is computed once."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

import httpx

from engine.formats.harmony.encoding import decode_tokens
from tests.kit.clients import http_client
from tests.kit.fake_vllm import MODEL, SELDOM_LOOKED_AT, Asked, FakeVllm
from tests.kit.inprocess import Server
from tests.kit.scripts import LONG, WEATHER, call_of

TASK = "Mend the tests of this project. " * 40
SCRIPT = (
    {"when": "It rains.", "say": "<|channel|>final<|message|>Done.<|return|>"},
    {"when": "[hang]", "say": LONG, "hang_after": 3},
    {"say": call_of("get_weather", "{}")},
)
Body = dict[str, object]


@asynccontextmanager
async def two_replicas(folder: Path) -> AsyncIterator[tuple[httpx.AsyncClient, list[FakeVllm]]]:
    """A server in front of two vLLMs."""
    async with FakeVllm(*SCRIPT) as first, FakeVllm(*SCRIPT) as second:
        urls = f"{first.url},{second.url}"
        server = Server(folder, engine="vllm-server", engine_url=urls, model=MODEL, engine_options=SELDOM_LOOKED_AT)
        await asyncio.to_thread(server.start)
        try:
            async with http_client(server) as http:
                yield http, [first, second]
        finally:
            await asyncio.to_thread(server.stop)


def of_responses(replica: FakeVllm) -> list[Asked]:
    """Return what a replica was asked for, without what only finds out what it can do."""
    return [each for each in replica.generations if each.body["request_id"].startswith("resp_")]


def computed(replica: FakeVllm) -> list[int]:
    """Return how many tokens of each prompt a replica computes, whose cache keeps all that it has read."""
    read: set[tuple[object, ...]] = set()
    counts = []
    for asked in of_responses(replica):
        salt, prompt = asked.body.get("cache_salt"), tuple(asked.body["token_ids"])
        known = next(length for length in range(len(prompt), -1, -1) if not length or (salt, prompt[:length]) in read)
        counts.append(len(prompt) - known)
        read.update((salt, prompt[:length]) for length in range(1, len(prompt) + 1))
    return counts


async def attempt(http: httpx.AsyncClient, group: str, key: str | None) -> None:
    """Make one attempt of two turns, as a harness does that sends all of it again and has a cache key of its own."""
    name = f"attempt-{uuid4().hex}"
    await http.post("/rollouts", json={"id": name, "group": group})
    history: list[object] = [{"role": "user", "content": f"{group}. {TASK}"}]
    for last in (False, True):
        body: Body = {"input": history, "tools": [WEATHER], "store": False}
        body |= {} if key is None else {"prompt_cache_key": f"{key}-{name}"}
        answer = await http.post("/responses", json=body, headers={"x-rollout-id": name})
        assert answer.status_code == 200, answer.text
        output = answer.json()["output"]
        if not last:
            [call] = [item for item in output if item["type"] == "function_call"]
            said = {"type": "function_call_output", "call_id": call["call_id"], "output": "It rains."}
            history += [*output, said]


async def test_a_task_is_read_once_by_one_replica_and_others_by_others(tmp_path: Path) -> None:
    async with two_replicas(tmp_path) as (http, replicas):
        for key in (None, "session"):
            await asyncio.gather(*(attempt(http, f"task {key}", key) for _ in range(8)))
        homes: Counter[str] = Counter()
        for replica in replicas:
            counts = computed(replica)
            of_groups: dict[str, list[int]] = {"task None": [], "task session": []}
            for asked, count in zip(of_responses(replica), counts, strict=True):
                text = decode_tokens(asked.body["token_ids"])
                [group] = [each for each in of_groups if each in text]
                of_groups[group].append(count)
            for group, found in of_groups.items():
                homes[group] += bool(found)
                if found:
                    assert len(found) == 16, "all turns of all attempts"
                    assert found[0] > 250, "the first one reads the task"
                    assert max(found[1:]) < 60, "and nobody reads it again, nor what was said"
        assert set(homes.values()) == {1}


async def test_a_huge_group_uses_both_replicas(tmp_path: Path) -> None:
    async with two_replicas(tmp_path) as (http, replicas):
        hanging = []
        for number in range(40):
            name = f"huge-{number}"
            await http.post("/rollouts", json={"id": name, "group": "huge"})
            body: Body = {"input": f"{TASK} [hang]", "store": False}
            hanging.append(asyncio.create_task(http.post("/responses", json=body, headers={"x-rollout-id": name})))
        async with asyncio.timeout(30):
            while sum(len(of_responses(each)) for each in replicas) < 40:  # noqa: ASYNC110 - of another process
                await asyncio.sleep(0.01)
        running = [each.engine.running for each in replicas]
        assert max(running) - min(running) <= 8
        for each in hanging:
            each.cancel()
        await asyncio.gather(*hanging, return_exceptions=True)
