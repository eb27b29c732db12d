"""Grammars over vLLM's wire: found out at the start, sent, and what a server says against one."""

from dataclasses import replace

import pytest

from engine.backends.vllm.replica import MAX_FAILURES
from engine.errors import (
    EngineOverloaded,
    EngineUnavailable,
    GenerationCut,
    GenerationFailed,
    GrammarCut,
    GrammarRefused,
)
from engine.formats.harmony.format import HarmonyFormat
from engine.sessions import Session
from engine.types import CallRule, GenerationRequest, TurnGrammar, TurnRules
from tests.contracts.engine import collect
from tests.kit import fake_vllm
from tests.unit.engine.vllm_engines import OpenPool

SCRIPT = {"say": "<|channel|>commentary to=functions.f<|message|>{}<|call|>"}


def grammar() -> TurnGrammar:
    """Return one that a model could be held to."""
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
