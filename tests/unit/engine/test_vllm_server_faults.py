"""What fails between the vllm-server engine and a vLLM server, who leaves, and what is said against a grammar."""

import asyncio
from dataclasses import replace

import pytest

from engine.backends import client
from engine.backends.base import BaseEngine
from engine.backends.vllm.replica import MAX_FAILURES
from engine.backends.vllm.server import VllmServerEngine
from engine.errors import (
    EngineError,
    EngineOverloaded,
    EngineUnavailable,
    GenerationCut,
    GenerationFailed,
    GrammarCut,
    GrammarRefused,
    PromptTooLong,
)
from engine.formats.harmony.encoding import encode_harmony
from engine.formats.harmony.format import HarmonyFormat
from engine.types import CallRule, GenerationRequest, Session, TurnGrammar, TurnRules
from tests.contracts.engine import ask, assert_whole, collect
from tests.kit import fake_vllm
from tests.kit.fake_vllm import FakeVllm
from tests.kit.waiting import eventually
from tests.unit.engine.vllm_engines import LONG, OpenEngine, OpenFake, OpenPool, is_healthy, over, prompt

FAILED, AWAY = GenerationFailed, EngineUnavailable


async def assert_it_passes(
    engine: BaseEngine, fake: FakeVllm, fault: str, after: int, expected: type[EngineError]
) -> None:
    """Assert that a fault ends one generation with the expected error, and that the next one is whole."""
    fake.switches.fault, fake.switches.fault_after = fault, after
    got: list[int] = []

    async def read() -> None:
        async for chunk in engine.generate(ask(prompt("long"))):
            got.extend(chunk.token_ids)

    with pytest.raises(expected) as failed:
        await read()
    assert got == encode_harmony(LONG)[: len(got)]
    assert len(got) <= after
    assert len(str(failed.value)) < 700
    await eventually(lambda: fake.engine.running == 0)
    fake.switches.fault = None
    await eventually(lambda: is_healthy(engine))
    assert_whole(await collect(engine, ask(prompt("short"))))


