"""The vllm-server engine over one server, which is asked and read, and over several, which go and come back."""

import asyncio
import logging
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from engine.backends import client as server_client
from engine.backends.base import BaseEngine
from engine.backends.vllm import pool as vllm_pool
from engine.backends.vllm.server import VllmServerEngine
from engine.errors import (
    EngineConfigurationError,
    EngineOverloaded,
    EngineUnavailable,
    GenerationCut,
    GenerationFailed,
    PromptTooLong,
)
from engine.formats.harmony.encoding import STOP_TOKENS, decode_tokens, encode_harmony
from engine.types import FinishReason, GenerationRequest, SamplingOptions, Session, TokenLogprob
from tests.contracts.engine import EngineContract, ask, assert_whole, collect, joined
from tests.kit.fake_vllm import MODEL, FakeVllm
from tests.kit.server import free_port
from tests.kit.waiting import eventually
from tests.unit.engine.vllm_engines import (
    HELLO,
    SCRIPT,
    OpenEngine,
    OpenFake,
    OpenPool,
    is_away,
    is_healthy,
    over,
    prompt,
)


class TestContract(EngineContract):
    @pytest.fixture(params=[True, False], ids=["/inference/v1/generate", "/v1/completions"])
    async def fake(self, request: pytest.FixtureRequest, open_fake: OpenFake) -> FakeVllm:
        return await open_fake(scale_out=request.param)

    @pytest.fixture
    def new_engine(self, fake: FakeVllm) -> VllmServerEngine:
        self.fake = fake
        return over(fake)

    def short_prompt(self) -> list[int]:
        return prompt("short")

    def long_prompt(self) -> list[int]:
        return prompt("long")

    async def wait_until_idle(self, engine: BaseEngine) -> None:
        await eventually(lambda: self.fake.engine.running == 0)


class TestWhatItSays:
    async def test_of_itself(self, open_fake: OpenFake, vllm_over: OpenEngine) -> None:
        first, second = await open_fake(), await open_fake(scale_out=False, takes_priorities=False, max_model_len=3000)
        engine = over(first, second)
        info = await engine.start()
        await engine.aclose()
        assert (info.backend, info.model, info.max_model_len) == ("vllm-server", MODEL, 3000)
        assert info.detail == (
            f"over /inference/v1/generate at {first.url}; /v1/completions (takes no priorities) at {second.url}"
            ", 2 of 2 servers answer"
        )
        assert engine.supports_priority

    async def test_an_adapter_has_the_context_of_its_model(self, fake: FakeVllm) -> None:
        engine = VllmServerEngine(model="an-adapter", options={"urls": [fake.url]})
        assert (await engine.start()).max_model_len == fake.switches.max_model_len
        assert_whole(await collect(engine, ask(prompt("short"))))
        await engine.aclose()

    @pytest.mark.parametrize("scale_out", [True, False])
    async def test_everything_in_a_request_reaches_the_server(self, pool: OpenPool, scale_out: bool) -> None:
        [fake], engine = await pool(1, scale_out=scale_out, api_key="the key", options={"api_key": "the key"})
        plain = {
            **{"temperature": 0.5, "top_p": 0.25, "top_k": 3, "min_p": 0.1, "presence_penalty": 0.75, "seed": 7},
            **{"frequency_penalty": -0.5, "repetition_penalty": 1.25, "ignore_eos": True},
        }
        asked_for = SamplingOptions(
            max_output_tokens=50, top_logprobs=2, stop_token_ids=(7, 8), logit_bias={"5": -3.0}, **plain
        )
        request = GenerationRequest(
            request_id="resp_1", prompt_token_ids=prompt("short"), sampling=asked_for, priority=-3, cache_salt="salt"
        )
        await collect(engine, request)
        (asked,) = fake.generations
        sampling = {**plain, "max_tokens": 50, "stop_token_ids": [7, 8], "logprobs": 2, "logit_bias": {"5": -3.0}}
        if scale_out:
            own_sampling = {**sampling, "logprobs": 3, "detokenize": False}  # one more: the sampled token takes a place
            own: dict[str, Any] = {"token_ids": prompt("short"), "sampling_params": own_sampling}
        else:
            ids = {"return_token_ids": True, "return_tokens_as_token_ids": True}
            own = {"prompt": prompt("short"), **sampling, **ids}
        assert asked.body == {
            "request_id": "resp_1",
            "model": MODEL,
            "stream": True,
            "stream_options": {"include_usage": True},
            "cache_salt": "salt",
            "priority": -3,
            **own,
        }

    async def test_what_is_not_asked_for_is_left_to_the_server(self, fake: FakeVllm, engine: VllmServerEngine) -> None:
        await collect(engine, GenerationRequest(request_id="resp_1", prompt_token_ids=prompt("short")))
        (asked,) = fake.generations
        assert set(asked.body) == {"request_id", "model", "stream", "stream_options", "token_ids", "sampling_params"}
        room = fake.switches.max_model_len - len(prompt("short"))
        assert asked.body["sampling_params"] == {"max_tokens": room, "stop_token_ids": [], "detokenize": False}

    @pytest.mark.parametrize("scale_out", [True, False])
    async def test_a_server_that_refuses_priorities_gets_none(self, pool: OpenPool, scale_out: bool) -> None:
        [fake], engine = await pool(1, takes_priorities=False, scale_out=scale_out)
        assert not engine.supports_priority
        await collect(engine, GenerationRequest(request_id="r", prompt_token_ids=prompt("short"), priority=5))
        assert "priority" not in fake.generations[-1].body

    async def test_a_long_prompt_is_sent_without_a_warning(self, pool: OpenPool) -> None:
        [fake], engine = await pool(1, max_model_len=500_000)
        long = [200_000] * 300_000
        assert_whole(await collect(engine, ask([*long, *prompt("short")])))
        assert fake.generations[-1].body["token_ids"][:300_000] == long


