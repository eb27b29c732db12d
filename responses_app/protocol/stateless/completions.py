"""`/v1/completions`: what may be asked of a raw prompt, and how what the model says is written: OpenAI's older shape.

The fields are those of `openai.types.completion_create_params`; `stop_token_ids`, `stop_reason`, `prompt_logprobs`,
`return_token_ids` and `kv_transfer_params` are as vLLM 0.32 has them (`entrypoints/openai/completion/protocol.py`).
`CompletionText` makes text of the tokens of one completion: without the format's own signs, up to a stop string.
"""

from codecs import getincrementaldecoder
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from engine import orjson
from engine.errors import GenerationFailed
from engine.formats.base import ModelFormat, TextLogprob
from engine.types import FinishReason, PromptLogprobs, RankedToken, TokenChunk, TokenLogprob
from responses_app.protocol.engine_details import check_transfer
from responses_app.protocol.errors import (
    ApiError,
    JsonObject,
    OwnNames,
    in_own_names,
    invalid_value,
    unsupported_parameter,
)
from responses_app.protocol.fields import ClientModel, Refused, validate
from responses_app.protocol.json_text import dumps, json_size
from responses_app.protocol.output.builders import LOWEST
from responses_app.protocol.requests.create_fields import (
    GUIDED,
    HIDES_NOTHING,
    NO_SUCH_SAMPLING,
    OF_COMPLETIONS,
    OF_ENGINES,
    GenerationFields,
    not_openais,
)
from responses_app.protocol.stateless.embeddings import read_inputs
from responses_app.protocol.stop_strings import StopStrings
from responses_app.protocol.tiers import ServiceTier

MAX_CHOICES = 128  # of one request: prompts × n
MAX_TOKENS = 16  # where a request does not say, as at OpenAI
MAX_LOGPROBS = 20  # as vLLM gives; OpenAI stops at 5
_NAMES = OwnNames(
    fields=(("input", "prompt"),),
    advice=(("Shorten the input, start a new chain, or set 'truncation' to 'auto'.", "Shorten 'prompt'."),),
)


def in_completions_names(error: ApiError) -> ApiError:
    """Return an error as a client of completions is to read it."""
    return in_own_names(error, _NAMES)


class CompletionStreamOptions(ClientModel):
    """Options of a stream."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None

    idle: ClassVar = HIDES_NOTHING
    own: ClassVar = ("continuous_usage_stats",)


class CompletionMetadata(ClientModel):
    """What is said of a request."""

    own: ClassVar = ("rollout_id",)

    rollout_id: str | None = None  # the roll-out that the completions are part of


class CompletionFields(GenerationFields):
    """The fields of a request beside its prompt."""

    model: str | None = Field(default=None, min_length=1, max_length=256)
    max_tokens: int | None = Field(default=None, ge=0)
    n: int | None = Field(default=None, ge=1, le=MAX_CHOICES)
    best_of: int | None = Field(default=None, ge=0, le=20)
    echo: bool | None = None
    logprobs: int | None = Field(default=None, ge=0, le=MAX_LOGPROBS)
    stream: bool | None = None
    stream_options: CompletionStreamOptions | None = None
    prompt_logprobs: int | None = Field(default=None, ge=0, le=MAX_LOGPROBS)
    return_token_ids: bool | None = None
    kv_transfer_params: dict[str, Any] | None = None
    user: str | None = Field(default=None, max_length=1024)
    metadata: CompletionMetadata | None = None

    beside: ClassVar = ("prompt",)
    refused: ClassVar = {
        "suffix": Refused("No model here fills text in; put it into the prompt, or leave it out."),
        "messages": Refused("A chat goes to /v1/chat/completions; here a raw text is the 'prompt'."),
        "max_completion_tokens": Refused("Here it is 'max_tokens'."),
        "max_output_tokens": Refused("Here it is 'max_tokens'."),
        **dict.fromkeys(
            ("response_format", "structured_outputs", "tools", "tool_choice"),
            Refused("A raw prompt is held to nothing: send a chat to /v1/chat/completions."),
        ),
        **GUIDED,
        **OF_ENGINES,
        **dict.fromkeys(("min_tokens", "length_penalty", "truncate_prompt_tokens"), NO_SUCH_SAMPLING),
    }
    own: ClassVar = (
        *(name for name in refused if name != "suffix"),
        *not_openais(OF_COMPLETIONS),
        *("kv_transfer_params", "metadata", "prompt_logprobs", "return_token_ids"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionWanted:
    """A request for completions: each prompt is completed `n` times, and choices are in the order of the prompts."""

    fields: CompletionFields
    prompts: Sequence[str | Sequence[int]]  # texts, or ids of tokens

    @property
    def n(self) -> int:
        """How often each prompt is completed."""
        return self.fields.n or 1

    @property
    def stops(self) -> Sequence[str]:
        """The strings that end a completion."""
        return self.fields.stop or ()

    @property
    def metadata(self) -> dict[str, str]:
        """What is said of the request."""
        return {} if self.fields.metadata is None else self.fields.metadata.model_dump(exclude_none=True)

    @property
    def echoes_logprobs(self) -> bool:
        """Whether the log probabilities of a prompt are told with its echo."""
        return bool(self.fields.echo) and self.fields.logprobs is not None

    @property
    def prompt_logprobs(self) -> int | None:
        """How many alternatives to each token of a prompt the engine is asked for, as vLLM has it; None: it is not."""
        own = self.fields.prompt_logprobs
        return self.fields.logprobs if own is None and self.echoes_logprobs else own

    @property
    def max_tokens(self) -> int:
        """How many tokens a completion may have."""
        return MAX_TOKENS if self.fields.max_tokens is None else self.fields.max_tokens

    @property
    def counts_each(self) -> bool:
        """Whether each part of a stream says what its completion has used so far, as vLLM has it."""
        return self.includes_usage and bool(
            self.fields.stream_options and self.fields.stream_options.continuous_usage_stats
        )

    @property
    def includes_usage(self) -> bool:
        """Whether a stream ends with the usage."""
        return bool(self.fields.stream_options and self.fields.stream_options.include_usage)


def parse_completion(data: JsonObject, *, engine_fields: bool = False) -> CompletionWanted:
    """Read a request; `engine_fields`: it may have those that are for the engine's operator. Raises `ApiError`."""
    check_transfer(data, engine_fields=engine_fields)
    json_size({"kv_transfer_params": data.get("kv_transfer_params")})  # the engine is given it again
    fields = validate(CompletionFields, data)
    prompts = read_inputs(data, "prompt", max_inputs=MAX_CHOICES)
    completion = CompletionWanted(fields=fields, prompts=prompts)
    _check(completion, data)
    return completion


