"""What is said to a vLLM server, and what it answers: two wire formats, written and read without any I/O.

`Wire` writes what is asked, `TokenStream` and `WholeAnswer` read the answer.

`/inference/v1/generate` is made for tokens; `/v1/completions` is there on every vLLM. Both stream one JSON object per
server-sent event: chunks with `choices`, then one with the `usage`, then `[DONE]`. What goes wrong once a stream has
begun (a prompt too long, a full queue) comes in it, as `{"error": {"message", "code"}}` under HTTP status 200.
Facts are of vLLM 0.32: `entrypoints/scale_out/token_in_token_out` and `entrypoints/openai/completion`.

vLLM tells the log probabilities of a prompt, and the `kv_transfer_params` that the next engine needs, in answers alone
that are not streamed: those are read as the one chunk that they are (0.32: `serve_tokens_full_generator`,
`request_output_to_completion_response`).
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, overload

from engine import orjson
from engine.backends.client import AnswerReader, EventLines, JsonObject, WholeBytes, refusal_in, shown
from engine.errors import GenerationFailed
from engine.types import (
    FinishReason,
    GenerationRequest,
    PromptLogprobs,
    RankedToken,
    TokenChunk,
    TokenLogprob,
    WeightsSpan,
)

Alternatives = list[tuple[int, float]]

MAX_ANSWER = 256 * 1024 * 1024  # bytes: 20 alternatives to each of 100,000 tokens of a prompt are 150 MB
MAX_LOGPROBS = 20  # what vLLM allows, by default (--max-logprobs), and what OpenAI's API does
IMPOSSIBLE = -9999.0  # vLLM's floor of log probabilities, and what it gives for a token it has none of
FINISH_REASONS = {each.value: each for each in FinishReason}
NOTHING: Mapping[str, Any] = {}
NO_TOKEN_IDS = "vLLM sent text and no token ids: it knows no return_token_ids."


class Wire(ABC):
    """One way to ask for a generation and to read its chunks."""

    path: ClassVar[str]
    takes_pictures: ClassVar[bool] = False

    def body(
        self,
        request: GenerationRequest,
        *,
        model: str,
        max_tokens: int,
        priority: int,
        content_parts: Sequence[JsonObject] = (),
        more: Mapping[str, Any] = NOTHING,
    ) -> bytes:
        """Return the JSON that asks for a generation, streamed or as a whole; what is `None` in it is left out.

        `content_parts` are the pictures, which only a wire with `takes_pictures` has a place for; `more` are fields
        for a router before the server.
        """
        wishes, whole = request.sampling, is_whole(request)
        sampling: JsonObject = {
            "max_tokens": max_tokens,
            "stop_token_ids": list(wishes.stop_token_ids),
            **wishes.named(),
        }
        if wishes.top_logprobs is not None:
            sampling["logprobs"] = wishes.top_logprobs
        # The usage has the cached tokens, and comes only where it is asked for.
        streamed: JsonObject = {"stream": True, "stream_options": {"include_usage": True}}
        if request.grammar is not None:
            sampling["structured_outputs"] = {"structural_tag": request.grammar.structural_tag}
        body = {
            "request_id": request.request_id,
            "model": model,
            **({"stream": False} if whole else streamed),
            **self._own_fields(list(request.prompt_token_ids), sampling),
            **more,
        }
        if content_parts:
            # Of a prompt whose tokens are ranked the engine has to say which ones it made of the pictures.
            body |= {"content_parts": list(content_parts), **({"return_token_ids": True} if whole else {})}
        if request.cache_salt:
            body["cache_salt"] = request.cache_salt
        if priority:
            body["priority"] = priority
        if request.kv_transfer_params is not None:
            body["kv_transfer_params"] = request.kv_transfer_params
        return orjson.dumps(body)

    @abstractmethod
    def _own_fields(self, prompt: list[int], sampling: JsonObject) -> JsonObject:
        """Return the part of the body that only this format has."""

    @abstractmethod
    def logprobs(self, choice: JsonObject, top: int) -> list[TokenLogprob] | None:
        """Read the log probabilities of a choice's tokens, with at most `top` alternatives each."""


class GenerateWire(Wire):
    """`/inference/v1/generate`: needs `--tokens-only` or `--enable-scale-out`."""

    path = "/inference/v1/generate"
    takes_pictures = True

    def _own_fields(self, prompt: list[int], sampling: JsonObject) -> JsonObject:
        if sampling.get("logprobs"):
            # One more is asked for where that is allowed, so that as many alternatives are left.
            sampling["logprobs"] = min(sampling["logprobs"] + 1, MAX_LOGPROBS)  # the sampled token takes a place
        return {"token_ids": prompt, "sampling_params": {**sampling, "detokenize": False}}

    def logprobs(self, choice: JsonObject, top: int) -> list[TokenLogprob] | None:
        """Read entries with token ids; the sampled token stands first among its alternatives, likely or not."""
        logprobs = choice.get("logprobs")
        if logprobs is None:
            return None
        if not top:  # as roll-outs ask for them: one a token
            return [TokenLogprob(_token_id(entry), entry["logprob"]) for entry in logprobs["content"]]
        read = []
        for entry in logprobs["content"]:
            # The rank tells the likeliest from the sampled token, which stands among them in any case.
            likely = [each for each in entry["top_logprobs"] if (each.get("rank") or 0) <= top]
            alternatives = [(_token_id(each), each["logprob"]) for each in likely]
            read.append(_logprob(_token_id(entry), entry["logprob"], alternatives, top))
        return read


