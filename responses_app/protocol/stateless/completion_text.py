"""`CompletionText`: the tokens of one completion as text, without the format's own signs, up to a stop string."""

from codecs import getincrementaldecoder
from collections.abc import Sequence

from engine.formats.base import ModelFormat
from engine.types import FinishReason, TokenChunk, TokenLogprob
from responses_app.protocol.stateless.completions import ChoiceDelta, LegacyLogprobs
from responses_app.protocol.stop_strings import StopStrings


class CompletionText:
    """Of one choice. `stop_tokens` are those that the client asked for, as vLLM tells which of them came.

    `begin` is what stands before the first token: the prompt, where it is echoed.
    """

    def __init__(
        self,
        index: int,
        vocabulary: ModelFormat,
        *,
        stops: Sequence[str] = (),
        stop_tokens: Sequence[int] = (),
        logprobs: bool = False,
        begin: str = "",
    ) -> None:
        self.index = index
        self.tokens: list[int] = []
        self._ended = False
        self._vocabulary = vocabulary
        self._stop_tokens = frozenset(stop_tokens)
        self._stops = StopStrings(stops)
        self._decoder = getincrementaldecoder("utf-8")(errors="replace")
        self._logprobs = logprobs
        self._begin = begin
        self._offset = len(begin)  # of the next token

    @property
    def ended(self) -> bool:
        """Whether its end has come."""
        return self._ended

    def feed(self, chunk: TokenChunk) -> ChoiceDelta | None:
        """Take what was sampled; return what is to be told of it, None for nothing. Then it may have `ended`."""
        self.tokens.extend(chunk.token_ids)
        delta = ChoiceDelta(index=self.index, text=self._begin)
        self._begin = ""
        texts = [self._text(token) for token in chunk.token_ids]
        if self._logprobs:
            delta.logprobs = self._described(texts, chunk.logprobs or ())
        decoded = "".join(texts)
        if chunk.finish_reason is not None:
            decoded += self._decoder.decode(b"", final=True)
        delta.text += self._stops.feed(decoded)
        if self._stops.matched is not None:
            self._end(delta, FinishReason.STOP, self._stops.matched)
        elif chunk.finish_reason is not None:
            delta.text += self._stops.rest()
            last = self.tokens[-1] if self.tokens else None
            is_theirs = chunk.finish_reason is FinishReason.STOP and last in self._stop_tokens
            self._end(delta, chunk.finish_reason, last if is_theirs else None)
        has_more = delta.text or self._ended or (delta.logprobs is not None and delta.logprobs.tokens)
        return delta if has_more else None

    def _end(self, delta: ChoiceDelta, finish: FinishReason, reason: str | int | None) -> None:
        self._ended = True
        delta.finish_reason, delta.stop_reason = finish, reason

    def _text(self, token: int) -> str:
        """Return what a token adds to the text: less than its own where a character is not whole yet."""
        if self._vocabulary.is_special(token):
            return ""
        return self._decoder.decode(self._vocabulary.token_bytes(token))

    def _described(self, texts: Sequence[str], logprobs: Sequence[TokenLogprob]) -> LegacyLogprobs:
        described = LegacyLogprobs()
        for text, entry in zip(texts, logprobs, strict=False):
            if not self._vocabulary.is_special(entry.token_id):
                described.add(self._vocabulary.spelled(entry), self._offset)
            self._offset += len(text)
        return described
