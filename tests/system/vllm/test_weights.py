"""Weights that change under a real vLLM, in process and as a server: tokens, and the version that each is said to have.

The weights change by vLLM's own transfer, with a backend that makes them of a seed (`seeded_weights`). Only this finds
weights that a real vLLM has not changed, or a cache that keeps the old ones.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing
from itertools import count

import pytest
import pytest_asyncio

from engine.backends.base import BaseEngine
from engine.backends.vllm.local import VllmEngine
from engine.backends.vllm.server import VllmServerEngine
from engine.errors import TurnEnded, WeightsRefused
from engine.types import GenerationRequest, SamplingOptions, TokenChunk, WeightsSpan
from engine.weights import BaseWeights, PauseMode, RemoteCall, WeightsCall, WeightsStep
from tests.system.vllm.seeded_weights import OPTIONS
from tests.system.vllm.server import API_KEY, ENGINE_OPTIONS, MODEL_FOLDER, SERVED_MODEL, START_SECONDS, VllmServer

PROMPT = list(range(1000, 1100))
LONG, SHORT = 400, 12  # tokens
FROZEN_SECONDS = 1.0  # in which a hundred tokens would come
_numbers = count(1)


@pytest_asyncio.fixture(scope="module", loop_scope="session", params=["here", "there"])
async def engine(request: pytest.FixtureRequest) -> AsyncIterator[BaseEngine]:
    """An engine whose weights can be changed: in this process, and over a server."""
    async with AsyncExitStack() as stack:
        if request.param == "here":
            engine: BaseEngine = VllmEngine(model=str(MODEL_FOLDER), options={**ENGINE_OPTIONS, **OPTIONS})
        else:
            server: VllmServer = request.getfixturevalue("seeded_server")
            engine = VllmServerEngine(model=SERVED_MODEL, options={"urls": [server.url], "api_key": API_KEY})
        stack.push_async_callback(engine.aclose)
        async with asyncio.timeout(START_SECONDS):
            await engine.start()
        yield engine


@pytest.fixture
def weights(engine: BaseEngine) -> BaseWeights:
    assert engine.weights is not None
    return engine.weights


class Turn:
    def __init__(self, engine: BaseEngine, tokens: int) -> None:
        self.chunks: list[TokenChunk] = []
        self.begun = asyncio.Event()
        request = GenerationRequest(
            request_id=f"weights-{next(_numbers)}",
            prompt_token_ids=PROMPT,
            sampling=SamplingOptions(temperature=0.0, max_output_tokens=tokens, top_logprobs=0, ignore_eos=True),
        )
        self.task = asyncio.create_task(self._read(engine, request))

    async def _read(self, engine: BaseEngine, request: GenerationRequest) -> None:
        async with aclosing(engine.generate(request)) as chunks:
            async for chunk in chunks:
                self.chunks.append(chunk)
                self.begun.set()

    @property
    def tokens(self) -> list[int]:
        return [token for chunk in self.chunks for token in chunk.token_ids]

    @property
    def spans(self) -> list[WeightsSpan]:
        """Which weights sampled it: as the last chunk says it, or else as each of them did."""
        if (told := self.chunks[-1].weights) is not None:
            return list(told)
        spans: list[WeightsSpan] = []
        for chunk in self.chunks:
            version, sampled = str(chunk.weights_version), len(chunk.token_ids)
            if spans and spans[-1].version == version:
                spans[-1] = WeightsSpan(version, spans[-1].tokens + sampled)
            elif sampled:
                spans.append(WeightsSpan(version, sampled))
        return spans


async def sampled(engine: BaseEngine) -> tuple[list[int], list[WeightsSpan]]:
    """Return what the engine samples now, and by which weights."""
    turn = Turn(engine, SHORT)
    await turn.task
    return turn.tokens, turn.spans


async def change(weights: BaseWeights, version: str, seed: int) -> None:
    """Change the weights of an engine that is paused, by vLLM's own transfer."""
    for step in (WeightsStep.BEGIN, WeightsStep.UPDATE, WeightsStep.FINISH):
        info = {"seed": seed} if step is WeightsStep.UPDATE else None
        await weights.call(WeightsCall(step=step, version=version, info=info))