class CompletionsWire(Wire):
    """`/v1/completions`: detokenizes in vain, and repeats the prompt in its first event."""

    path = "/v1/completions"

    def _own_fields(self, prompt: list[int], sampling: JsonObject) -> JsonObject:
        return {"prompt": prompt, **sampling, "return_token_ids": True, "return_tokens_as_token_ids": True}

    def logprobs(self, choice: JsonObject, top: int) -> list[TokenLogprob] | None:
        """Read parallel lists whose tokens read `token_id:123`, as `return_tokens_as_token_ids` makes them."""
        logprobs = choice.get("logprobs")
        if logprobs is None:
            return None
        read = []
        rows = zip(logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True)
        for token, logprob, likely in rows:
            alternatives = [(_number(name), value) for name, value in (likely or {}).items()]
            read.append(_logprob(_number(token), IMPOSSIBLE if logprob is None else logprob, alternatives, top))
        return read


GENERATE = GenerateWire()
COMPLETIONS = CompletionsWire()


class VllmAnswerReader(AnswerReader):
    """Reads what a wire's answers have in common."""

    def __init__(self, wire: Wire, top_logprobs: int | None, *, has_pictures: bool) -> None:
        super().__init__()
        self._wire = wire
        self._has_pictures = has_pictures  # then the prompt is longer than it was sent
        self._top_logprobs = top_logprobs

    def _prompt_tokens(self, usage: JsonObject) -> int | None:
        tokens = usage.get("prompt_tokens") if self._has_pictures else None
        return None if tokens is None else int(tokens)

    def _logprobs(self, choice: JsonObject) -> list[TokenLogprob] | None:
        return None if self._top_logprobs is None else self._wire.logprobs(choice, self._top_logprobs)


class TokenStream(VllmAnswerReader):
    """One streamed answer."""

    def __init__(
        self, wire: Wire, *, max_tokens: int, top_logprobs: int | None = None, has_pictures: bool = False
    ) -> None:
        super().__init__(wire, top_logprobs, has_pictures=has_pictures)
        self._tokens_left = max_tokens  # how many more the server may send: it was asked for no more than these
        self._lines = EventLines()
        self._cached_tokens: int | None = None
        self._expanded: int | None = None  # the length of a prompt with pictures

    def feed(self, data: bytes) -> Iterator[TokenChunk]:
        for event in self._lines.feed(data):
            chunk = self._read(event)
            if chunk is not None:
                yield chunk

    def last(self) -> TokenChunk:
        """Return the chunk with the finish reason, and what the usage says if the server told it in time."""
        return replace(super().last(), cached_tokens=self._cached_tokens, prompt_tokens=self._expanded)

    def _read(self, event: bytes) -> TokenChunk | None:
        if event.strip() == b"[DONE]":
            if self._last is None:
                raise GenerationFailed("vLLM ended a stream without a finish reason.")
            return None
        try:
            return self._take(orjson.loads(event))
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise GenerationFailed(f"vLLM sent an event that cannot be read: {shown(event)}") from error

    def _take(self, message: JsonObject) -> TokenChunk | None:
        if "error" in message:
            raise refusal_in(message)
        if usage := message.get("usage"):
            self._cached_tokens, self._expanded = _cached_tokens(usage), self._prompt_tokens(usage)
        # The event with the usage has no choices. What comes behind the finish reason adds nothing.
        if self._last is not None or not message["choices"]:
            return None
        choice = message["choices"][0]
        token_ids, finish = choice.get("token_ids"), choice["finish_reason"]
        logprobs = self._logprobs(choice)
        # Kept back until the usage has come (`last`).
        if finish is not None:
            self._last = TokenChunk(
                token_ids=token_ids or [],
                finish_reason=FINISH_REASONS[finish],
                logprobs=logprobs if token_ids else None,
                weights=_weights(choice),
            )
            return None
        # Any chunk but the finish has token ids, unless the server does not know `return_token_ids`.
        if not isinstance(token_ids, list):
            raise GenerationFailed(NO_TOKEN_IDS)
        self._tokens_left -= len(token_ids)
        if self._tokens_left < 0:
            raise GenerationFailed("vLLM sent more tokens than it was asked for.")
        return TokenChunk(token_ids=token_ids, logprobs=logprobs) if token_ids else None


def _cached_tokens(usage: JsonObject) -> int | None:
    return (usage.get("prompt_tokens_details") or {}).get("cached_tokens")


def _weights(choice: JsonObject) -> list[WeightsSpan] | None:
    """Return which weights have sampled all tokens of a generation, as `/inference/v1/generate` says with its end."""
    spans = choice.get("weight_versions")
    if spans is None:
        return None
    return [WeightsSpan(str(span["version"]), span["end"] - span["start"]) for span in spans]