def _check(completion: CompletionWanted, data: JsonObject) -> None:
    fields = completion.fields
    if fields.best_of and fields.best_of != completion.n:
        raise unsupported_parameter("best_of", "All completions are given, and none is chosen: ask for them by 'n'.")
    if fields.stream_options is not None and not fields.stream:
        raise invalid_value("stream_options", "it is only for streams: set 'stream' to true, or leave it out.")
    if fields.stream and fields.prompt_logprobs is not None:
        raise invalid_value(
            "prompt_logprobs", "they come with a whole answer only: set 'stream' to false, or leave it out."
        )
    if fields.kv_transfer_params and len(completion.prompts) * completion.n > 1:
        raise invalid_value("kv_transfer_params", "they are for one prompt and one completion of it.")
    if len(completion.prompts) * completion.n > MAX_CHOICES:
        raise invalid_value(
            "n",
            f"{len(completion.prompts)} prompts and {completion.n} completions of each are more than {MAX_CHOICES}.",
        )


class CompletionLogprobs(TypedDict):
    """Lists beside each other, with an entry for each token."""

    tokens: list[str]
    token_logprobs: list[float | None]  # null for the first token of a prompt that is echoed: nothing stands before it
    top_logprobs: list[dict[str, float] | None]  # likewise
    text_offset: list[int]  # where a token begins in the choice's text, in characters


class CompletionDetails(TypedDict, total=False):
    """What a choice has where it was asked for."""

    token_ids: list[int]
    prompt_token_ids: list[int]
    prompt_logprobs: Sequence[Any]


class CompletionChoice(CompletionDetails):
    """One completion, or more of it. `stop_reason` is the client's stop string, or stop token, that ended it."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length", "abort"] | None
    stop_reason: str | int | None


class CompletionUsage(TypedDict):
    """Tokens: each prompt counts once, however often it is completed."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: JsonObject


class Completion(TypedDict):
    """Completions of all prompts, or a part of a stream of them."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: NotRequired[CompletionUsage | None]
    kv_transfer_params: NotRequired[JsonObject]  # for another engine, where they were asked for
    service_tier: ServiceTier  # that of the server, as vLLM has the field
    system_fingerprint: str


class CompletionServerSentEvent(TypedDict):
    """A part of a stream: `data` is a completion as JSON, and in the last one `[DONE]`."""

    data: str


def logprobs_of(entries: Iterable[tuple[TextLogprob, int]]) -> CompletionLogprobs:
    """Return the log probabilities of tokens, each with where it begins in the choice's text."""
    logprobs: CompletionLogprobs = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    add_logprobs(logprobs, entries)
    return logprobs


