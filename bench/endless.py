"""Our server on an engine that never stops talking and keeps nothing, for readers that never read."""

import asyncio
from collections.abc import AsyncGenerator

from engine.backends.demo.engine import DemoEngine
from engine.formats.harmony.encoding import encode_harmony
from engine.types import GenerationRequest, TokenChunk
from responses_app.wiring import engines


class EndlessEngine(DemoEngine):
    """Says one word for ever, as fast as the loop turns."""

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[TokenChunk, None]:
        """Yield a header, then the word, one token a chunk."""
        yield TokenChunk(token_ids=encode_harmony("<|channel|>final<|message|>"))
        word = TokenChunk(token_ids=encode_harmony(" again"))
        while True:
            await asyncio.sleep(0)
            yield word


engines.BACKENDS["demo"] = f"{__name__}.EndlessEngine"

from respsite.asgi import application  # noqa: E402 - it makes the engine

__all__ = ["application"]
