"""Requests to a llama-server and its answers: `/completion`, written and read without any I/O.

    {"prompt": [ids], "n_predict": 100, "stream": true, "return_tokens": true, …}
    data: {"tokens": [13225], "content": "Hello", "tokens_predicted": 1, "stop": false}
    data: {"tokens": [], "stop": true, "stop_type": "eos", "tokens_predicted": 6, "timings": {"cache_n": 70}}

Facts are of llama.cpp's tools/server: README.md, server-schema.cpp and server-context.cpp.

It streams text, and holds back what ends within a character: of the tokens that make one character together it tells
the last one alone, with the text of all of them (`process_token` in server-context.cpp). How many were left out is
known by its count, and what they say by the text (`Pieces`). An answer that is not streamed has all tokens.

    sampled   " " F0 9F   |   A6   |   99          three tokens, one llama
    told                               99, "🦙"    and that it is the third one

`LlamaTurn` is one generation as it is collected from one or several requests.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from engine import orjson
from engine.backends.client import AnswerReader, EventLines, JsonObject, WholeBytes, refusal_in, shown
from engine.errors import GenerationFailed
from engine.types import FinishReason, GenerationRequest, TokenChunk, TokenLogprob, carried

MAX_LEFT_OUT = 16  # tokens in a row: a character has four bytes

TokenBytes = Callable[[int], bytes]  # what a token stands for


class Pieces:
    """The ordinary tokens of a vocabulary by what they stand for."""

    def __init__(self, pieces: Mapping[bytes, int], token_bytes: TokenBytes) -> None:
        self._tokens = pieces
        self._token_bytes = token_bytes
        self._longest = max(map(len, pieces), default=0)  # bytes

    @classmethod
    def of(cls, ordinary: Iterable[int], token_bytes: TokenBytes) -> "Pieces":
        """Return those of a vocabulary; of two tokens that stand for the same the first one counts."""
        pieces: dict[bytes, int] = {}
        for token in ordinary:
            pieces.setdefault(token_bytes(token), token)
        return cls(pieces, token_bytes)

    @property
    def plain(self) -> int:
        """The id of a token whose text is whole."""
        return next(token for piece, token in self._tokens.items() if piece.isascii())

    def left_out(self, text: str, last: int, number: int) -> list[list[int]]:
        """Return each way in which `number` tokens before `last` make `text` together with it.

        One way: those were sampled. Several: one of them was. None: the text does not say what was sampled, as where
        its bytes are not UTF-8.
        """
        whole, end = text.encode(), self._token_bytes(last)
        if not whole.endswith(end) or not 0 < number <= MAX_LEFT_OUT:
            return []
        if len(whole) - len(end) > number * self._longest:  # no tokens say so much
            return []
        return list(self._ways(whole[: len(whole) - len(end)], number))

    def _ways(self, content: bytes, number: int) -> Iterator[list[int]]:
        """Yield the ways to make `content` of so many tokens, each of which ends within a character."""
        if number == 1:
            if content in self._tokens and ends_within(content):
                yield [self._tokens[content]]
            return
        for end in range(1, min(len(content), self._longest + 1)):
            if content[:end] in self._tokens and ends_within(content[:end]):
                for rest in self._further(content, end, number - 1):
                    yield [self._tokens[content[:end]], *rest]

    def _further(self, content: bytes, begin: int, number: int) -> Iterator[list[int]]:
        """Yield the ways to make what follows `begin` of so many tokens. What stands before tells where each ends."""
        ends = (len(content),) if number == 1 else range(begin + 1, min(len(content), begin + self._longest + 1))
        for end in ends:
            token = self._tokens.get(content[begin:end])
            if token is None or not ends_within(content[:end]):
                continue
            if number == 1:
                yield [token]
            else:
                yield from ([token, *rest] for rest in self._further(content, end, number - 1))


def ends_within(content: Sequence[int]) -> bool:
    """Whether bytes end within a character of UTF-8, as llama.cpp looks at it (`validate_utf8`)."""
    for back, byte in enumerate(reversed(content[-4:]), start=1):
        if byte & 0xE0 == 0xC0:
            return back < 2
        if byte & 0xF0 == 0xE0:
            return back < 3
        if byte & 0xF8 == 0xF0:
            return back < 4
    return False


PATH = "/completion"
IMPOSSIBLE = -9999.0  # the least log probability that is told; llama.cpp's is the least number of 32 bits
MAX_ANSWER = 16 * 1024 * 1024  # bytes of an answer that is not streamed: it is short
MAX_SEED = 2**32 - 1  # this one means "any" to llama.cpp
RANKED = 1000  # of the likeliest tokens, among which one that was sampled is looked for
FINISHED = {"eos": FinishReason.STOP, "word": FinishReason.STOP, "limit": FinishReason.LENGTH}
# What is wanted of the last event: without this it repeats the prompt as text.
FIELDS = ("tokens", "stop", "stop_type", "tokens_predicted", "timings", "error")


class TokensLeftOut(Exception):
    """A stream has left out tokens, so what follows is to be asked for behind `tokens`.

    `tokens` are those that the text says, the one that was told among them; none where the text does not say them.
    """

    def __init__(self, tokens: Sequence[int] = ()) -> None:
        super().__init__(f"left out before {len(tokens)} tokens that are known")
        self.tokens = tokens


def completion(
    request: GenerationRequest,
    behind: Sequence[int],
    *,
    max_tokens: int,
    streamed: bool,
    ping_seconds: int,
    again: int = 0,
) -> bytes:
    """Return the JSON that asks for what follows the prompt and the tokens `behind` it.

    `again`: the how-manieth time that is asked for a generation; each has a seed of its own. While nothing is sampled
    yet, the server says every `ping_seconds` that it is there.
    """
    sampling = request.sampling
    # What is left to the model is left to the flags that the server was started with.
    wishes = {name: value for name, value in sampling.wishes().items() if carried(name).llama is not None}
    options: JsonObject = {carried(name).llama or name: value for name, value in wishes.items()}
    if sampling.top_k is not None:
        options["top_k"] = max(0, sampling.top_k)  # -1 is vLLM's word for all
    if sampling.seed is not None:
        options["seed"] = (sampling.seed + again) % MAX_SEED
    if sampling.logit_bias is not None:
        options["logit_bias"] = [[int(token), bias] for token, bias in sampling.logit_bias.items()]
    if sampling.top_logprobs is not None:
        options["n_probs"] = max(1, sampling.top_logprobs)
    return orjson.dumps(
        {
            "prompt": [*request.prompt_token_ids, *behind],
            "n_predict": max_tokens,
            "stream": streamed,
            "return_tokens": True,
            "cache_prompt": True,
            "return_progress": True,  # tells first how much of the prompt was cached
            "sse_ping_interval": ping_seconds,
            "response_fields": FIELDS,
            **options,
        }
    )


def ranking(prompt: Sequence[int], plain: int) -> bytes:
    """Return the JSON that asks which tokens are the likeliest behind a prompt.

    llama.cpp tells that with a token that is sampled and whose text is whole: `plain` is one, and is forced. Log
    probabilities are those of the model, before any option of sampling, so that changes none of them.
    """
    return orjson.dumps(
        {
            "prompt": list(prompt),
            "n_predict": 1,
            "stream": False,
            "cache_prompt": True,
            "n_probs": RANKED,
            "logit_bias": [[plain, 1000.0]],
            "response_fields": ("completion_probabilities",),
        }
    )


def ranked(content: bytes, token: int, top: int) -> TokenLogprob:
    """Read the answer to `ranking`. Raises `GenerationFailed` where the token is not among the likeliest."""
    try:
        place = orjson.loads(content)["completion_probabilities"][0]["top_logprobs"]
        likely = [(int(each["id"]), max(float(each["logprob"]), IMPOSSIBLE)) for each in place]
    except (LookupError, TypeError, ValueError) as error:
        raise GenerationFailed(f"llama-server sent an answer that cannot be read: {shown(content)}") from error
    logprob = dict(likely).get(token)
    if logprob is None:
        raise GenerationFailed(f"llama-server does not say how likely the token {token} was.")
    return TokenLogprob(token_id=token, logprob=logprob, top=tuple(likely[:top]))


class CompletionStream(AnswerReader):
    """One streamed answer."""

    def __init__(self, pieces: Pieces, *, max_tokens: int, vocabulary: int, top_logprobs: int | None = None) -> None:
        super().__init__()
        self._pieces = pieces
        self._vocabulary = vocabulary  # tokens of the model
        self._top_logprobs = top_logprobs
        self._tokens_left = max_tokens  # how many more the server may send: it was asked for no more than these
        self._told = 0  # tokens that are known by now
        self._cached_tokens: int | None = None  # of the prompt; told before the first token
        self._lines = EventLines()

    def feed(self, data: bytes) -> Iterator[TokenChunk]:
        """Yield the chunks that `data` completes, all but the last one. Also raises `TokensLeftOut`."""
        for event in self._lines.feed(data):
            message = _parsed(event)
            if self._last is None:
                try:
                    chunk = self._take(message)
                except (LookupError, TypeError, ValueError, AttributeError) as error:
                    raise GenerationFailed(f"llama-server sent an event that cannot be read: {shown(event)}") from error
                if chunk is not None:
                    yield chunk

    def _take(self, message: JsonObject) -> TokenChunk | None:
        if "error" in message:
            raise refusal_in(message)
        if "prompt_progress" in message:
            self._cached_tokens = _count(message["prompt_progress"]["cache"])
            return None
        tokens = _tokens(message, self._tokens_left, self._vocabulary)
        number = _count(message["tokens_predicted"])
        left_out = number - self._told - len(tokens)
        if message["stop"]:
            if left_out:  # the last ones, of which nothing else is told
                raise TokensLeftOut
            self._last = TokenChunk(
                token_ids=tokens, finish_reason=FINISHED[message["stop_type"]], cached_tokens=_cached_tokens(message)
            )
            return None
        if not tokens:
            return None
        if left_out:
            tokens = self._found(message["content"], tokens, left_out)
        self._told = number
        self._tokens_left -= len(tokens)
        logprobs = self._logprobs(message, len(tokens))
        return TokenChunk(token_ids=tokens, logprobs=logprobs, cached_tokens=self._cached_tokens)

    def _found(self, text: str, told: list[int], left_out: int) -> list[int]:
        """Return all tokens of an event, where it is certain which they are, else raise `TokensLeftOut`."""
        ways = self._pieces.left_out(text, told[0], left_out) if len(told) == 1 else []
        if not ways:
            raise TokensLeftOut
        tokens = [*ways[0], *told]
        if len(tokens) > self._tokens_left:
            raise _too_many()
        # Of several ways the first is taken, and what follows is asked for behind it, as nobody can tell which it was.
        # Also where log probabilities are wanted: they are not told of what is left out.
        if len(ways) > 1 or self._top_logprobs is not None:
            raise TokensLeftOut(tokens)
        return tokens

    def _logprobs(self, message: JsonObject, tokens: int) -> list[TokenLogprob] | None:
        if self._top_logprobs is None:
            return None
        places = message.get("completion_probabilities")
        if not places:
            raise GenerationFailed("llama-server tells no log probabilities where it drafts tokens (--spec-type).")
        if len(places) != tokens:
            raise ValueError("not as many log probabilities as tokens")
        return [_logprob(place, self._top_logprobs) for place in places]


class CompletionAnswer(AnswerReader):
    """One answer that is not streamed: all of its tokens, without log probabilities."""

    def __init__(self, *, max_tokens: int, vocabulary: int) -> None:
        super().__init__()
        self._max_tokens = max_tokens  # that the server was asked for
        self._vocabulary = vocabulary  # tokens of the model
        self._whole = WholeBytes("llama-server", MAX_ANSWER)

    def feed(self, data: bytes) -> Iterator[TokenChunk]:
        self._whole.add(data)
        return iter(())

    def end(self) -> bool:
        content = self._whole.take()
        message = _parsed(content)
        if "error" in message:
            raise refusal_in(message)
        try:
            self._last = TokenChunk(
                token_ids=_tokens(message, self._max_tokens, self._vocabulary),
                finish_reason=FINISHED[message["stop_type"]],
                cached_tokens=_cached_tokens(message),
            )
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise GenerationFailed(f"llama-server sent an answer that cannot be read: {shown(content)}") from error
        return True


def _parsed(content: bytes) -> JsonObject:
    try:
        message = orjson.loads(content)
    except ValueError as error:
        raise GenerationFailed(f"llama-server sent what is no JSON: {shown(content)}") from error
    if not isinstance(message, dict):
        raise GenerationFailed(f"llama-server sent an event that cannot be read: {shown(content)}")
    return message


def _tokens(message: JsonObject, most: int, vocabulary: int) -> list[int]:
    """Return the tokens of an event or answer: at most so many, and each of the model's."""
    tokens: list[int] = message["tokens"]
    if not isinstance(tokens, list):
        raise TypeError("no list of tokens")
    if len(tokens) > most:
        raise _too_many()
    if any(_count(token) >= vocabulary for token in tokens):
        raise ValueError("a token that the model does not have")
    return tokens


def _too_many() -> GenerationFailed:
    return GenerationFailed("llama-server sent more tokens than it was asked for.")


def _count(value: object) -> int:
    """Return a whole number that is not negative, else raise `ValueError`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError("no whole number")
    return value


def _cached_tokens(message: JsonObject) -> int | None:
    cached = (message.get("timings") or {}).get("cache_n")
    return None if cached is None else _count(cached)


def _logprob(place: dict[str, Any], top: int) -> TokenLogprob:
    likely = [(int(each["id"]), max(float(each["logprob"]), IMPOSSIBLE)) for each in place["top_logprobs"][:top]]
    return TokenLogprob(token_id=int(place["id"]), logprob=max(float(place["logprob"]), IMPOSSIBLE), top=tuple(likely))


MAX_EMPTY = 2  # requests in a row that bring no token; a stream that leaves out all it has is asked for once more


@dataclass
class LlamaTurn:
    """The tokens that were sampled so far, and how the next request goes on.

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
