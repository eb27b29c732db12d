"""Several vLLM servers behind one engine: who gets what, and servers that go and come back."""

import asyncio
import logging
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from engine.backends.vllm import pool as vllm_pool
from engine.backends.vllm.server import VllmServerEngine
from engine.errors import EngineOverloaded, EngineUnavailable, GenerationCut, GenerationFailed, PromptTooLong
from engine.formats.harmony.encoding import STOP_TOKENS
from engine.sessions import Session
from engine.types import GenerationRequest, SamplingOptions
from tests.contracts.engine import ask, assert_whole, collect
from tests.kit.fake_vllm import MODEL, FakeVllm
from tests.kit.waiting import eventually
from tests.unit.engine.vllm_engines import (
    HELLO,
    SCRIPT,
    OpenFake,
    OpenPool,
    is_away,
    is_healthy,
    over,
    prompt,
)

SHORT = {"when": "short", "say": HELLO, "cached_tokens": 10**6}  # all of the prompt is in the cache


def affine(affinity: str) -> GenerationRequest:
    return GenerationRequest(
        request_id=f"affine-{affinity}",
        prompt_token_ids=prompt("short"),
        sampling=SamplingOptions(temperature=0.0, stop_token_ids=STOP_TOKENS),
        session=Session(id=affinity),
    )


