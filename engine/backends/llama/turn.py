"""One generation as it is collected from one or several requests to a llama-server."""

from dataclasses import dataclass, field, replace

from engine.errors import GenerationFailed
from engine.types import FinishReason, GenerationRequest, TokenChunk

MAX_EMPTY = 2  # requests in a row that bring no token; a stream that leaves out all it has is asked for once more


@dataclass
class Turn:
    """What was sampled so far, and what is to be asked for next.

    llama.cpp ends a generation at the tokens that end a text for the model, and knows no others; those of a request
    are looked for here.
    """

    request: GenerationRequest
    most: int  # tokens
    tokens: list[int] = field(default_factory=list)  # that were sampled
    asked: int = 0  # requests to the server
    is_blind: bool = False  # the next few tokens are to come in one answer, as a stream does not tell them
    _empty: int = 0  # requests since the last one that brought a token
    _finished: bool = False  # whether the last chunk was taken
    _cached_tokens: int | None = None  # of the prompt, as the first request found it

    @property
    def left(self) -> int:
        """How many tokens there may be still."""
        return self.most - len(self.tokens)

    def ask(self) -> int:
        """Note that the server is asked once more; return how often it was before.

        Raises `GenerationFailed` where it said nothing the last times: it would be asked for ever.
        """
        if self._empty == MAX_EMPTY:
            raise GenerationFailed(f"llama-server answered {MAX_EMPTY} times without a token.")
        self._empty += 1
        self.asked += 1
        return self.asked - 1

    def is_over(self) -> bool:
        """Whether the last chunk was taken."""
        return self._finished

    def take(self, chunk: TokenChunk) -> TokenChunk | None:
        """Note what was sampled; return what is to be told of it, None where there is nothing."""
        if self._cached_tokens is None:
            self._cached_tokens = chunk.cached_tokens
        taken = self._to_stop(chunk)
        self.tokens += taken.token_ids
        if taken.token_ids:
            self._empty = 0
        finish = self._finish(taken, told=chunk.finish_reason)
        # What follows a character that came in one answer is streamed again.
        self.is_blind = False
        if finish is None and not taken.token_ids:
            return None
        self._finished = finish is not None
        return replace(taken, finish_reason=finish, cached_tokens=self._cached_tokens)

    def _to_stop(self, chunk: TokenChunk) -> TokenChunk:
        """Return a chunk up to the first token that ends the turn."""
        stops = self.request.sampling.stop_token_ids
        end = next((place for place, token in enumerate(chunk.token_ids, start=1) if token in stops), None)
        if end is None:
            return chunk
        logprobs = None if chunk.logprobs is None else chunk.logprobs[:end]
        return replace(chunk, token_ids=chunk.token_ids[:end], logprobs=logprobs)

    def _finish(self, taken: TokenChunk, *, told: FinishReason | None) -> FinishReason | None:
        """Return why the turn is over, None where it goes on."""
        if taken.token_ids and taken.token_ids[-1] in self.request.sampling.stop_token_ids:
            return FinishReason.STOP
        if told is FinishReason.STOP and not self.request.sampling.ignore_eos:
            return told
        # An end that is not to count; or a few tokens, of which there may be more.
        goes_on = told is FinishReason.STOP or (self.is_blind and bool(taken.token_ids))
        if told is None or (goes_on and self.left > 0):
            return None
        return FinishReason.LENGTH
