"""What the engine does with a real llama-server: tokens that streams leave out, options, a server that goes away.

Only this finds tokens that a real llama-server samples and does not tell.
"""

import asyncio
from collections.abc import AsyncIterable
from contextlib import aclosing
from typing import Any

import pytest

from engine.backends.llama.server import LlamaServerEngine
from engine.errors import EngineConfigurationError, EngineUnavailable, GenerationCut, GenerationFailed
from engine.formats.harmony.encoding import STOP_TOKENS
from engine.types import FinishReason, GenerationRequest, SamplingOptions
from tests.contracts.engine import collect, joined
from tests.kit.waiting import eventually
from tests.system.llama.conftest import engine_over
from tests.system.llama.model import CALLS, DICE, EMOJI, ENDLESS, LONG, RANDOM, SHORT, TURNS, prompt
from tests.system.llama.server import LlamaServer
from tests.system.vllm.chat_models import write_model
from tests.unit.formats.families import QWEN

GREEDY = {"temperature": 0.0, "stop_token_ids": STOP_TOKENS}


def ask(cue: int, **sampling: Any) -> GenerationRequest:
    options = SamplingOptions().but(**{**GREEDY, **sampling})  # also what no API takes
    return GenerationRequest(request_id=f"llama-{cue}", prompt_token_ids=prompt(cue), sampling=options)


async def exhaust(chunks: AsyncIterable[object]) -> None:
    async for _ in chunks:
        pass


async def problem_of_start(engine: LlamaServerEngine) -> str | None:
    try:
        await engine.start()
    except EngineUnavailable as error:
        return str(error)
    return None


@pytest.fixture
async def engine(llama: LlamaServer) -> Any:
    engine = engine_over(llama)
    await engine.start()
    yield engine
    await engine.aclose()


@pytest.mark.parametrize("cue", [SHORT, LONG, EMOJI, CALLS])
async def test_every_sampled_token_is_told(engine: LlamaServerEngine, cue: int) -> None:
    """Of the llama and two more characters of `EMOJI`, which are several tokens each, a stream tells the last ones."""
    assert joined(await collect(engine, ask(cue))) == TURNS[cue]


async def test_a_limit_within_a_character_loses_no_token(engine: LlamaServerEngine) -> None:
    turn = TURNS[EMOJI]
    for limit in range(1, len(turn)):
        chunks = await collect(engine, ask(EMOJI, max_output_tokens=limit))
        assert (joined(chunks), chunks[-1].finish_reason) == (turn[:limit], FinishReason.LENGTH)


async def test_every_token_has_its_log_probability(engine: LlamaServerEngine) -> None:
    for top in (0, 3):
        chunks = await collect(engine, ask(EMOJI, top_logprobs=top))
        told = [each for chunk in chunks for each in chunk.logprobs or ()]
        assert [each.token_id for each in told] == TURNS[EMOJI]
        assert all(-0.01 < each.logprob <= 0 and len(each.top) == top for each in told)
        assert not top or all(each.top[0] == (each.token_id, each.logprob) for each in told)


async def test_what_is_sampled_at_random_is_told_as_well(engine: LlamaServerEngine) -> None:
    """A third of the tokens are parts of characters: nothing is told of many of them, and they are asked for again."""

    async def said(seed: int) -> list[int]:
        return joined(await collect(engine, ask(RANDOM, temperature=1.0, seed=seed, max_output_tokens=24)))

    seven, again, eight = [await said(seed) for seed in (7, 7, 8)]
    assert seven == again != eight
    for tokens in (seven, eight):
        assert len(tokens) == 24 or tokens[-1] in STOP_TOKENS
        assert tokens[3] == DICE


