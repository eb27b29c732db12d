"""What vLLM does for the server beyond the contract: prefix cache, salts, priority, logprobs, aborts, load.

Each test runs over vLLM in this process and over a vLLM server. Only this finds what a scheduler and a cache of vLLM do
with our requests.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from engine.errors import GenerationFailed
from engine.formats.harmony.encoding import decode_tokens, encode_harmony
from engine.formats.harmony.format import HarmonyFormat
from engine.formats.harmony.prompt import generation_start, render_text, render_tool_output
from engine.types import JsonSchema, TokenChunk, TurnRules
from tests.contracts.engine import assert_whole, collect, joined
from tests.kit.waiting import eventually
from tests.system.vllm.engines import EngineUnderTest, cached, full_blocks, request
from tests.system.vllm.server import KV_BLOCKS
from tests.system.vllm.transcripts import completion, prompt

BUSY = 20  # prompts of 2,000 words, of which a step of vLLM reads one

CALL, NEXT_CALL = "weather of Paris and Rome", "18 °C in Paris"


def continued(before: list[int], sampled: list[int], output: str) -> list[int]:
    """Return the prompt after a call: what was there, what was sampled, and the function's output."""
    return [*before, *sampled, *render_tool_output("functions.get_weather", output).tokens, *generation_start()]


def distinct(text: str, name: str, *, size: int = 200) -> list[int]:
    """Return a prompt of `size` tokens and some that shares no full block with one of another name."""
    return [*render_text("developer", name + " filler" * size).tokens, *prompt(text)]


class TestPrefixCache:
    async def test_a_continuation_hits_every_full_block_of_the_turns_before(self, vllm: EngineUnderTest) -> None:
        tokens = distinct(f"the {CALL}", "continuation")
        for when, output in ((CALL, NEXT_CALL), (NEXT_CALL, "18 °C in Rome")):
            sampled = joined(await vllm.ask(tokens))
            assert sampled == completion(when)
            earlier = len(tokens) + len(sampled)
            tokens = continued(tokens, sampled, output)
            assert cached(await vllm.ask(tokens, max_output_tokens=1)) == full_blocks(earlier)

    async def test_two_salts_share_nothing_and_one_salt_does(self, vllm: EngineUnderTest) -> None:
        tokens = distinct("say short", "salted")
        hits = [cached(await vllm.ask(tokens, cache_salt=salt)) for salt in ("red", "blue", "red", None, "blue", None)]
        again = full_blocks(len(tokens))
        assert again > 100
        assert hits == [0, 0, again, 0, again, again]

    async def test_one_token_leaves_the_prompt_in_the_cache(self, vllm: EngineUnderTest) -> None:
        assert vllm.engine.supports_prefill
        tokens = distinct("say short", "prefilled")
        await vllm.ask(tokens, max_output_tokens=1)
        assert cached(await vllm.ask(tokens)) == full_blocks(len(tokens))


class TestSampling:
    @pytest.mark.parametrize("top", [0, 1, 5, 20])
    async def test_logprobs_of_a_free_request(self, vllm: EngineUnderTest, top: int) -> None:
        assert vllm.engine.supports_logprobs
        chunks = await vllm.ask(prompt("be free"), max_output_tokens=8, top_logprobs=top)
        assert_logprobs(chunks, top)
        for chunk in chunks:
            for entry in chunk.logprobs or ():
                assert not entry.top or entry.logprob == pytest.approx(entry.top[0][1], abs=1e-4)  # greedy

    async def test_logprobs_of_a_forced_request(self, vllm: EngineUnderTest) -> None:
        """vLLM takes them from the logits before any processor, so a forced token is as unlikely as it was."""
        chunks = await vllm.ask(prompt("say short"), top_logprobs=3)
        assert_whole(chunks)
        assert_logprobs(chunks, 3)

    async def test_logprobs_of_a_constrained_request(self, vllm: EngineUnderTest) -> None:
        """A token that the grammar leaves may be unlikely among all there are: it has its own logprob all the same."""
        start = encode_harmony("<|channel|>final<|message|>")
        grammar = HarmonyFormat().grammar(TurnRules(answer=JsonSchema('{"enum": ["good", "bad"]}')), start)
        asked = request([*prompt("be free"), *start], temperature=1.0, max_output_tokens=30, top_logprobs=3)
        chunks = await collect(vllm.engine, replace(asked, grammar=grammar))
        assert json.loads(decode_tokens(joined(chunks)[:-1])) in ("good", "bad")
        assert_logprobs(chunks, 3)

    async def test_without_logprobs_there_are_none(self, vllm: EngineUnderTest) -> None:
        assert {chunk.logprobs for chunk in await vllm.ask(prompt("say short"))} == {None}

    async def test_sampling_options_are_taken(self, vllm: EngineUnderTest) -> None:
        options = {"temperature": 0.7, "top_p": 0.9, "presence_penalty": 0.5, "frequency_penalty": -0.5}
        assert len(joined(await vllm.ask(prompt("be free"), max_output_tokens=9, **options))) == 9
        assert_whole(await vllm.ask(prompt("say short"), temperature=None))

    @pytest.mark.parametrize("options", [{"top_p": 5.0}, {"temperature": -1.0}], ids=str)
    async def test_options_that_vllm_refuses_fail_one_generation(
        self, vllm: EngineUnderTest, options: dict[str, object]
    ) -> None:
        with pytest.raises(GenerationFailed):
            await vllm.ask(prompt("say short"), **options)
        assert_whole(await vllm.ask(prompt("say short")))


