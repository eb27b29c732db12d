"""What every engine does."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from itertools import count

import pytest

from engine.backends.base import BaseEngine
from engine.errors import EngineError, EngineUnavailable, PromptTooLong
from engine.formats.harmony.encoding import STOP_TOKENS
from engine.formats.harmony.parser import MessageCompleted
from engine.types import EngineInfo, FinishReason, GenerationRequest, SamplingOptions, TokenChunk
from tests.kit.harmony import HarmonyStream

PATIENCE = 30.0  # seconds until a test gives up on an engine
_numbers = count(1)


@dataclass(frozen=True, slots=True)
class StartedEngine:
    """An engine and what it said when it was started."""

    engine: BaseEngine
    info: EngineInfo


def ask(prompt: list[int], *, max_output_tokens: int | None = None) -> GenerationRequest:
    sampling = SamplingOptions(max_output_tokens=max_output_tokens, temperature=0.0, stop_token_ids=STOP_TOKENS)
    return GenerationRequest(request_id=f"contract-{next(_numbers)}", prompt_token_ids=prompt, sampling=sampling)


async def collect(engine: BaseEngine, request: GenerationRequest, *, seconds: float = PATIENCE) -> list[TokenChunk]:
    async with asyncio.timeout(seconds), aclosing(engine.generate(request)) as chunks:
        return [chunk async for chunk in chunks]


def joined(chunks: list[TokenChunk]) -> list[int]:
    return [token for chunk in chunks for token in chunk.token_ids]


def assert_whole(chunks: list[TokenChunk]) -> None:
    """Assert that chunks are a completion that the model ended: well-formed Harmony and one stop token at its end."""
    tokens, stream = joined(chunks), HarmonyStream()
    assert chunks[-1].finish_reason is FinishReason.STOP
    assert tokens[-1] in STOP_TOKENS
    assert not set(tokens[:-1]).intersection(STOP_TOKENS)
    completed = [event for event in stream.feed(tokens) if isinstance(event, MessageCompleted)]
    assert completed
    assert sum(len(event.tokens) for event in completed) == len(tokens)
    assert not any(event.repaired or event.truncated for event in completed)


class EngineContract:
    """Give a subclass the fixture `new_engine`, and `short_prompt` and `long_prompt`.

    Where starting is dear, override `started` with one that lives longer; the tests leave it as they found it.
    """

    @pytest.fixture
    def new_engine(self) -> BaseEngine:
        raise NotImplementedError

    def short_prompt(self) -> list[int]:
        """Return a prompt whose completion has at least 2 tokens and ends in a stop token."""
        raise NotImplementedError

    def long_prompt(self) -> list[int]:
        """Return a prompt whose completion has at least 200 tokens and ends in a stop token."""
        raise NotImplementedError

    def ask(self, prompt: list[int], *, max_output_tokens: int | None = None) -> GenerationRequest:
        return ask(prompt, max_output_tokens=max_output_tokens)

    def assert_whole(self, chunks: list[TokenChunk]) -> None:
        """Assert that chunks are a completion that the model ended, in its own format."""
        assert_whole(chunks)

    async def wait_until_idle(self, engine: BaseEngine) -> None:
        """Return once the engine runs nothing, for engines that can tell."""

    @pytest.fixture
    async def started(self, new_engine: BaseEngine) -> AsyncIterator[StartedEngine]:
        yield StartedEngine(new_engine, await new_engine.start())
        await new_engine.aclose()

    @pytest.fixture
    def engine(self, started: StartedEngine) -> BaseEngine:
        return started.engine

    async def test_it_says_what_it_is(self, started: StartedEngine) -> None:
        assert started.info.backend
        assert started.info.model
        assert started.info.max_model_len > 1

    async def test_only_the_last_chunk_has_a_finish_reason(self, engine: BaseEngine) -> None:
        *others, last = await collect(engine, self.ask(self.long_prompt()))
        assert others
        assert [chunk.finish_reason for chunk in others] == [None] * len(others)
        assert last.finish_reason is FinishReason.STOP

    async def test_a_completion_is_well_formed_and_ends_in_a_stop_token(self, engine: BaseEngine) -> None:
        for prompt in (self.short_prompt(), self.long_prompt()):
            self.assert_whole(await collect(engine, self.ask(prompt)))

    async def test_cached_tokens_are_part_of_the_prompt(self, engine: BaseEngine) -> None:
        prompt = self.short_prompt()
        for chunk in await collect(engine, self.ask(prompt)):
            assert chunk.cached_tokens is None or 0 <= chunk.cached_tokens <= len(prompt)

    @pytest.mark.parametrize("limit", [1, 7, 100])
    async def test_it_keeps_to_max_output_tokens(self, engine: BaseEngine, limit: int) -> None:
        chunks = await collect(engine, self.ask(self.long_prompt(), max_output_tokens=limit))
        assert len(joined(chunks)) == limit
        assert chunks[-1].finish_reason is FinishReason.LENGTH

    async def test_a_budget_that_ends_with_the_stop_token_is_not_a_cut(self, engine: BaseEngine) -> None:
        whole = joined(await collect(engine, self.ask(self.short_prompt())))
        exact = await collect(engine, self.ask(self.short_prompt(), max_output_tokens=len(whole)))
        self.assert_whole(exact)
        short = await collect(engine, self.ask(self.short_prompt(), max_output_tokens=len(whole) - 1))
        assert short[-1].finish_reason is FinishReason.LENGTH

    async def test_closing_aborts_one_generation_and_others_go_on(self, engine: BaseEngine) -> None:
        closed, other = engine.generate(self.ask(self.long_prompt())), engine.generate(self.ask(self.long_prompt()))
        async with asyncio.timeout(PATIENCE):
            await anext(closed)
            first = await anext(other)
            await closed.aclose()
            with pytest.raises(StopAsyncIteration):
                await anext(closed)
            self.assert_whole([first, *[chunk async for chunk in other]])
            await self.wait_until_idle(engine)
        await engine.health()

    async def test_closing_before_the_first_chunk_is_fine(self, engine: BaseEngine) -> None:
        await engine.generate(self.ask(self.long_prompt())).aclose()
        await self.wait_until_idle(engine)

    async def test_cancelling_the_task_aborts(self, engine: BaseEngine) -> None:
        async def read() -> None:
            task = asyncio.current_task()
            assert task is not None
            async with aclosing(engine.generate(self.ask(self.long_prompt()))) as chunks:
                async for _ in chunks:
                    task.cancel()  # it is cancelled where it waits for the next chunk, however late it is
            await asyncio.sleep(0)  # where that was the last chunk: to a reader that comes late, all may be one

        async with asyncio.timeout(PATIENCE):
            with pytest.raises(asyncio.CancelledError):
                await asyncio.create_task(read())
            await self.wait_until_idle(engine)
            self.assert_whole(await collect(engine, self.ask(self.short_prompt())))

    async def test_many_generations_at_once(self, engine: BaseEngine) -> None:
        prompts = [self.short_prompt(), self.long_prompt()] * 16
        patience = 10 * PATIENCE  # the last one waits for all: a real engine took over 30 s on two busy cores
        asked = (collect(engine, self.ask(prompt), seconds=patience) for prompt in prompts)
        for chunks in await asyncio.gather(*asked):
            self.assert_whole(chunks)

    async def test_an_id_may_be_used_again(self, engine: BaseEngine) -> None:
        request = self.ask(self.short_prompt())
        for _ in range(2):
            self.assert_whole(await collect(engine, request))

    async def test_a_prompt_that_leaves_no_room_is_too_long(self, started: StartedEngine) -> None:
        longest = started.info.max_model_len
        prompt = (self.short_prompt() * longest)[:longest]
        with pytest.raises(PromptTooLong) as refused:
            await collect(started.engine, self.ask(prompt))
        assert (refused.value.prompt_tokens, refused.value.max_model_len) == (longest, longest)
        self.assert_whole(await collect(started.engine, self.ask(self.short_prompt())))

    async def test_it_is_healthy_once_started(self, engine: BaseEngine) -> None:
        await engine.health()

    async def test_it_is_unavailable_before_start(self, new_engine: BaseEngine) -> None:
        await self.assert_unavailable(new_engine)
        await new_engine.aclose()

    async def test_it_is_unavailable_after_aclose(self, new_engine: BaseEngine) -> None:
        await new_engine.start()
        await new_engine.aclose()
        await self.assert_unavailable(new_engine)
        await new_engine.aclose()

    async def test_closed_before_start_it_stays_closed(self, new_engine: BaseEngine) -> None:
        await new_engine.aclose()
        with pytest.raises(EngineError):
            await new_engine.start()
        await self.assert_unavailable(new_engine)

    async def test_aclose_ends_what_runs(self, new_engine: BaseEngine) -> None:
        await new_engine.start()
        generations = [new_engine.generate(self.ask(self.long_prompt())) for _ in range(3)]
        async with asyncio.timeout(PATIENCE):
            for generation in generations:
                await anext(generation)
            await new_engine.aclose()
            for generation in generations:
                with pytest.raises(EngineUnavailable):
                    [chunk async for chunk in generation]
        await self.assert_unavailable(new_engine)

    async def assert_unavailable(self, engine: BaseEngine) -> None:
        with pytest.raises(EngineUnavailable):
            await engine.health()
        with pytest.raises(EngineUnavailable):
            await collect(engine, self.ask(self.short_prompt()))