class TestWhatItReads:
    @pytest.mark.parametrize("scale_out", [True, False])
    async def test_tokens_log_probabilities_and_cached_tokens(
        self, open_fake: OpenFake, vllm_over: OpenEngine, scale_out: bool
    ) -> None:
        fake = await open_fake({"tokens": [11, 12, 13, 14, 15], "chunk_tokens": 2, "cached_tokens": 3},
                               scale_out=scale_out)  # fmt: skip
        engine = await vllm_over(fake)
        sampling = SamplingOptions(top_logprobs=2)
        request = GenerationRequest(request_id="r", prompt_token_ids=prompt("x"), sampling=sampling)
        chunks = await collect(engine, request)
        assert [list(chunk.token_ids) for chunk in chunks] == [[11, 12], [13, 14], [15]]
        assert [chunk.cached_tokens for chunk in chunks] == [None, None, 3]
        assert [each for chunk in chunks for each in chunk.logprobs or ()] == [
            TokenLogprob(token, -0.25, ((token, -0.25), (token - 1, -1.25))) for token in range(11, 16)
        ]

    async def test_usage_may_be_missing(self, open_fake: OpenFake, vllm_over: OpenEngine) -> None:
        engine = await vllm_over(await open_fake(usage=False))
        chunks = await collect(engine, ask(prompt("short")))
        assert_whole(chunks)
        assert chunks[-1].cached_tokens is None

    async def test_the_end_may_be_missing(
        self, fake: FakeVllm, engine: VllmServerEngine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(server_client, "TAIL_SECONDS", 0.05)
        fake.switches.fault = "no_end"
        (chunk,) = await collect(engine, ask(prompt("short")))
        assert (chunk.token_ids, chunk.finish_reason) == ([1], FinishReason.STOP)
        await eventually(lambda: fake.engine.running == 0)

    async def test_what_the_server_aborts_can_go_on(self, fake: FakeVllm, engine: VllmServerEngine) -> None:
        """As it does where it is told to stop."""
        fake.switches.fault, fake.switches.fault_after = "abort", 2
        generation = engine.generate(ask(prompt("short")))
        said = [token for _ in range(2) for token in (await anext(generation)).token_ids]
        with pytest.raises(GenerationCut, match="aborted"):
            await anext(generation)
        assert said == encode_harmony(HELLO)[:2]
        fake.switches.fault = None
        assert joined(await collect(engine, ask([*prompt("short"), *said]))) == encode_harmony(HELLO)[2:]

    async def test_connections_are_used_again(self, fake: FakeVllm, engine: VllmServerEngine) -> None:
        for _ in range(5):
            await collect(engine, ask(prompt("short")))
        assert fake.connections == 1

    async def test_the_server_waits_for_a_slow_reader(self, pool: OpenPool) -> None:
        [fake], engine = await pool(1, {"tokens": [5] * 3000}, padding=16_384)
        generation = engine.generate(ask(prompt("x")))
        await anext(generation)
        (asked,) = fake.generations
        before = -1
        while asked.sent > before:  # until it stands still
            before = asked.sent
            await asyncio.sleep(0.1)
        assert asked.sent < 2000
        rest = [chunk async for chunk in generation]
        assert 1 + len(joined(rest)) == 3000


class TestStart:
    @pytest.mark.parametrize(
        ("switches", "message"),
        [
            ({"api_key": "secret"}, "refuses our key with 401: ENGINE_API_KEY is to be what it was given as --api-key"),
            ({"model": "other"}, f"does not serve MODEL={MODEL}; it serves other, an-adapter"),
            ({"scale_out": False, "knows_token_ids": False}, "start it with --tokens-only or --enable-scale-out"),
            ({"refusal": (400, {})}, "refuses to generate a token: 400: The engine is currently busy"),
            ({"refusal": (403, {})}, "no endpoint that gives tokens: start it with --tokens-only or --enable-scale-o"),
            ({"max_model_len": None}, "does not say max_model_len"),
        ],
    )
    async def test_what_cannot_work_is_said(self, open_fake: OpenFake, switches: Any, message: str) -> None:
        fake, good = await open_fake(**switches), await open_fake()
        for engine in (over(fake), over(good, fake)):
            with pytest.raises(EngineConfigurationError, match=rf"^the vLLM server at {fake.url} .*{message}.*\.$"):
                await engine.start()
            await engine.aclose()

    @pytest.mark.parametrize("refusal", [(500, {}), (503, {}), (429, {})])
    async def test_what_may_pass_is_tried_again(self, open_fake: OpenFake, refusal: Any) -> None:
        fake = await open_fake(refusal=refusal)
        engine = over(fake)
        for _ in range(2):
            with pytest.raises(EngineUnavailable, match=f"gives no token over .*{refusal[0]}"):
                await engine.start()
        fake.switches.refusal = None
        await engine.start()
        await engine.aclose()

    async def test_nobody_is_there_and_then_somebody_is(self) -> None:
        absent = FakeVllm(*SCRIPT)
        engine = over(absent)
        for _ in range(2):
            with pytest.raises(EngineUnavailable, match="out of reach"):
                await engine.start()
        async with absent:
            await engine.start()
            assert_whole(await collect(engine, ask(prompt("short"))))
            await engine.aclose()

    @pytest.mark.parametrize(
        ("switches", "options", "message"),
        [
            ({"answers": False}, {"connect_seconds": 0.1}, "no answer in time"),
            ({"fault": "silence"}, {"silence_seconds": 0.1}, r"generated no token within 0.1 s"),
            *(({"fault": fault}, {}, ".") for fault in ("die", "cut", "no_http", "garbage", "no_reason")),
        ],
        ids=str,
    )
    async def test_one_that_generates_nothing_good(
        self, open_fake: OpenFake, switches: Any, options: Any, message: str
    ) -> None:
        engine = over(await open_fake(**switches), **options)
        with pytest.raises(EngineUnavailable, match=message):
            await engine.start()
        await engine.aclose()

    @pytest.mark.parametrize(
        "answer",
        [b"", b"hello\r\n", b"HTTP/1.1 404 No\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]"],
        ids=["nothing", "no HTTP", "404", "no list of models"],
    )
    async def test_something_that_is_not_a_vllm(self, answer: bytes) -> None:
        async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readline()
            writer.write(answer)
            writer.close()

        async with await asyncio.start_server(greet, "127.0.0.1", port := free_port()):
            engine = VllmServerEngine(model=MODEL, options={"urls": [f"http://127.0.0.1:{port}"]})
            with pytest.raises(EngineUnavailable):
                await engine.start()
            await engine.aclose()

    @pytest.mark.parametrize("switches", [{"answers": False}, {"fault": "silence"}])
    async def test_aclose_ends_a_start(self, open_fake: OpenFake, switches: Any) -> None:
        fake = await open_fake(**switches)
        engine = over(fake)
        starting = asyncio.create_task(engine.start())
        await eventually(lambda: fake.connections == 1)
        await engine.aclose()
        async with asyncio.timeout(1):
            with pytest.raises(EngineUnavailable):
                await starting
        await engine.aclose()

    async def test_cancelling_a_start_leaves_nothing(self, open_fake: OpenFake) -> None:
        fake = await open_fake(fault="silence")
        engine = over(fake)
        starting = asyncio.create_task(engine.start())
        await eventually(lambda: len(fake.asked) == 1)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        await eventually(lambda: fake.connections == 0)
        await engine.aclose()


class TestOptions:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({}, "needs urls to be a list of URLs like http://127.0.0.1:8001, not None"),
            ({"urls": []}, "needs urls"),
            ({"urls": "http://x"}, "needs urls"),
            ({"urls": ["ftp://x"]}, "needs urls"),
            ({"urls": ["http://"]}, "needs urls"),
            ({"urls": ["http://x:99999"]}, "needs urls"),
            ({"urls": ["http://x?y=1"]}, "needs urls"),
            ({"urls": [1]}, "needs urls"),
            ({"urls": ["http://x"], "api_key": 1}, "needs api_key to be a string"),
            ({"urls": ["http://x"], "connect_seconds": 0}, "needs connect_seconds to be a number above 0"),
            ({"urls": ["http://x"], "silence_seconds": "1"}, "needs silence_seconds to be a number"),
            ({"urls": ["http://x"], "kv_transfer": "on"}, "needs kv_transfer to be true or false"),
            ({"urls": ["http://x"], "max_connections": 0}, "needs max_connections to be a whole number of 1 or more"),
            ({"urls": ["http://x"], "speed": 1}, "does not know 'speed'; it knows api_key, connect_seconds, "),
        ],
    )
    def test_wrong_ones_are_said(self, options: dict[str, object], message: str) -> None:
        with pytest.raises(EngineConfigurationError, match=f"^The vllm-server engine {message}"):
            VllmServerEngine(model="m", options=options).check()

    @pytest.mark.parametrize(
        "wrong",
        [{"urls": ["http://user:hidden@x"]}, *({"api_key": key} for key in ("hidden\nkey", "hidden kéy"))],
        ids=["in the URL", "two lines", "no ASCII"],
    )
    def test_a_key_belongs_into_its_setting_and_a_header_can_carry_it(self, wrong: dict[str, object]) -> None:
        with pytest.raises(EngineConfigurationError, match="ENGINE_API_KEY") as said:
            VllmServerEngine(model="m", options={"urls": ["http://x"], **wrong}).check()
        assert "hidden" not in str(said.value)

    async def test_a_server_named_twice_is_one(self, fake: FakeVllm) -> None:
        engine = VllmServerEngine(model=MODEL, options={"urls": [fake.url, f"{fake.url}/"]})
        assert (await engine.start()).detail == f"over /inference/v1/generate at {fake.url}"
        assert decode_tokens(joined(await collect(engine, ask(prompt("short"))))) == HELLO
        await engine.aclose()


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

    async def test_attempts_at_one_task_share_a_server(self, pool: OpenPool) -> None:
        fakes, engine = await pool(3, SHORT, *SCRIPT)
        for number in range(12):
            await collect(engine, replace(affine(f"attempt-{number}"), kin="a task"))
        assert sorted(len(fake.generations) for fake in fakes) == [0, 0, 12]

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
