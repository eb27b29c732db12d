"""A real server before a router: what clients say of their sessions, by every API, comes to it as digests."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx

from engine.types import digest_of
from responses_app.protocol.api_keys import DEFAULT_PROJECT
from tests.kit.clients import Socket, http_client
from tests.kit.fake_vllm import MODEL, SELDOM_LOOKED_AT, Asked, FakeVllm
from tests.kit.inprocess import Server
from tests.kit.waiting import eventually

SCRIPT = {"say": "<|channel|>final<|message|>Hello there.<|return|>"}
HI = [{"role": "user", "content": "Hi"}]
SAID = ("x-dynamo-session-id", "x-dynamo-parent-session-id", "x-dynamo-session-final")
BY_API = {
    "/responses": {"input": "Hi"},
    "/chat/completions": {"messages": HI},
    "/messages": {"messages": HI, "max_tokens": 99},
    "/completions": {"prompt": "Hi"},
}


@asynccontextmanager
async def before_dynamo(folder: Path) -> AsyncIterator[tuple[Server, httpx.AsyncClient, FakeVllm]]:
    options = {"router": "dynamo", **SELDOM_LOOKED_AT}
    async with FakeVllm(SCRIPT) as fake:
        server = Server(folder, engine="vllm-server", engine_url=fake.url, model=MODEL, engine_options=options)
        await asyncio.to_thread(server.start)
        try:
            async with http_client(server) as http:
                yield server, http, fake
        finally:
            await asyncio.to_thread(server.stop)


def told(asked: Asked) -> tuple[str | None, ...]:
    return tuple(asked.headers.get(name) for name in SAID)


async def test_a_router_is_told_what_belongs_together_and_when_it_is_over(folder: Path) -> None:
    first, agent = digest_of(DEFAULT_PROJECT, "claude-1"), digest_of(DEFAULT_PROJECT, "agent-1")
    harness = {"x-claude-code-session-id": "claude-1", "anthropic-version": "2023-06-01"}
    async with before_dynamo(folder) as (server, http, fake):
        for path, body in BY_API.items():
            for headers in (harness, {**harness, "x-claude-code-agent-id": "agent-1"}):
                answer = await http.post(path, json={"model": MODEL, **body}, headers=headers)
                assert answer.status_code == 200, answer.text
        assert [told(asked) for asked in fake.generations] == [(first, None, None), (agent, first, None)] * len(BY_API)
        assert "claude-1" not in str([asked.headers for asked in fake.generations])

        fake.asked.clear()
        headers = {"session-id": "codex-1", "thread-id": "thread-1"}
        async with await Socket.open(
            f"ws://127.0.0.1:{server.port}/v1/responses", additional_headers=headers
        ) as socket:
            await socket.ask("Hi", prompt_cache_key="thread-1")
        thread = digest_of(DEFAULT_PROJECT, "thread-1")
        assert [told(asked) for asked in fake.generations] == [(thread, digest_of(DEFAULT_PROJECT, "codex-1"), None)]

        fake.asked.clear()
        conversation = (await http.post("/conversations", json={})).json()["id"]
        for _ in range(2):
            await http.post("/responses", json={"input": "Hi", "conversation": conversation})
        assert (await http.delete(f"/conversations/{conversation}")).status_code == 200
        await eventually(lambda: len(fake.generations) == 3)
        own = digest_of(DEFAULT_PROJECT, conversation)
        assert [told(asked) for asked in fake.generations] == [(own, None, None)] * 2 + [(own, None, "true")]

        fake.asked.clear()
        await http.post("/responses", json={"input": "Hi"}, headers={**harness, "x-rollout-id": "task-1"})
        assert (await http.post("/rollouts/task-1/end")).status_code == 200
        await eventually(lambda: len(fake.generations) == 2)
        branch = digest_of(DEFAULT_PROJECT, "task-1", "claude-1")
        assert [told(asked) for asked in fake.generations] == [(branch, None, None), (branch, None, "true")]