async def test_options_are_carried_out(engine: LlamaServerEngine) -> None:
    turn = TURNS[SHORT]
    biased = joined(await collect(engine, ask(SHORT, logit_bias={str(DICE): 10_000.0}, max_output_tokens=3)))
    assert biased == [DICE] * 3
    assert joined(await collect(engine, ask(SHORT, temperature=5.0, top_k=1, min_p=0.5))) == turn
    # A token that ends nothing for llama.cpp ends the turn where the request says so.
    stopped = await collect(engine, ask(LONG, stop_token_ids=(TURNS[LONG][5],)))
    assert (joined(stopped), stopped[-1].finish_reason) == (TURNS[LONG][:6], FinishReason.STOP)
    # One that does is gone past, where it is not to count.
    beyond = joined(await collect(engine, ask(SHORT, ignore_eos=True, stop_token_ids=(), max_output_tokens=9)))
    assert (beyond[: len(turn)], len(beyond)) == (turn, 9)
    assert joined(await collect(engine, ask(SHORT, stop_token_ids=()))) == turn
    with pytest.raises(GenerationFailed, match="no token 201088"):
        await collect(engine, ask(SHORT, logit_bias={"201088": 1.0}))


async def test_a_prompt_that_was_seen_is_cached(engine: LlamaServerEngine) -> None:
    first = ask(CALLS)
    answer = joined(await collect(engine, first))
    longer = GenerationRequest(
        request_id="longer",
        prompt_token_ids=[*first.prompt_token_ids, *answer, *prompt(SHORT)],
        sampling=first.sampling,
    )
    last = (await collect(engine, longer))[-1]
    assert last.cached_tokens is not None
    # The last token that was sampled is in no cache yet.
    assert last.cached_tokens >= len(first.prompt_token_ids) + len(answer) - 1


async def test_the_server_stops_when_a_generation_is_closed(engine: LlamaServerEngine, llama: LlamaServer) -> None:
    async with aclosing(engine.generate(ask(ENDLESS))) as chunks:
        await anext(chunks)
        assert llama.running() == 1
    await eventually(lambda: llama.running() == 0)


async def test_a_server_that_dies_cuts_what_runs_and_is_used_again(own_llama: LlamaServer) -> None:
    engine = engine_over(own_llama)
    try:
        with pytest.raises(EngineUnavailable, match=r"is out of reach \(Connection refused\)"):
            await engine.start()
        own_llama.start(wait=False)
        problems = set()
        async with asyncio.timeout(60):
            while (problem := await problem_of_start(engine)) is not None:
                problems.add(problem)
        # Nothing listens yet, and then it loads its model.
        assert all("Connection refused" in each or "503" in each for each in problems)
        async with aclosing(engine.generate(ask(ENDLESS))) as chunks:
            await anext(chunks)
            own_llama.kill()
            with pytest.raises(GenerationCut):
                await exhaust(chunks)
        with pytest.raises(EngineUnavailable):
            await engine.health()
        with pytest.raises(EngineUnavailable):
            await collect(engine, ask(SHORT))
        own_llama.start()
        await engine.health()
        assert joined(await collect(engine, ask(SHORT))) == TURNS[SHORT]
    finally:
        await engine.aclose()


async def test_a_server_that_hangs_is_given_up(own_llama: LlamaServer) -> None:
    engine = engine_over(own_llama, silence_seconds=1.5)
    own_llama.start()
    try:
        await engine.start()
        async with aclosing(engine.generate(ask(ENDLESS))) as chunks:
            await anext(chunks)
            own_llama.pause()
            with pytest.raises(GenerationCut, match=r"sent nothing for 1\.5 s"):
                await exhaust(chunks)
        with pytest.raises(EngineUnavailable, match="no answer in time"):
            await engine.health()
        own_llama.go_on()
        await engine.health()
        assert joined(await collect(engine, ask(SHORT))) == TURNS[SHORT]
    finally:
        await engine.aclose()


async def test_what_an_operator_has_to_change_is_said(llama: LlamaServer, tmp_path: Any) -> None:
    write_model(QWEN, tmp_path)
    for options, said in (
        ({"api_key": "another"}, "refuses our key with 401: ENGINE_API_KEY is to be"),
        ({"tokenizer": str(tmp_path)}, "TOKENIZER is of another model: <"),
    ):
        engine = engine_over(llama, **options)
        with pytest.raises(EngineConfigurationError, match=said):
            await engine.start()
        await engine.aclose()
