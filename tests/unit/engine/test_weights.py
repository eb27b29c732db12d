"""Weights that change: the gate of engines in this process, the demo engine's words, and vLLM's spans of versions."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from engine.backends.demo.engine import DemoEngine
from engine.backends.vllm.weights import Versions
from engine.errors import EngineUnavailable, TurnEnded, WeightsRefused
from engine.formats.harmony.encoding import decode_tokens
from engine.types import FinishReason, TokenChunk, TokenLogprob
from engine.weights import Gate, PauseMode, RemoteCall, WeightsCall, WeightsStep
from tests.contracts.engine import ask, assert_whole, collect, joined
from tests.unit.engine.vllm_engines import prompt, update


@pytest.fixture
async def demo() -> Any:
    engine = DemoEngine(model="demo")
    await engine.start()
    yield engine
    await engine.aclose()


class TestGate:
    async def test_what_is_frozen_goes_on(self) -> None:
        gate = Gate()
        async with gate.generation() as name:
            await gate.passed(name)
            await gate.close(PauseMode.KEEP)
            passing = asyncio.create_task(gate.passed(name))
            assert not (await asyncio.wait([passing], timeout=0.05))[0]
            gate.open()
            await passing

    async def test_a_pause_that_waits_is_there_with_the_last_end(self) -> None:
        gate = Gate()
        async with gate.generation() as name:
            closing = asyncio.create_task(gate.close(PauseMode.WAIT))
            await asyncio.sleep(0)
            await gate.passed(name)
            late = asyncio.create_task(gate.generation().__aenter__())
            assert not (await asyncio.wait([closing, late], timeout=0.05))[0]
        await closing
        gate.open()
        await late

    async def test_what_was_frozen_may_be_ended_after_all(self) -> None:
        gate = Gate()
        async with gate.generation() as name:
            await gate.close(PauseMode.KEEP)
            passing = asyncio.create_task(gate.passed(name))
            await asyncio.sleep(0)
            await gate.close(PauseMode.ABORT)
            with pytest.raises(TurnEnded):
                await passing


class TestDemo:
    async def test_a_seed_changes_words_and_nothing_else(self, demo: DemoEngine) -> None:
        first = await collect(demo, ask(prompt("count to 3, please")))
        assert {chunk.weights_version for chunk in first} == {"default"}
        said = set()
        for seed in (0, 1, 2):
            await demo.weights.apply(update(f"s{seed}", {"seed": seed}), PauseMode.KEEP)
            chunks = await collect(demo, ask(prompt("Who are you?")))
            assert_whole(chunks)
            assert {chunk.weights_version for chunk in chunks} == {f"s{seed}"}
            said.add(decode_tokens(joined(chunks)))
        assert len(said) == 3
        assert len({text.lower() for text in said}) == 1

    async def test_a_turn_that_was_cut_goes_on_with_other_weights(self, demo: DemoEngine) -> None:
        whole = joined(await collect(demo, ask(prompt("Who are you?"))))
        await demo.weights.apply(update("s1", {"seed": 1}), PauseMode.KEEP)
        for cut in range(1, len(whole)):
            rest = joined(await collect(demo, ask([*prompt("Who are you?"), *whole[:cut]])))
            assert len(rest) == len(whole) - cut

    @pytest.mark.parametrize("seed", [-1, True, "7", None, 2**40])
    async def test_what_is_no_seed_is_refused(self, demo: DemoEngine, seed: object) -> None:
        with pytest.raises(WeightsRefused, match="seed"):
            await demo.weights.apply(update("x", {"seed": seed}), PauseMode.KEEP)
        assert demo.weights_version == "default"
        assert_whole(await collect(demo, ask(prompt("Well?"))))

    async def test_it_has_no_workers_and_nothing_to_finish(self, demo: DemoEngine) -> None:
        with pytest.raises(WeightsRefused):
            await demo.weights.call(
                WeightsCall(step=WeightsStep.UPDATE, version="x", transfer=False, remote=RemoteCall("f"))
            )
        with pytest.raises(WeightsRefused):
            await demo.weights.call(WeightsCall(step=WeightsStep.FINISH, version="x"))

    async def test_closing_ends_what_a_pause_holds(self, demo: DemoEngine) -> None:
        await demo.weights.pause(PauseMode.KEEP)
        held = asyncio.create_task(collect(demo, ask(prompt("Well?"))))
        await asyncio.sleep(0)
        await demo.aclose()
        with pytest.raises(EngineUnavailable):
            await held


def output(tokens: list[int], *, spans: list[tuple[str, int]] | None = None) -> Any:
    """Return an output of vLLM; the last one has spans."""
    told = None if spans is None else [SimpleNamespace(version=version, start=start) for version, start in spans]
    return SimpleNamespace(outputs=[SimpleNamespace(token_ids=tokens, weight_versions=told)])


class TestVersions:
    def test_each_token_has_the_version_that_sampled_it(self) -> None:
        starts: list[tuple[str, int]] = []
        state = SimpleNamespace(weight_version_starts=starts)
        processor = SimpleNamespace(external_req_ids={"r": ["r-1"]}, request_states={"r-1": state})
        versions = Versions(SimpleNamespace(output_processor=processor), "r")
        starts.append(("a", 0))
        assert told(versions, [1, 2]) == [([1, 2], "a")]
        assert told(versions, [3]) == [([3], "a")]
        starts.append(("b", 4))
        starts.append(("c", 7))
        # What piled up while nobody read comes as one output: tokens 3 to 8, of three versions.
        assert told(versions, [4, 5, 6, 7, 8, 9]) == [([4], "a"), ([5, 6, 7], "b"), ([8, 9], "c")]
        assert told(versions, []) == [([], None)]
        processor.request_states.clear()
        assert told(versions, [10]) == [([10], "c")]

    def test_what_comes_as_one_output_is_cut_too(self) -> None:
        versions = Versions(SimpleNamespace(output_processor=SimpleNamespace(external_req_ids={})), "r")
        logprobs = [TokenLogprob(token, -1.0) for token in (1, 2, 3)]
        chunk = TokenChunk(
            token_ids=[1, 2, 3], logprobs=logprobs, finish_reason=FinishReason.STOP, cached_tokens=7, prompt_logprobs=[]
        )
        first, last = versions.of(output([1, 2, 3], spans=[("a", 0), ("b", 2)]), chunk)
        assert (first.token_ids, first.logprobs, first.finish_reason) == ([1, 2], logprobs[:2], None)
        assert (last.token_ids, last.logprobs, last.finish_reason) == ([3], logprobs[2:], FinishReason.STOP)
        assert (first.weights_version, last.weights_version, last.cached_tokens) == ("a", "b", 7)
        assert (first.prompt_logprobs, last.prompt_logprobs) == ([], None)

    def test_where_vllm_does_not_tell_nothing_is_told(self) -> None:
        versions = Versions(SimpleNamespace(output_processor=SimpleNamespace(external_req_ids={})), "r")
        assert told(versions, [1, 2]) == [([1, 2], None)]


def told(versions: Versions, tokens: list[int]) -> list[tuple[list[int], str | None]]:
    """Return the chunks of an output that is not the last one."""
    chunk = TokenChunk(token_ids=tokens)
    return [(list(part.token_ids), part.weights_version) for part in versions.of(output(tokens), chunk)]