def add_logprobs(logprobs: CompletionLogprobs, entries: Iterable[tuple[TextLogprob, int]]) -> None:
    """Add the log probabilities of tokens, each with where it begins in the choice's text."""
    for entry, offset in entries:
        logprobs["tokens"].append(token_text(entry.token))
        logprobs["token_logprobs"].append(max(entry.logprob, LOWEST))
        chosen = {token_text(entry.token): max(entry.logprob, LOWEST)}  # which is always there, as at OpenAI and vLLM
        logprobs["top_logprobs"].append(chosen | {token_text(token): max(value, LOWEST) for token, value in entry.top})
        logprobs["text_offset"].append(offset)


def _of_place(token: int, place: Sequence[RankedToken], top: int) -> TokenLogprob:
    """Return what an engine says of a token of a prompt, the token itself first. Raises `GenerationFailed`."""
    own = next((each for each in place if each.token_id == token), None)
    if own is None:
        raise GenerationFailed("the engine does not say how likely a token of the prompt is")
    others = [(each.token_id, each.logprob) for each in place if each is not own]
    return TokenLogprob(token, own.logprob, tuple(others[:top]))


def token_text(token: bytes) -> str:
    """Return a token as a text; one that is a part of a character as its bytes, in OpenAI's way."""
    try:
        return token.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{each:02x}" for each in token)


@dataclass(slots=True, kw_only=True)
class ChoiceDelta:
    """More of a choice. The last one of it, and only that, has a `finish_reason`."""

    index: int
    text: str = ""
    logprobs: CompletionLogprobs | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None  # the client's stop string, or stop token, that ended it
    token_ids: list[int] | None = None  # this and the next two: None where they were not asked for
    prompt_token_ids: Sequence[int] | None = None  # once
    prompt_logprobs: Sequence[orjson.Fragment] | None = None  # likewise
    # What the choice has used so far, where each part of a stream is to say it.
    counted: "CompletionTokens | None" = None

    def body(self) -> CompletionChoice:
        """Return it as a choice of an answer, or of a part of a stream."""
        finish = self.finish_reason
        details: CompletionDetails = {}
        if self.token_ids is not None:
            details["token_ids"] = self.token_ids
        if self.prompt_token_ids is not None:
            details["prompt_token_ids"] = list(self.prompt_token_ids)
        if self.prompt_logprobs is not None:
            details["prompt_logprobs"] = self.prompt_logprobs
        return {
            **details,
            "index": self.index,
            "text": self.text,
            "logprobs": self.logprobs,
            "finish_reason": None if finish is None else finish.value,
            "stop_reason": self.stop_reason,
        }


@dataclass(slots=True, kw_only=True)
class CompletionTokens:
    """Tokens of a request: each prompt counts once, however often it is completed."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0

    def body(self) -> CompletionUsage:
        """Return what clients get."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionHead:
    """What every part of a stream says, and the whole answer."""

    id: str
    created: int  # Unix seconds
    model: str
    service_tier: ServiceTier
    system_fingerprint: str  # another one for another version of the server

    def body(self, choices: Sequence[ChoiceDelta], usage: CompletionTokens | None) -> Completion:
        """Return an answer, or a part of a stream."""
        return {
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model,
            "service_tier": self.service_tier,
            "system_fingerprint": self.system_fingerprint,
            "choices": [each.body() for each in choices],
            "usage": None if usage is None else usage.body(),
        }

    def event(self, choices: Sequence[ChoiceDelta], usage: CompletionTokens | None = None, *, tells: bool) -> bytes:
        """Return a server-sent event; `tells`: this stream has a usage, and so all of its parts have the field."""
        body = self.body(choices, usage)
        if not tells:
            del body["usage"]
        return b"data: %b\n\n" % dumps(body)


def joined(deltas: Sequence[ChoiceDelta], index: int) -> ChoiceDelta:
    """Return a whole choice, made of its deltas in their order."""
    whole = ChoiceDelta(index=index, text="".join(each.text for each in deltas))
    for each in deltas:
        if each.logprobs is not None:
            whole.logprobs = whole.logprobs or logprobs_of(())
            whole.logprobs["tokens"] += each.logprobs["tokens"]
            whole.logprobs["token_logprobs"] += each.logprobs["token_logprobs"]
            whole.logprobs["top_logprobs"] += each.logprobs["top_logprobs"]
            whole.logprobs["text_offset"] += each.logprobs["text_offset"]
        if each.token_ids is not None:
            whole.token_ids = (whole.token_ids or []) + each.token_ids
        whole.prompt_token_ids = whole.prompt_token_ids or each.prompt_token_ids
        whole.prompt_logprobs = whole.prompt_logprobs or each.prompt_logprobs
    whole.finish_reason, whole.stop_reason = deltas[-1].finish_reason, deltas[-1].stop_reason
    return whole


