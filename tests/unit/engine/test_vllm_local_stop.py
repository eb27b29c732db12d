"""An engine core that is told to stop aborts what it does: no client has cancelled that, and it can go on elsewhere."""

from collections.abc import AsyncGenerator, Sequence
from typing import Any

import pytest

from engine.backends.vllm import local as vllm_local
from engine.backends.vllm.local import VllmEngine
from engine.errors import EngineUnavailable, GenerationCut
from engine.types import GenerationRequest
from tests.unit.engine.test_vllm_local_pictures import NO_VERSIONS, output_of


class StoppingLlm:
    """Stands for an AsyncLLM whose engine core was sent SIGTERM behind these tokens; no vLLM is needed."""

    errored = False
    output_processor = NO_VERSIONS

    def __init__(self, *deltas: Sequence[int]) -> None:
        self._deltas = deltas

    async def generate(self, *_: object, **__: object) -> AsyncGenerator[Any, None]:
        for number, tokens in enumerate(self._deltas, 1):
            finish = "abort" if number == len(self._deltas) else None
            yield output_of(tokens, finish)


@pytest.mark.parametrize(
    ("deltas", "said", "error"),
    [
        ([[1, 2], [3], []], [1, 2, 3], GenerationCut),
        ([[1, 2], [3]], [1, 2, 3], GenerationCut),
        ([[]], [], EngineUnavailable),
    ],
)
async def test_what_it_aborts_is_cut_and_never_ended(
    deltas: list[list[int]], said: list[int], error: type[EngineUnavailable], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("rendered", "sampling_params"):
        monkeypatch.setattr(vllm_local, name, lambda *_, **__: None)
    engine = VllmEngine(model="m")
    engine._kept.llm, engine._max_model_len = StoppingLlm(*deltas), 100
    chunks = []

    async def read() -> None:
        async for chunk in engine.generate(GenerationRequest(request_id="r", prompt_token_ids=[1])):
            chunks.append(chunk)

    with pytest.raises(EngineUnavailable) as stopped:
        await read()
    await engine.aclose()
    assert type(stopped.value) is error
    assert [token for chunk in chunks for token in chunk.token_ids] == said
    assert all(chunk.finish_reason is None for chunk in chunks)