class TestDetails:
    async def test_log_probabilities_of_the_prompt(self, vllm: EngineUnderTest) -> None:
        assert vllm.engine.supports_prompt_logprobs
        tokens = distinct("be free", "weighed")
        for top in (0, 2):
            chunks = await vllm.ask(tokens, max_output_tokens=3, prompt_logprobs=top, top_logprobs=1)
            assert len(joined(chunks)) == 3
            assert_logprobs(chunks, 1)
            (told,) = [chunk.prompt_logprobs for chunk in chunks if chunk.prompt_logprobs is not None]
            assert told[0] is None
            assert [place[0].token_id for place in told[1:] if place is not None] == tokens[1:]
            for place in (place for place in told if place is not None):
                assert max(1, top) <= len(place) <= top + 1
                assert [each.rank for each in place[1:]] == sorted(each.rank for each in place[1:])
                assert all(-9999 <= each.logprob <= 0 and each.rank >= 1 for each in place)

    async def test_parameters_of_cache_transfers_reach_the_engine(self, vllm: EngineUnderTest) -> None:
        """No connector is there to take them, but the processor that forces tokens reads them, too."""
        forced = completion("say short")
        for more in ({}, {"do_remote_prefill": True}):
            asked = request(prompt("be free"), max_output_tokens=9)
            asked = replace(asked, kv_transfer_params={"forced_tokens": forced, **more})
            assert joined(await collect(vllm.engine, asked)) == forced


def assert_logprobs(chunks: list[TokenChunk], top: int) -> None:
    """Assert that every token has its own logprob and the likeliest ones, in order.

    A vLLM server counts a sampled token that is not among the likeliest ones as one of them, so one may be missing.
    """
    for chunk in chunks:
        assert chunk.logprobs is not None
        assert [entry.token_id for entry in chunk.logprobs] == list(chunk.token_ids)
        for entry in chunk.logprobs:
            likely = [logprob for _, logprob in entry.top]
            assert len({token for token, _ in entry.top}) == len(entry.top)
            assert top - 1 <= len(entry.top) <= top
            assert likely == sorted(likely, reverse=True)
            assert all(logprob >= entry.logprob - 1e-4 for logprob in likely[:1])
            assert entry.logprob <= 0


@asynccontextmanager
async def reported_abort(vllm: EngineUnderTest, how: str) -> AsyncIterator[None]:
    """Wait until nothing runs any more, and print how long that took."""
    began = time.monotonic()
    yield
    await eventually(lambda: vllm.running() == 0)
    print(f"{type(vllm).__name__}, {how}: nothing runs {1000 * (time.monotonic() - began):.0f} ms later")


class TestLoad:
    async def test_closing_reaches_the_scheduler(self, vllm: EngineUnderTest) -> None:
        generation = vllm.engine.generate(request(prompt("say endless")))
        await anext(generation)
        await eventually(lambda: vllm.running() == 1)
        async with reported_abort(vllm, "closed"):
            await generation.aclose()

    async def test_cancelling_reaches_the_scheduler(self, vllm: EngineUnderTest) -> None:
        reading = asyncio.create_task(vllm.ask(prompt("say endless")))
        await eventually(lambda: vllm.running() == 1)
        async with reported_abort(vllm, "cancelled"):
            reading.cancel()
            await asyncio.wait([reading])

    async def test_two_hundred_at_once(self, vllm: EngineUnderTest) -> None:
        for chunks in await asyncio.gather(*(vllm.ask(prompt("say short")) for _ in range(200))):
            assert_whole(chunks)

    async def test_prompts_that_exceed_the_kv_cache_wait_for_each_other(self, vllm: EngineUnderTest) -> None:
        prompts = [distinct("say long", f"crowd {number}", size=2000) for number in range(12)]
        assert sum(map(len, prompts)) > 32 * KV_BLOCKS
        for chunks in await asyncio.gather(*(vllm.ask(tokens) for tokens in prompts)):
            assert_whole(chunks)

    async def test_a_lower_priority_value_runs_first(self, vllm: EngineUnderTest) -> None:
        assert vllm.engine.supports_priority
        ended: list[str] = []

        async def ask(name: str, priority: int) -> None:
            assert_whole(await vllm.ask(distinct("say long", name, size=2000), priority=priority))
            ended.append(name)

        async with asyncio.TaskGroup() as asking:
            for number in range(BUSY):
                asking.create_task(ask(f"busy {number}", 0))
            await eventually(lambda: vllm.running() > 1)
            asking.create_task(ask("last", 5))
            asking.create_task(ask("first", -5))
        # Not "last of all": those that came late, or run beside it in the end, may end behind it.
        assert ended.index("first") < ended.index("last")
        assert ended.index("first") < BUSY - 1, (
            "before some that came earlier: how many ran by then is up to the machine"
        )
