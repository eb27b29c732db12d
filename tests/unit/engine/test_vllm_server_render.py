"""A vLLM that serves a model with a chat template: the contract of engines, and conversations that it renders."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import pytest

from engine.backends.base import BaseEngine
from engine.backends.scripted import ScriptedEngine
from engine.backends.vllm.replica import ANY_TOKEN
from engine.backends.vllm.server import VllmServerEngine
from engine.errors import EngineError, EngineUnavailable, NotRendered, PromptTooLong
from engine.formats.base import ItemEnded, ItemKind, ItemStarted
from engine.formats.chat_template.prompt import records
from engine.types import ChatPrompt, FinishReason, GenerationRequest, TokenChunk
from tests.contracts.engine import EngineContract, ask, joined
from tests.kit.fake_vllm import error
from tests.kit.waiting import eventually
from tests.unit.engine.rendering_vllm import RenderingVllm
from tests.unit.engine.vllm_engines import SCRIPT, OpenEngine, over
from tests.unit.formats.families import LLAMA, QWEN, Family
from tests.unit.formats.rendering import FAMILIES, Renderer, format_of

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
    servers: list[RenderingVllm], engine: VllmServerEngine, status: int, answer: Any, expected: type[EngineError]
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


SHORT, LONG = "short", "long"
SAID = {
    QWEN.name: {SHORT: "<think>\nHm.\n</think>\n\n Hello", LONG: f"<think>Hm.</think>{' word' * 45}"},
    LLAMA.name: {SHORT: " Hello", LONG: " word" * 45},
}


class FamilyScript(ScriptedEngine):
    """Plays the entry whose word a prompt ends with, the first one for any other prompt."""

    def _choose(self, request: GenerationRequest):  # type: ignore[no-untyped-def]
        text = b"".join(bytes((token,)) for token in request.prompt_token_ids[-8:] if token < 256).decode()
        fits = (part for part in self._parts if part.entry.when and text.endswith(part.entry.when))
        return next(fits, self._parts[0]), 0


class TestContract(EngineContract):
    @pytest.fixture(params=FAMILIES, ids=lambda family: family.name)
    async def fake(self, request: pytest.FixtureRequest) -> AsyncIterator[RenderingVllm]:
        self.family: Family = request.param
        self.format, renderer = format_of(self.family)
        self.end = self.family.ids[self.family.end]
        script = [
            {"when": word, "tokens": [*renderer.encode(said), self.end]}
            for word, said in SAID[self.family.name].items()
        ]
        made = RenderingVllm(family=self.family)
        made.engine = FamilyScript(model="of a family", options={"script": script, "max_model_len": 10**9})
        async with made:
            yield made

    @pytest.fixture
    def new_engine(self, fake: RenderingVllm) -> VllmServerEngine:
        self.fake = fake
        return over(fake, harmony=False)

    def short_prompt(self) -> list[int]:
        return list(SHORT.encode())

    def long_prompt(self) -> list[int]:
        return list(LONG.encode())

    def ask(self, prompt: list[int], *, max_output_tokens: int | None = None) -> GenerationRequest:
        asked = ask(prompt, max_output_tokens=max_output_tokens)
        return replace(asked, sampling=asked.sampling.but(stop_token_ids=self.format.stop_tokens))

    def assert_whole(self, chunks: list[TokenChunk]) -> None:
        """Assert that the items are those that were said, and that they have all the tokens."""
        tokens = joined(chunks)
        assert chunks[-1].finish_reason is FinishReason.STOP
        assert tokens.index(self.end) == len(tokens) - 1
        events = self.format.parser().feed(tokens)
        kinds = [event.kind for event in events if isinstance(event, ItemStarted)]
        assert kinds == [ItemKind.REASONING, ItemKind.ANSWER][0 if self.family is QWEN else 1 :]
        ended = [event for event in events if isinstance(event, ItemEnded)]
        assert not any(event.truncated for event in ended)
        assert [token for event in ended for each in records(event.message.tokens) for token in each.sampled] == tokens

    async def wait_until_idle(self, engine: BaseEngine) -> None:
        await eventually(lambda: self.fake.engine.running == 0)
