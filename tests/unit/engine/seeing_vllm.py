"""vLLM servers on the wire whose models see, of three families: what they say is what they have seen. And what a run
asks an engine of a conversation with pictures (`Chat`).
"""

from collections.abc import AsyncGenerator, Sequence
from hashlib import sha256
from itertools import count

from engine.backends.simulated import SimulatedEngine, cut_into_chunks
from engine.errors import GenerationFailed
from engine.formats.base import Body, ModelFormat, as_tokens
from engine.types import FinishReason, GenerationRequest, SamplingOptions, Session, TokenChunk
from tests.contracts.engine import joined
from tests.kit.fake_vllm_eyes import Eyes
from tests.kit.gallery import Gallery
from tests.unit.engine.rendering_vllm import RenderingVllm
from tests.unit.formats.families import Family
from tests.unit.formats.rendering import Renderer
from tests.unit.formats.seeing import EXPANDED

_numbers = count(1)


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
        seen = sha256(repr(list(prompt[:begin])).encode()).hexdigest()
        said = [*f"I have seen {seen}.".encode(), self._family.ids[self._family.end]]
        begun = prompt[begin:]
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


_STARTS = {  # what a prompt ends with
    "idefics3": "<|im_start|>assistant:",
    "qwen2_5_vl": "<|im_start|>assistant\n",
    "gemma3": "<start_of_turn>model\n",
}


class SeeingVllm(RenderingVllm):
    def __init__(self, family: Family, *, chunk_tokens: int = 1, **eyes: int) -> None:
        super().__init__({"say": "nothing"}, family=family)
        token, tokens = EXPANDED[family.name]
        self.eyes = Eyes(family.ids[token], Renderer(family).encode(tokens), **eyes)
        self.switches.eyes = self.eyes
        self.engine = SeesAndSays(family, chunk_tokens)  # type: ignore[assignment]


class Chat:
    """A conversation with pictures: what a response's run does, as far as an engine sees it."""

    def __init__(self, model_format: ModelFormat, gallery: Gallery) -> None:
        self.format = model_format
        self._gallery = gallery
        self._draft = as_tokens(self.format.frame(instructions="Look.", functions=(), effort="low", date="2026-11-22"))

    def user(self, body: Body) -> None:
        self._draft.extend(self.format.user(body).tokens)

    def asked(self, behind: Sequence[int] = (), *, cache_salt: str | None = None, **sampling: int) -> GenerationRequest:
        draft = self._draft + as_tokens(self.format.generation_start())
        return GenerationRequest(
            request_id=f"pictures-{next(_numbers)}",
            prompt_token_ids=self.format.prompt_of(draft) + as_tokens(behind),
            pictures=self._gallery.sources(self.format.pictures_of(draft)),
            sampling=SamplingOptions(stop_token_ids=self.format.stop_tokens, **sampling),
            session=Session(id="chat"),
            cache_salt=cache_salt,
        )

    def take(self, chunks: Sequence[TokenChunk]) -> str:
        """Add what the model said, and return it."""
        parser = self.format.parser()
        for event in [*parser.feed(joined(list(chunks))), *parser.close()]:
            if message := getattr(event, "message", None):
                self._draft.extend(message.tokens)
        return bytes(token for token in joined(list(chunks)) if token < 256).decode(errors="replace")
