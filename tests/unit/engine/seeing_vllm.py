"""vLLM servers on the wire whose models see, of three families; what they say is what they have seen."""

from collections.abc import AsyncGenerator, Sequence
from hashlib import sha256

from engine.backends.simulated import SimulatedEngine, cut_into_chunks
from engine.errors import GenerationFailed
from engine.types import FinishReason, GenerationRequest, TokenChunk
from tests.kit.fake_vllm_eyes import Eyes
from tests.unit.engine.rendering_vllm import RenderingVllm
from tests.unit.formats.families import Family
from tests.unit.formats.rendering import Renderer
from tests.unit.formats.seeing import EXPANDED


class SeesAndSays(SimulatedEngine):
    """Says something of its whole prompt, so that any other prompt has another answer; it goes on with what it said."""

    backend = "sees and says"

    def __init__(self, family: Family, chunk_tokens: int) -> None:
        super().__init__(model="model", options={"max_model_len": 10**9})
        self._family, self._chunk_tokens = family, chunk_tokens

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[TokenChunk, None]:
        prompt = list(request.prompt_token_ids)
        start = Renderer(self._family).encode(_STARTS[self._family.name])
        ends = (place + len(start) for place in range(len(prompt)) if prompt[place : place + len(start)] == start)
        begin = max(ends, default=len(prompt))
        said, begun = self._said(prompt[:begin]), prompt[begin:]
        rest = said[len(begun) :]
        if said[: len(begun)] != begun:
            raise GenerationFailed("It did not say that.")
        limit = request.sampling.max_output_tokens or len(rest)
        for chunk in cut_into_chunks(
            rest[:limit],
            chunk_tokens=self._chunk_tokens,
            finish_reason=FinishReason.STOP if len(rest) <= limit else FinishReason.LENGTH,
            cached_tokens=0,
        ):
            await self._pause()
            yield chunk

    def _said(self, prompt: Sequence[int]) -> list[int]:
        seen = sha256(repr(list(prompt)).encode()).hexdigest()
        return [*f"I have seen {seen}.".encode(), self._family.ids[self._family.end]]


_STARTS = {  # what a prompt ends with
    "idefics3": "<|im_start|>assistant:",
    "qwen2_5_vl": "<|im_start|>assistant\n",
    "gemma3": "<start_of_turn>model\n",
}


class SeeingVllm(RenderingVllm):
    """A server of a family that sees."""

    def __init__(self, family: Family, *, chunk_tokens: int = 1, **eyes: int) -> None:
        super().__init__({"say": "nothing"}, family=family)
        token, tokens = EXPANDED[family.name]
        self.eyes = Eyes(family.ids[token], Renderer(family).encode(tokens), **eyes)
        self.switches.eyes = self.eyes
        self.engine = SeesAndSays(family, chunk_tokens)  # type: ignore[assignment]
