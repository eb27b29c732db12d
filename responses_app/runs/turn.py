"""One generation: prompt tokens → chunks → Harmony events. Closing it aborts the engine's work."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from engine.backends.base import BaseEngine
from engine.harmony.encoding import CALL
from engine.harmony.parser import HarmonyEvent, HarmonyStream, MessageCompleted, MessageStarted
from engine.types import FinishReason, GenerationRequest
from responses_app.protocol.usage import TurnUsage


class Turn:
    """A generation that is read as it comes; afterwards `finish_reason`, `usage` and `called` tell how it ended."""

    def __init__(self, engine: BaseEngine, request: GenerationRequest) -> None:
        self._engine = engine
        self._request = request
        self.usage = TurnUsage(input_tokens=len(request.prompt_token_ids))
        self.finish_reason: FinishReason | None = None
        self.called = False  # the model stopped for a tool
        self.repairs = 0

    async def events(self) -> AsyncGenerator[list[HarmonyEvent], None]:
        """Yield the Harmony events of each chunk. Raises what the engine raises."""
        stream = HarmonyStream()
        channel: str | None = None
        async with aclosing(self._engine.generate(self._request)) as chunks:
            async for chunk in chunks:
                self.usage.output_tokens += len(chunk.token_ids)
                if chunk.cached_tokens is not None:
                    self.usage.cached_tokens = chunk.cached_tokens
                events = stream.feed(chunk.token_ids)
                if chunk.finish_reason is not None:
                    self.finish_reason = chunk.finish_reason
                    self.called = bool(chunk.token_ids) and chunk.token_ids[-1] == CALL
                    events += stream.close()
                channel = self._count_reasoning(events, channel)
                if events:
                    yield events
        self.repairs = stream.repairs

    def _count_reasoning(self, events: list[HarmonyEvent], channel: str | None) -> str | None:
        for event in events:
            if isinstance(event, MessageStarted):
                channel = event.channel
            elif isinstance(event, MessageCompleted) and channel in ("analysis", "commentary"):
                self.usage.reasoning_tokens += event.content_tokens
        return channel
