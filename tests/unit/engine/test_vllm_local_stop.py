"""An engine core that ends a generation: what was sampled before is told first, also where both come together.

One that is told to stop aborts what it does: no client has cancelled that, and it can go on elsewhere.
"""

from collections.abc import AsyncGenerator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from engine.backends.vllm import local as vllm_local
from engine.backends.vllm.local import VllmEngine
from engine.errors import EngineError, EngineUnavailable, GenerationCut, GenerationFailed, GrammarBroken
from engine.types import GenerationRequest, SamplingOptions, TokenChunk, TurnGrammar, TurnRules


class EndingLlm:
    """Stands for an AsyncLLM whose engine core ends the generation behind these tokens; no vLLM is needed.

    By itself it ends it with "abort", as it does at SIGTERM.
    """

    errored = False
    output_processor = SimpleNamespace(external_req_ids={}, request_states={})  # it knows no versions of weights

    def __init__(self, *deltas: Sequence[int], finish: str = "abort") -> None:
        self._deltas, self._finish = deltas, finish

    async def generate(self, *_: object, **__: object) -> AsyncGenerator[Any, None]:
        for number, tokens in enumerate(self._deltas, 1):
            logprobs = [{token: SimpleNamespace(logprob=-1.0, rank=1)} for token in tokens]
            completion = SimpleNamespace(
                token_ids=tokens,
                finish_reason=self._finish if number == len(self._deltas) else None,
                stop_reason=None,
                logprobs=logprobs,
            )
            yield SimpleNamespace(
                outputs=[completion], num_cached_tokens=0, prompt_logprobs=None, kv_transfer_params=None
            )


@pytest.fixture(autouse=True)
def without_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("rendered", "sampling_params"):
        monkeypatch.setattr(vllm_local, name, lambda *_, **__: None)


async def told_until_it_raises(llm: EndingLlm, **fields: Any) -> tuple[list[TokenChunk], EngineError]:
    """Return what an engine tells of a generation, and what it raises then."""
    engine = VllmEngine(model="m")
    engine._kept.llm, engine._max_model_len = llm, 100
    chunks = []

    async def read() -> None:
        async for chunk in engine.generate(GenerationRequest(request_id="r", prompt_token_ids=[1], **fields)):
            chunks.append(chunk)

    with pytest.raises(EngineError) as raised:
        await read()
    await engine.aclose()
    assert all(chunk.finish_reason is None for chunk in chunks)
    return chunks, raised.value


@pytest.mark.parametrize(
    ("deltas", "said", "error"),
    [
        ([[1, 2], [3], []], [1, 2, 3], GenerationCut),
        ([[1, 2], [3]], [1, 2, 3], GenerationCut),
        ([[]], [], EngineUnavailable),
    ],
)
async def test_what_it_aborts_is_cut_and_never_ended(
    deltas: list[list[int]], said: list[int], error: type[EngineUnavailable]
) -> None:
    chunks, raised = await told_until_it_raises(EndingLlm(*deltas))
    assert type(raised) is error
    assert [token for chunk in chunks for token in chunk.token_ids] == said


@pytest.mark.parametrize("deltas", [[[1], [2], [3]], [[1, 2], [3]], [[1], [2, 3]], [[1, 2, 3]]])
async def test_a_token_that_the_grammar_rejects_takes_none_with_it(deltas: list[list[int]]) -> None:
    """vLLM adds the error to the tokens that nobody has read yet; the last of them is the rejected one."""
    grammar = TurnGrammar(rules=TurnRules(), structural_tag="{}")
    sampling = SamplingOptions(top_logprobs=0)
    chunks, raised = await told_until_it_raises(EndingLlm(*deltas, finish="error"), grammar=grammar, sampling=sampling)
    assert type(raised) is GrammarBroken
    assert [token for chunk in chunks for token in chunk.token_ids] == [1, 2]
    assert [entry.token_id for chunk in chunks for entry in chunk.logprobs or ()] == [1, 2]


@pytest.mark.parametrize("finish", ["error", "an end of another version"])
async def test_a_failure_takes_no_token_with_it(finish: str) -> None:
    chunks, raised = await told_until_it_raises(EndingLlm([1], [2, 3], finish=finish))
    assert type(raised) is GenerationFailed
    assert [token for chunk in chunks for token in chunk.token_ids] == [1, 2, 3]