def _token_id(entry: JsonObject) -> int:
    """Return an entry's token id; before vLLM 0.32 it stood in its token, as `token_id:123`."""
    token_id = entry.get("token_id")
    return _number(entry["token"]) if token_id is None else int(token_id)


def _number(token: str) -> int:
    return int(token.removeprefix("token_id:"))


def _logprob(token: int, logprob: float, alternatives: Alternatives, top: int) -> TokenLogprob:
    likeliest: Sequence[tuple[int, float]] = sorted(alternatives, key=lambda each: -each[1])[:top]
    return TokenLogprob(token_id=token, logprob=logprob, top=tuple(likeliest))


Place = Iterable[tuple[int, float | None, int | None]]  # token ids with their log probabilities and ranks


@dataclass(frozen=True, slots=True)
class RankedPrompt(Sequence[Sequence[RankedToken] | None]):
    """What is known of each token of a prompt: itself first, then the others by their rank.

    Each place is ranked when it is asked for, from what the engine gave (`places`), which `entries` reads: a long
    prompt has half a million tokens in it, which take seconds, and are asked for on a thread.
    """

    prompt: Sequence[int]  # token ids
    places: Sequence[Any]  # what the engine gave for each token; None for the first one
    entries: Callable[[Any], Place]  # reads one place

    def __len__(self) -> int:
        return min(len(self.prompt), len(self.places))

    @overload
    def __getitem__(self, index: int) -> Sequence[RankedToken] | None: ...
    @overload
    def __getitem__(self, index: slice) -> PromptLogprobs: ...
    def __getitem__(self, index: int | slice) -> Sequence[RankedToken] | PromptLogprobs | None:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        place, own = self.places[index], self.prompt[index]
        if place is None:
            return None
        tokens = [RankedToken(token, _finite(logprob), rank or 0) for token, logprob, rank in self.entries(place)]
        # The prompt's own token first, whatever its rank.
        return sorted(tokens, key=lambda each: (each.token_id != own, each.rank))


def _finite(logprob: float | None) -> float:
    # `max` for JSON: minus infinity has no form in it, and vLLM's own servers say the floor.
    return IMPOSSIBLE if logprob is None or not math.isfinite(logprob) else max(logprob, IMPOSSIBLE)


def is_whole(request: GenerationRequest) -> bool:
    """Whether a generation is asked for in one answer. One that reads another engine's caches need not wait for it."""
    # vLLM's own key for "fetch the prompt's cache from another engine".
    reads_caches = (request.kv_transfer_params or {}).get("do_remote_prefill")
    moves_caches = bool(request.kv_transfer_params) and not reads_caches
    return request.sampling.prompt_logprobs is not None or moves_caches


class WholeAnswer(VllmAnswerReader):
    """Collects the bytes of one answer."""

    def __init__(
        self, wire: Wire, prompt: Sequence[int], *, top_logprobs: int | None = None, has_pictures: bool = False
    ) -> None:
        super().__init__(wire, top_logprobs, has_pictures=has_pictures)
        self._prompt = prompt
        self._whole = WholeBytes("vLLM", MAX_ANSWER)

    def feed(self, data: bytes) -> Iterator[TokenChunk]:
        self._whole.add(data)
        return iter(())

    def end(self) -> bool:
        """Read what has come, which takes long where it is. Raises `Refusal` for an error, `GenerationFailed` for what
        no vLLM says.
        """
        content = self._whole.take()
        try:
            self._last = self._read(orjson.loads(content))
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise GenerationFailed(f"vLLM sent an answer that cannot be read: {shown(content)}") from error
        return True

    def _read(self, message: JsonObject) -> TokenChunk:
        if "error" in message:
            raise refusal_in(message)
        choice = message["choices"][0]
        token_ids = choice["token_ids"]
        if not isinstance(token_ids, list):
            raise GenerationFailed(NO_TOKEN_IDS)
        usage = message.get("usage") or {}
        # With pictures these are more than were sent.
        prompt = message.get("prompt_token_ids") or self._prompt
        # `/inference/v1/generate` has them beside the choices, `/v1/completions` in each choice.
        places = message.get("prompt_logprobs") or choice.get("prompt_logprobs")
        return TokenChunk(
            token_ids=token_ids,
            finish_reason=FINISH_REASONS[choice["finish_reason"]],
            cached_tokens=_cached_tokens(usage),
            prompt_tokens=self._prompt_tokens(usage),
            logprobs=self._logprobs(choice),
            # All places now, not one by one when asked for: this runs on a thread already.
            prompt_logprobs=None if places is None else list(RankedPrompt(prompt, places, _entries)),
            kv_transfer_params=message.get("kv_transfer_params"),
            weights=_weights(choice),
        )


def _entries(place: Mapping[str, Any]) -> Iterator[tuple[int, float | None, int | None]]:
    for token, entry in place.items():
        yield int(token), entry["logprob"], entry.get("rank")
