"""An engine without a model that answers in real Harmony, so that a server can be tried and tested on any machine."""

import asyncio
from collections.abc import AsyncGenerator, Mapping

from engine.backends.demo_replies import reply_tokens
from engine.backends.options import OptionReader
from engine.backends.simulated import SimulatedEngine, cut_into_chunks
from engine.types import FinishReason, GenerationRequest, TokenChunk

LONG_PROMPT = 1000  # tokens, of up to 128 characters each: 30 ms to read and to answer


class DemoEngine(SimulatedEngine):
    """Answers by the rules in `demo_replies`.

    Options: `tokens_per_second` (none: as fast as the loop turns), `chunk_tokens`, `max_model_len` and
    `start_seconds`, which pretends to load a model.
    """

    backend = "demo"
    known_options = (*SimulatedEngine.known_options, "chunk_tokens", "tokens_per_second")

    def __init__(self, *, model: str, options: Mapping[str, object] | None = None) -> None:
        """Keep the options; `check()` and `start()` read them."""
        super().__init__(model=model, options=options)
        self._chunk_tokens = 1
        self._tokens_per_second: float | None = None

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[TokenChunk, None]:
        """Yield the reply; nothing is kept of a generation, so closing it needs no more."""
        limit = await self._admit(request)
        prompt = request.prompt_token_ids
        reply = await asyncio.to_thread(reply_tokens, prompt) if len(prompt) > LONG_PROMPT else reply_tokens(prompt)
        finish_reason = FinishReason.STOP if len(reply) <= limit else FinishReason.LENGTH
        began = asyncio.get_running_loop().time()
        sampled = 0
        for chunk in cut_into_chunks(
            reply[:limit], chunk_tokens=self._chunk_tokens, finish_reason=finish_reason, cached_tokens=0
        ):
            sampled += len(chunk.token_ids)
            await self._pause(self._until_due(began, sampled))
            yield chunk

    def _read_options(self, options: OptionReader) -> None:
        super()._read_options(options)
        self._chunk_tokens = options.whole_number("chunk_tokens", 1, minimum=1)
        self._tokens_per_second = options.rate("tokens_per_second")

    def _until_due(self, began: float, sampled: int) -> float:
        if self._tokens_per_second is None:
            return 0.0
        return began + sampled / self._tokens_per_second - asyncio.get_running_loop().time()
