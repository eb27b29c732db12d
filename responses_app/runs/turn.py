"""One generation: prompt tokens → chunks → Harmony events. Closing it aborts the engine's work."""

from collections.abc import Awaitable, Callable, Iterable
from contextlib import aclosing
from dataclasses import replace

from engine.backends.base import BaseEngine
from engine.harmony.encoding import CALL, END_TOKENS
from engine.harmony.header import ANALYSIS, COMMENTARY
from engine.harmony.parser import ContentDelta, HarmonyEvent, HarmonyStream, MessageCompleted, MessageStarted
from engine.types import FinishReason, GenerationRequest, TokenChunk, TokenLogprob
from responses_app.protocol.usage import TurnUsage


class Turn:
    """A generation that is read as it comes; afterwards `finish_reason`, `usage` and `called` tell how it ended.

    Where there is an `enough`, it is asked after every token that makes an event; once it says yes, the generation is
    aborted as if the model had stopped there: what follows is neither read nor counted.
    """

    def __init__(
        self, engine: BaseEngine, request: GenerationRequest, *, enough: Callable[[], bool] | None = None
    ) -> None:
        self._engine = engine
        self._request = request
        self._enough = enough
        self._stream = HarmonyStream()
        self._channel: str | None = None
        self._unsaid: list[TokenLogprob] = []  # of tokens whose text has not come: the first bytes of a character
        self.usage = TurnUsage(input_tokens=len(request.prompt_token_ids))
        self.finish_reason: FinishReason | None = None
        self.called = False  # the model stopped for a tool

    @property
    def repairs(self) -> int:
        """How many messages were malformed."""
        return self._stream.repairs

    async def run(
        self, take: Callable[[list[HarmonyEvent]], None], *, before: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """Generate; `take` gets the Harmony events of each chunk that makes any, once `before` has been awaited.

        Raises what the engine raises.
        """
        async with aclosing(self._engine.generate(self._request)) as chunks:
            async for chunk in chunks:
                for part in self._parts(chunk):
                    events = self._read(part)
                    if not events:
                        continue
                    if before is not None:
                        await before()
                        before = None
                    take(events)
                    if self._enough is not None and self._enough() and not self.called:
                        self.finish_reason = FinishReason.STOP
                        return

    def _parts(self, chunk: TokenChunk) -> Iterable[TokenChunk]:
        """Cut a chunk where the generation may have to end inside it."""
        if self._enough is None or len(chunk.token_ids) < 2:
            return (chunk,)
        last = len(chunk.token_ids) - 1
        return (
            replace(
                chunk,
                token_ids=(token,),
                finish_reason=chunk.finish_reason if index == last else None,
                logprobs=None if chunk.logprobs is None else (chunk.logprobs[index],),
            )
            for index, token in enumerate(chunk.token_ids)
        )

    def _read(self, chunk: TokenChunk) -> list[HarmonyEvent]:
        self.usage.output_tokens += len(chunk.token_ids)
        if chunk.token_ids:  # the last chunk may bring nothing but the finish reason
            self.called = chunk.token_ids[-1] == CALL
        if chunk.cached_tokens is not None:
            self.usage.cached_tokens = chunk.cached_tokens
        events = self._stream.feed(chunk.token_ids) if chunk.logprobs is None else self._feed_with_logprobs(chunk)
        if chunk.finish_reason is not None:
            self.finish_reason = chunk.finish_reason
            events += self._stream.close()
        for event in events:
            if isinstance(event, MessageStarted):
                self._channel = event.channel
            elif isinstance(event, MessageCompleted) and self._channel in (ANALYSIS, COMMENTARY):
                self.usage.reasoning_tokens += event.content_tokens
        return events

    def _feed_with_logprobs(self, chunk: TokenChunk) -> list[HarmonyEvent]:
        """Feed token by token, so that each text gets the log probabilities of the tokens that made it."""
        events: list[HarmonyEvent] = []
        for token, logprob in zip(chunk.token_ids, chunk.logprobs or (), strict=True):
            if token not in END_TOKENS:
                self._unsaid.append(logprob)
            for event in self._stream.feed((token,)):
                if isinstance(event, ContentDelta):
                    event = replace(event, logprobs=tuple(self._unsaid))
                self._unsaid.clear()
                events.append(event)
        return events