class TestSeveralServers:
    async def test_a_chain_stays_where_its_beginning_is(self, pool: OpenPool) -> None:
        fakes, engine = await pool(3, SHORT, *SCRIPT)
        affinities = [f"chain-{number}" for number in range(60)]

        async def placed() -> dict[str, FakeVllm]:
            for fake in fakes:
                fake.asked.clear()
            for each in affinities:
                await collect(engine, affine(each))
            return {
                each.body["request_id"].removeprefix("affine-"): fake for fake in fakes for each in fake.generations
            }

        first = await placed()
        assert await placed() == first
        assert min(Counter(first.values()).values()) > 5
        gone = fakes[1]
        await gone.kill()
        moved = await placed()
        assert gone not in moved.values()
        assert all(moved[each] is first[each] for each in affinities if first[each] is not gone)
        assert len({moved[each] for each in affinities if first[each] is gone}) == 2
        await gone.start()
        await eventually(lambda: engine.replicas()["serving"] == 3)
        assert await placed() == moved, "that is where their beginnings are now"

    async def test_a_chain_that_finds_nothing_in_the_cache_goes_where_less_is_done(self, pool: OpenPool) -> None:
        fakes, engine = await pool(2, {"when": "short", "say": HELLO, "cached_tokens": 0}, *SCRIPT)
        for _ in range(2):
            await collect(engine, affine("x"))
        (home,) = [fake for fake in fakes if fake.generations]
        hanging = replace(affine("x"), prompt_token_ids=prompt("[hang]"))
        running = [engine.generate(hanging) for _ in range(2)]
        for generation in running:
            await anext(generation)
        await collect(engine, affine("x"))
        assert home.engine.running == 2
        assert len(home.generations) == 4, "its first ones, and those that hang"
        for generation in running:
            await generation.aclose()

    async def test_without_an_affinity_the_least_busy_one_is_asked(self, pool: OpenPool) -> None:
        fakes, engine = await pool(3)
        running = [engine.generate(ask(prompt("long"))) for _ in range(9)]
        for generation in running:
            await anext(generation)
        assert [fake.engine.running for fake in fakes] == [3, 3, 3]
        for generation in running:
            await generation.aclose()

    @pytest.mark.parametrize("fault", ["die", "cut", "full"])
    async def test_one_that_fails_before_the_first_chunk_is_skipped(self, pool: OpenPool, fault: str) -> None:
        fakes, engine = await pool(2)
        for fake in fakes:
            fake.switches.fault = fault
            for number in range(8):
                assert_whole(await collect(engine, affine(str(number))))
            fake.switches.fault = None
            await eventually(lambda: engine.replicas()["serving"] == 2)

    async def test_all_full_is_full(self, pool: OpenPool) -> None:
        fakes, engine = await pool(2)
        for fake in fakes:
            fake.switches.refusal = 503, {"Retry-After": "4"}
        with pytest.raises(EngineOverloaded) as full:
            await collect(engine, affine("x"))
        assert full.value.retry_after == 4
        assert [len(fake.generations) for fake in fakes] == [1, 1]

    async def test_a_generation_that_has_begun_is_not_begun_again(self, pool: OpenPool) -> None:
        fakes, engine = await pool(2, fault="die", fault_after=2)
        with pytest.raises(GenerationCut):
            await collect(engine, affine("x"))
        assert sum(len(fake.generations) for fake in fakes) == 1

    async def test_one_of_two_is_enough_to_start(self, open_fake: OpenFake, caplog: pytest.LogCaptureFixture) -> None:
        fake, late = await open_fake(), FakeVllm(*SCRIPT, max_model_len=2000)
        engine = over(fake, late)
        info = await engine.start()
        assert info.detail.endswith("1 of 2 servers answer")
        assert f"the vLLM server at {late.url} is out of reach" in caplog.text
        caplog.set_level(logging.INFO, logger="respsite.engine")
        async with late:
            await eventually(lambda: f"the vLLM server at {late.url} is there" in caplog.text)
            await fake.kill()
            with pytest.raises(PromptTooLong):
                await collect(engine, ask([0] * 2000))
            assert_whole(await collect(engine, ask(prompt("short"))))
        await engine.aclose()

    @pytest.mark.parametrize("slow", [{"answers": False}, {"fault": "silence"}])
    async def test_a_start_waits_for_no_slow_one(
        self, open_fake: OpenFake, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, slow: Any
    ) -> None:
        monkeypatch.setattr(vllm_pool, "OTHERS_SECONDS", 0.05)
        fake, late = await open_fake(), await open_fake(**slow)
        engine = over(late, fake, connect_seconds=60.0, health_seconds=0.1)
        async with asyncio.timeout(30):
            info = await engine.start()
        assert info.detail.endswith("1 of 2 servers answer")
        assert f"the vLLM server at {late.url} takes longer than others" in caplog.text
        assert_whole(await collect(engine, ask(prompt("short"))))
        late.switches.answers, late.switches.fault = True, None
        await late.kill()  # what it was asked is still without an answer
        await late.start()
        await eventually(lambda: engine.replicas()["serving"] == 2)
        await engine.aclose()

    async def test_a_start_waits_for_the_first_one_however_long_it_takes(
        self, open_fake: OpenFake, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(vllm_pool, "OTHERS_SECONDS", 0.0)
        away, slow = FakeVllm(*SCRIPT), await open_fake(answers=False)
        engine = over(away, slow)
        starting = asyncio.create_task(engine.start())
        await eventually(lambda: slow.waiting == 1)
        slow.switches.refusal = 503, {}
        await slow.kill()
        slow.switches.answers = True
        with pytest.raises(EngineUnavailable, match="out of reach"):
            await starting
        slow.switches.refusal = None
        await slow.start()
        assert (await engine.start()).detail.endswith("1 of 2 servers answer")
        await engine.aclose()


class TestRecovery:
    async def test_it_is_unavailable_while_nobody_is_there(
        self, fake: FakeVllm, engine: VllmServerEngine, caplog: pytest.LogCaptureFixture
    ) -> None:
        generation = engine.generate(ask(prompt("[hang]")))
        await anext(generation)
        await fake.kill()
        with pytest.raises(GenerationCut):
            [chunk async for chunk in generation]
        await eventually(lambda: is_away(engine))
        with pytest.raises(EngineUnavailable, match="No vLLM server is in reach") as away:
            await engine.health()
        assert away.value.retry_after >= 1
        with pytest.raises(EngineUnavailable):
            await collect(engine, ask(prompt("short")))
        await asyncio.sleep(0.1)
        assert 1 <= caplog.text.count("not used until it is better") <= 3
        await fake.start()
        await eventually(lambda: is_healthy(engine))
        assert_whole(await collect(engine, ask(prompt("short"))))

    async def test_it_comes_back_with_another_model_and_stays_out(
        self, fake: FakeVllm, engine: VllmServerEngine, caplog: pytest.LogCaptureFixture
    ) -> None:
        await fake.kill()
        with pytest.raises(EngineUnavailable):
            await collect(engine, ask(prompt("short")))
        fake.switches.model = "other"
        await fake.start()
        await eventually(lambda: f"does not serve MODEL={MODEL}; it serves other" in caplog.text)
        assert not await is_healthy(engine)
        fake.switches.model = MODEL
        await eventually(lambda: is_healthy(engine))

    async def test_it_comes_back_with_another_endpoint(self, fake: FakeVllm, engine: VllmServerEngine) -> None:
        fake.switches.scale_out = False
        with pytest.raises(EngineUnavailable):
            await collect(engine, ask(prompt("short")))
        await eventually(lambda: is_healthy(engine))
        assert_whole(await collect(engine, ask(prompt("short"))))
        assert fake.generations[-1].path == "/v1/completions"

    async def test_one_that_says_it_is_not_well_is_left_alone(self, fake: FakeVllm, engine: VllmServerEngine) -> None:
        fake.switches.is_well, fake.switches.fault = False, "error"
        with pytest.raises(GenerationFailed):
            await collect(engine, ask(prompt("short")))
        await eventually(lambda: is_away(engine))
        fake.switches.is_well, fake.switches.fault = True, None
        await eventually(lambda: is_healthy(engine))