@dataclass(frozen=True, slots=True)
class Echo:
    """What stands before the first token of a choice: the prompt, where it is echoed."""

    text: str = ""
    tokens: Sequence[int] = ()  # its tokens, where their log probabilities are echoed, too
    top: int = 0  # how many alternatives to each of them are told


NO_ECHO = Echo()


class CompletionText:
    """The text of one choice."""

    def __init__(
        self,
        index: int,
        vocabulary: ModelFormat,
        *,
        stops: Sequence[str] = (),
        stop_tokens: Sequence[int] = (),  # those that the client asked for
        logprobs: bool = False,
        echo: Echo = NO_ECHO,
    ) -> None:
        self.index = index
        self.tokens: list[int] = []  # all that were sampled
        self.ended = False  # its end has come
        self._vocabulary = vocabulary
        self._stop_tokens = frozenset(stop_tokens)
        self._stops = StopStrings(stops)
        self._decoder = getincrementaldecoder("utf-8")(errors="replace")  # a character may lie across several tokens
        self._logprobs = logprobs
        self._begin = echo.text
        self._echo = echo
        self._echoed = echo.tokens  # of which it is to be told how likely they were
        self._offset = len(echo.text)  # of the next token

    def feed(self, chunk: TokenChunk) -> ChoiceDelta | None:
        """Take what was sampled; return what is to be told of it, None for nothing. Then it may have `ended`.

        Raises `GenerationFailed` where the engine does not give the log probabilities that are to be echoed.
        """
        self.tokens.extend(chunk.token_ids)
        delta = ChoiceDelta(index=self.index, text=self._begin)
        self._begin = ""
        spelled, is_special = self._vocabulary.token_bytes, self._vocabulary.is_special
        # A token adds less than its own text where a character is not whole yet.
        texts = ["" if is_special(token) else self._decoder.decode(spelled(token)) for token in chunk.token_ids]
        if self._logprobs:
            delta.logprobs = self._of_echo(chunk.prompt_logprobs) if self._echoed else logprobs_of(())
            add_logprobs(delta.logprobs, self._placed(texts, chunk.logprobs or ()))
        decoded = "".join(texts)
        if chunk.finish_reason is not None:
            # What is left of a character that never became whole.
            decoded += self._decoder.decode(b"", final=True)
        delta.text += self._stops.feed(decoded)
        if self._stops.matched is not None:
            self._end(delta, FinishReason.STOP, self._stops.matched)
        elif chunk.finish_reason is not None:
            delta.text += self._stops.rest()
            last = self.tokens[-1] if self.tokens else None
            # A model's own stop token has no reason: only those that the request names.
            is_theirs = chunk.finish_reason is FinishReason.STOP and last in self._stop_tokens
            self._end(delta, chunk.finish_reason, last if is_theirs else None)
        has_more = delta.text or self.ended or (delta.logprobs is not None and delta.logprobs["tokens"])
        return delta if has_more else None

    def _end(self, delta: ChoiceDelta, finish: FinishReason, reason: str | int | None) -> None:
        self.ended = True
        delta.finish_reason, delta.stop_reason = finish, reason

    def _of_echo(self, places: PromptLogprobs | None) -> CompletionLogprobs:
        """Return the log probabilities of the prompt. Raises `GenerationFailed` where they are not there."""
        tokens, self._echoed = self._echoed, ()
        if places is None or len(places) != len(tokens):
            raise GenerationFailed("the engine gives no log probabilities of the prompt")
        decoder = getincrementaldecoder("utf-8")(errors="replace")
        logprobs, offset = logprobs_of(()), 0
        for token, place in zip(tokens, places, strict=True):
            written = self._vocabulary.token_bytes(token)
            if place is None:
                logprobs["tokens"].append(token_text(written))
                logprobs["token_logprobs"].append(None)
                logprobs["top_logprobs"].append(None)
                logprobs["text_offset"].append(offset)
            else:
                add_logprobs(logprobs, [(self._vocabulary.spelled(_of_place(token, place, self._echo.top)), offset)])
            offset += len(decoder.decode(written))
        return logprobs

    def _placed(self, texts: Sequence[str], logprobs: Sequence[TokenLogprob]) -> Iterator[tuple[TextLogprob, int]]:
        for text, entry in zip(texts, logprobs, strict=False):
            # With an echo also a special token has an entry: clients count them.
            if self._echo.tokens or not self._vocabulary.is_special(entry.token_id):
                yield self._vocabulary.spelled(entry), self._offset
            # Also of a special token, whose text is empty.
            self._offset += len(text)
