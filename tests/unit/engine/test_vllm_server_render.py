"""Conversations that vLLM servers render: `/v1/chat/completions/render`."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from engine.backends.vllm.replica import ANY_TOKEN
from engine.backends.vllm.server import VllmServerEngine
from engine.errors import EngineError, EngineUnavailable, NotRendered, PromptTooLong
from engine.types import ChatPrompt
from tests.kit.fake_vllm import error
from tests.unit.engine.rendering_vllm import RenderingVllm
from tests.unit.engine.vllm_engines import SCRIPT, OpenEngine
from tests.unit.formats.families import QWEN
from tests.unit.formats.rendering import Renderer

CHAT = ChatPrompt([{"role": "user", "content": "Grüße"}], template_kwargs={"reasoning_effort": "low"})
TOOL = {"type": "function", "function": {"name": "f", "description": "", "parameters": {"type": "object"}}}


@pytest.fixture
async def servers() -> AsyncIterator[list[RenderingVllm]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(RenderingVllm(*SCRIPT)) for _ in range(2)]


@pytest.fixture
async def engine(servers: list[RenderingVllm], vllm_over: OpenEngine) -> VllmServerEngine:
    return await vllm_over(*servers, harmony=False)


async def test_a_conversation_is_rendered(servers: list[RenderingVllm], engine: VllmServerEngine) -> None:
    rendered = await asyncio.to_thread(engine.render, CHAT)
    assert list(rendered) == list(Renderer(QWEN)(CHAT))
    [body] = [body for server in servers for body in server.bodies]
    assert body == {"model": servers[0].model, "messages": CHAT.messages, "chat_template_kwargs": CHAT.template_kwargs}
    with_tools = ChatPrompt(CHAT.messages, [TOOL])
    await asyncio.to_thread(engine.render, with_tools)
    last = [server.bodies[-1] for server in servers if server.bodies and "tools" in server.bodies[-1]]
    assert (last[0]["tools"], last[0]["tool_choice"]) == ([TOOL], "none"), "any other choice needs the server's parser"


async def test_a_text_is_tokenized(servers: list[RenderingVllm], engine: VllmServerEngine) -> None:
    text = "Grüße<|im_end|>"
    assert list(await asyncio.to_thread(engine.tokenize, text)) == Renderer(QWEN).encode(text)
    [body] = [body for server in servers for body in server.bodies]
    assert body == {"model": servers[0].model, "prompt": text}


async def test_it_is_tried_with_a_token_of_any_vocabulary(
    servers: list[RenderingVllm], engine: VllmServerEngine
) -> None:
    prompts = [asked.body["token_ids"] for server in servers for asked in server.asked if "token_ids" in asked.body]
    assert prompts
    assert {token for prompt in prompts for token in prompt} == {ANY_TOKEN}
    assert engine.supports_grammar


@pytest.mark.parametrize(
    ("status", "answer", "expected"),
    [
        (400, error("Conversation roles must alternate", 400), NotRendered),
        (400, error("This model's maximum context length is 9 tokens", 400), PromptTooLong),
        (403, error("Scale-out endpoints are disabled.", 403), EngineUnavailable),
        (404, {"detail": "Not Found"}, EngineUnavailable),
        (500, error("no", 500), EngineUnavailable),
        (200, {"nothing": 1}, EngineUnavailable),
    ],
)
async def test_what_it_answers_instead_is_told(
    servers: list[RenderingVllm],
    engine: VllmServerEngine,
    status: int,
    answer: Any,
    expected: type[EngineError],
) -> None:
    for server in servers:
        server.answer = (status, answer)
    with pytest.raises(expected):
        await asyncio.to_thread(engine.render, CHAT)
    with pytest.raises(expected):
        await asyncio.to_thread(engine.tokenize, "Grüße")


async def test_one_that_renders_nothing_is_skipped_for_the_next(
    servers: list[RenderingVllm], engine: VllmServerEngine
) -> None:
    servers[0].answer = (500, error("no", 500))
    for _ in range(3):
        assert await asyncio.to_thread(engine.render, CHAT)
    await servers[1].kill()
    servers[0].answer = None
    assert await asyncio.to_thread(engine.render, CHAT)