class TestWhatFails:
    @pytest.mark.parametrize("after", [0, 3])
    @pytest.mark.parametrize(
        ("fault", "expected"),
        [
            ("die", AWAY),
            ("cut", AWAY),
            ("garbage", FAILED),
            ("number", FAILED),
            ("flood", FAILED),
            ("error", FAILED),
            ("no_reason", FAILED),
            ("odd_reason", FAILED),
        ],
    )
    @pytest.mark.parametrize("scale_out", [True, False])
    async def test_one_generation_fails_and_the_next_works(
        self,
        open_fake: OpenFake,
        vllm_over: OpenEngine,
        monkeypatch: pytest.MonkeyPatch,
        fault: str,
        expected: type[EngineError],
        after: int,
        scale_out: bool,
    ) -> None:
        monkeypatch.setattr(client, "MAX_LINE", 256 * 1024)
        fake = await open_fake(scale_out=scale_out)
        expected = GenerationCut if after and (expected is AWAY or fault == "error") else expected
        await assert_it_passes(await vllm_over(fake), fake, fault, after, expected)

    @pytest.mark.parametrize("after", [0, 3])
    @pytest.mark.parametrize("fault", ["silence", "no_http"])
    async def test_silence_is_bounded(self, fake: FakeVllm, vllm_over: OpenEngine, fault: str, after: int) -> None:
        """Also where aiohttp waits for ever, after bytes in an answer that are not HTTP."""
        engine = await vllm_over(fake, silence_seconds=0.5)
        expected = GenerationCut if after else FAILED
        await assert_it_passes(engine, fake, fault, after, expected if fault == "silence" else EngineError)

    @pytest.mark.parametrize(
        ("status", "headers", "expected", "retry_after"),
        [
            (429, {"Retry-After": "7"}, EngineOverloaded, 7),
            (429, {}, EngineOverloaded, 1),
            (503, {"Retry-After": "30"}, EngineOverloaded, 30),
            (503, {"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}, EngineOverloaded, 1),
            (503, {"Retry-After": "9" * 5000}, EngineOverloaded, 3600),
            (502, {}, EngineUnavailable, 5),
            (504, {"Retry-After": "9"}, EngineUnavailable, 9),
            (500, {}, GenerationFailed, None),
            (400, {}, GenerationFailed, None),
            (307, {"Location": "http://127.0.0.1:9/"}, GenerationFailed, None),
        ],
    )
    async def test_refusals(
        self,
        fake: FakeVllm,
        engine: VllmServerEngine,
        status: int,
        headers: dict[str, str],
        expected: type[EngineError],
        retry_after: int | None,
    ) -> None:
        fake.switches.refusal = status, headers
        with pytest.raises(expected, match=f"answered {status}: The engine is currently busy") as refused:
            await collect(engine, ask(prompt("short")))
        assert getattr(refused.value, "retry_after", None) == retry_after
        fake.switches.refusal = None
        await engine.health()
        assert_whole(await collect(engine, ask(prompt("short"))))

    async def test_a_full_queue_that_is_told_in_the_stream(self, fake: FakeVllm, engine: VllmServerEngine) -> None:
        fake.switches.fault = "full"
        with pytest.raises(EngineOverloaded):
            await collect(engine, ask(prompt("short")))
        fake.switches.fault_after = 2
        with pytest.raises(GenerationCut):
            await collect(engine, ask(prompt("short")))

    async def test_a_context_that_became_shorter_without_notice(self, fake: FakeVllm, engine: VllmServerEngine) -> None:
        fake.switches.max_model_len = 5
        with pytest.raises(PromptTooLong) as refused:
            await collect(engine, ask(prompt("short")))
        assert refused.value.prompt_tokens == len(prompt("short"))

    async def test_more_than_it_may_run_is_refused(self, fake: FakeVllm, vllm_over: OpenEngine) -> None:
        engine = await vllm_over(fake, max_connections=2)
        running = [engine.generate(ask(prompt("long"))) for _ in range(2)]
        for generation in running:
            await anext(generation)
        with pytest.raises(EngineOverloaded):
            await collect(engine, ask(prompt("short")))
        await running[0].aclose()
        assert_whole(await collect(engine, ask(prompt("short"))))
        await running[1].aclose()

    async def test_a_key_that_changed_is_noticed(
        self, fake: FakeVllm, engine: VllmServerEngine, caplog: pytest.LogCaptureFixture
    ) -> None:
        fake.switches.api_key = "another"
        with pytest.raises(EngineUnavailable):
            await collect(engine, ask(prompt("short")))
        await eventually(lambda: "ENGINE_API_KEY" in caplog.text)
        assert not await is_healthy(engine)
        fake.switches.api_key = ""
        await eventually(lambda: is_healthy(engine))


class TestLeaving:
    """Before the server has answered; the contract has those who leave while it streams."""

    async def test_a_cancel_is_seen_by_the_server_at_once(self, fake: FakeVllm, engine: VllmServerEngine) -> None:
        fake.switches.answers = False
        asking = asyncio.create_task(collect(engine, ask(prompt("short"))))
        await eventually(lambda: fake.waiting == 1)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await eventually(lambda: fake.waiting == 0)

    async def test_aclose_ends_who_waits(self, fake: FakeVllm, engine: VllmServerEngine) -> None:
        fake.switches.answers = False
        asking = [asyncio.create_task(collect(engine, ask(prompt("short")))) for _ in range(3)]
        await eventually(lambda: fake.waiting == 3)
        await engine.aclose()
        async with asyncio.timeout(1):
            for each in asking:
                with pytest.raises(EngineUnavailable, match="closed"):
                    await each
        await eventually(lambda: fake.waiting == 0)

    async def test_nothing_is_left_behind(self, open_fake: OpenFake) -> None:
        before = asyncio.all_tasks()
        fake = await open_fake()
        engine = over(fake)
        await engine.start()
        await collect(engine, ask(prompt("short")))
        await engine.aclose()
        await fake.kill()
        await eventually(lambda: asyncio.all_tasks() == before)


SCRIPT = {"say": "<|channel|>commentary to=functions.f<|message|>{}<|call|>"}


def grammar() -> TurnGrammar:
    made = HarmonyFormat().grammar(TurnRules(calls=(CallRule("f"),), must_call=True))
    assert made is not None
    return made


def asked(*, held: bool = True) -> GenerationRequest:
    return GenerationRequest(request_id="1", prompt_token_ids=[1], grammar=grammar() if held else None)


@pytest.mark.parametrize("scale_out", [True, False])
async def test_a_grammar_is_sent_with_the_sampling(pool: OpenPool, scale_out: bool) -> None:
    [vllm], engine = await pool(1, SCRIPT, scale_out=scale_out)
    assert engine.supports_grammar
    assert await collect(engine, asked())
    body = vllm.asked[-1].body
    sent = body["sampling_params"] if scale_out else body
    assert sent["structured_outputs"] == {"structural_tag": grammar().structural_tag}


async def test_a_server_without_a_tokenizer_enforces_nothing(pool: OpenPool) -> None:
    _, engine = await pool(1, SCRIPT, takes_grammars=False)
    assert not engine.supports_grammar
    assert await collect(engine, asked(held=False))
    with pytest.raises(EngineUnavailable):
        await collect(engine, asked())


async def test_what_a_server_refuses_is_refused_and_asked_about_once(pool: OpenPool) -> None:
    [vllm], engine = await pool(1, SCRIPT)
    vllm.switches.grammar_refusal = "Invalid structural tag specification."
    for _ in range(2):
        with pytest.raises(GrammarRefused, match="Invalid structural tag"):
            await engine.check_grammar(grammar())
        before = len(vllm.asked)
    with pytest.raises(GrammarRefused):
        await collect(engine, asked())
    assert len(vllm.asked) == before + 1


@pytest.mark.parametrize("status", [500, 502, 503])
async def test_a_fault_of_the_servers_is_not_remembered_against_a_grammar(pool: OpenPool, status: int) -> None:
    """A vLLM whose engine core has died answers 500: once it is back, it takes what it could not take then."""
    [vllm], engine = await pool(1, SCRIPT)
    vllm.switches.refusal = status, {}
    with pytest.raises((EngineUnavailable, EngineOverloaded)):
        await engine.check_grammar(grammar())
    vllm.switches.refusal = None
    await engine.check_grammar(grammar())


async def test_what_clients_read_of_a_refusal_names_no_server(pool: OpenPool) -> None:
    [vllm], engine = await pool(1, SCRIPT)
    vllm.switches.refusal = 400, {}
    with pytest.raises(GrammarRefused) as refused:
        await engine.check_grammar(grammar())
    assert "currently busy" in refused.value.reason
    assert vllm.url.removeprefix("http://") not in refused.value.reason


async def test_a_grammar_that_was_taken_is_not_asked_about_again(pool: OpenPool) -> None:
    [vllm], engine = await pool(1, SCRIPT)
    await engine.check_grammar(grammar())
    before = len(vllm.asked)
    await engine.check_grammar(grammar())
    assert len(vllm.asked) == before
    assert vllm.asked[-1].body["sampling_params"]["max_tokens"] == 1
    vast = TurnGrammar(TurnRules(), "x" * 2_000_000)
    with pytest.raises(GrammarRefused, match="characters"):
        await engine.check_grammar(vast)


@pytest.fixture
def rejected(monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the name of a fault: what vLLM says of a token that a grammar rejects, and of a fault of its own."""
    said = fake_vllm.error("Internal server error", 500, kind="InternalServerError")
    monkeypatch.setitem(fake_vllm.SAID, "rejected", said)
    return "rejected"


@pytest.mark.parametrize(("held", "problem"), [(True, GrammarCut), (False, GenerationCut)])
async def test_a_token_that_the_grammar_rejects_is_told_with_what_to_do(
    pool: OpenPool, rejected: str, held: bool, problem: type[GenerationCut]
) -> None:
    _, engine = await pool(1, SCRIPT, fault=rejected, fault_after=2)
    with pytest.raises(problem) as failed:
        await collect(engine, asked(held=held))
    assert type(failed.value) is problem
    assert ("grammar rejected tokens" in str(failed.value)) == held


async def test_one_that_is_rejected_at_once_is_counted_against_no_server(pool: OpenPool, rejected: str) -> None:
    (one, another), engine = await pool(2, SCRIPT)
    for each in (one, another):
        each.switches.fault = rejected
    for _ in range(2 * MAX_FAILURES):
        with pytest.raises(GenerationFailed, match="grammar rejected tokens"):
            await collect(engine, asked())
    assert engine.replicas()["serving"] == 2


async def test_what_broke_under_a_grammar_goes_on_at_another_server(pool: OpenPool, rejected: str) -> None:
    (one, another), engine = await pool(2, SCRIPT)
    of_a_chain = replace(asked(), session=Session(id="a chain"))
    await collect(engine, of_a_chain)
    home, other = (one, another) if one.generations else (another, one)
    home.switches.fault, home.switches.fault_after = rejected, 2
    with pytest.raises(GrammarCut) as cut:
        await collect(engine, of_a_chain)
    assert cut.value.at == home.url
    await collect(engine, replace(of_a_chain, avoid=cut.value.at))
    assert len(other.generations) == 1
    assert engine.replicas()["serving"] == 2, "it may be the grammar's fault"
    await other.kill()
    with pytest.raises(GrammarCut):
        await collect(engine, replace(of_a_chain, avoid=cut.value.at))