async def test_an_update_changes_the_tokens_and_their_version(engine: BaseEngine, weights: BaseWeights) -> None:
    await weights.call(WeightsCall(step=WeightsStep.INIT, info={"trainer": "here"}))
    results = {}
    for version, seed in (("a", 1), ("b", 2), ("a-again", 1)):
        await weights.apply(
            [
                WeightsCall(step=WeightsStep.BEGIN, version=version),
                WeightsCall(step=WeightsStep.UPDATE, version=version, info={"seed": seed}),
                WeightsCall(step=WeightsStep.FINISH, version=version),
            ],
            PauseMode.WAIT,
        )
        assert engine.weights_version == version
        results[version], spans = await sampled(engine)
        assert spans == [WeightsSpan(version, SHORT)]
    assert results["a"] != results["b"]
    # The same weights give the same tokens: nothing of the others is left in a prefix cache.
    assert results["a"] == results["a-again"]


async def test_a_turn_that_is_frozen_carries_both_versions(engine: BaseEngine, weights: BaseWeights) -> None:
    await weights.pause(PauseMode.KEEP)
    await change(weights, "old", 1)
    await weights.resume()
    turn = Turn(engine, LONG)
    await turn.begun.wait()
    await weights.pause(PauseMode.KEEP)
    late = Turn(engine, SHORT)
    before = len(turn.tokens)
    await asyncio.wait([turn.task, late.task], timeout=FROZEN_SECONDS)
    assert (len(turn.tokens), late.tokens) == (before, [])
    await change(weights, "new", 2)
    await weights.resume()
    await turn.task
    (first, old), (last, new) = turn.spans
    assert (first, last, old + new) == ("old", "new", LONG)
    assert old == before
    await late.task
    assert late.spans == [WeightsSpan("new", SHORT)]


async def test_an_update_that_breaks_renames_the_weights(engine: BaseEngine, weights: BaseWeights) -> None:
    await weights.pause(PauseMode.KEEP)
    with pytest.raises(WeightsRefused, match="went away") as refused:
        await change(weights, "broken", -1)
    assert refused.value.changed
    await weights.resume()
    assert (await sampled(engine))[1] == [WeightsSpan("failed:broken", SHORT)]
    await weights.pause(PauseMode.KEEP)
    await change(weights, "mended", 1)
    await weights.resume()
    assert (await sampled(engine))[1] == [WeightsSpan("mended", SHORT)]


async def test_a_pause_that_aborts_ends_what_runs(engine: BaseEngine, weights: BaseWeights) -> None:
    turn = Turn(engine, LONG)
    await turn.begun.wait()
    await weights.pause(PauseMode.ABORT)
    with pytest.raises(TurnEnded):
        await turn.task
    assert len(turn.tokens) < LONG
    await weights.resume()
    assert len((await sampled(engine))[0]) == SHORT


async def test_workers_with_methods_of_their_own_take_updates_by_these(
    engine: BaseEngine, weights: BaseWeights
) -> None:
    await weights.pause(PauseMode.KEEP)
    await change(weights, "by-transfer", 5)
    await weights.resume()
    expected, _ = await sampled(engine)
    await weights.pause(PauseMode.KEEP)
    for step in (WeightsStep.BEGIN, WeightsStep.UPDATE, WeightsStep.FINISH):
        remote = RemoteCall("seed_weights", kwargs={"seed": 5}) if step is WeightsStep.UPDATE else None
        await weights.call(WeightsCall(step=step, version="by-rpc", transfer=False, remote=remote))
    await weights.resume()
    assert await sampled(engine) == (expected, [WeightsSpan("by-rpc", SHORT)])
