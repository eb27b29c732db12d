"""What an engine is asked and what it answers: token ids in, token ids out.

What a turn may be, in no model format's own words: what can be called, whether it must be, and what an answer is.

A request makes `TurnRules`; its model's format makes a `TurnGrammar` of them, which an engine then holds the model to:

    tools, tool_choice, text.format ──> TurnRules ── ModelFormat.grammar() ──> TurnGrammar ──> GenerationRequest

Whatever the rules are, the model may think, and say something before it calls, as often as it likes.

How tokens are sampled, each field of a request declares here, and nowhere else: with its name, its type, the bounds of
whoever invented it, and how engines call it (`Carried`). Everything that takes one is made from that:

    TokenSampling     a roll-out's defaults, and the base of `TextSampling`
    TextSampling      requests for responses, chats and completions, and an engine's `SamplingOptions`
    MessagesSampling  the fields that Anthropic's API has

So is all that describes them: the playground's controls (`extensions/playground/page.py`), the table of sampling in the
reference, and the names that OpenAI does not have (`protocol/requests/create_fields.py`).
"""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from hashlib import blake2b
from typing import Annotated, Any, NamedTuple, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.fields import FieldInfo


@dataclass(frozen=True, slots=True)
class Carried:
    """How a field is told to engines, and shown to people."""

    usual: str = ""  # its value where neither the request nor the model says one
    llama: str | None = ""  # llama.cpp's name for it, where it is another one; None: this server carries it out there
    label: str = ""  # of a control; where there is none, its name with a capital letter
    hint: str = ""
    ends: bool = False  # it is about where a text ends, else about how tokens are drawn


def _without_point(value: object) -> object:
    return int(value) if isinstance(value, float) and value.is_integer() else value


# Of a field that is an integer, but a float in some SDKs, such as `top_k` in Google's: 40.0 is taken for 40.
WHOLE = BeforeValidator(_without_point)
_TokenId = Annotated[str, Field(pattern=r"^[0-9]{1,9}$")]  # keys of JSON are texts
_BIAS = "By token id, from -100 to 100"  # added to the tokens' logits
_LogitBias = Annotated[dict[_TokenId, Annotated[float, Field(ge=-100, le=100)]], Field(max_length=1024)]


class TokenSampling(BaseModel):
    """How a token is drawn; None leaves it to the model's own defaults."""

    model_config = ConfigDict(frozen=True, strict=True, defer_build=True)

    temperature: Annotated[float | None, Field(ge=0, le=2), Carried("1")] = None
    top_p: Annotated[float | None, Field(ge=0, le=1), Carried("1")] = None  # 0: only the likeliest token
    # -1 and 0: no bound, as vLLM has it.
    top_k: Annotated[int | None, Field(ge=-1, lt=2**31), WHOLE, Carried("all")] = None
    min_p: Annotated[float | None, Field(ge=0, le=1), Carried("0")] = None
    presence_penalty: Annotated[float | None, Field(ge=-2, le=2), Carried("0")] = None
    frequency_penalty: Annotated[float | None, Field(ge=-2, le=2), Carried("0")] = None
    repetition_penalty: Annotated[
        float | None, Field(gt=0, allow_inf_nan=False), Carried("1", llama="repeat_penalty")
    ] = None
    seed: Annotated[int | None, Field(ge=-(2**63), lt=2**63), Carried("random")] = None


class TextSampling(TokenSampling):
    """How a text is sampled."""

    logit_bias: Annotated[_LogitBias | None, Carried('{"50256": -100}', hint=_BIAS)] = None
    # The tokenizer's own end of a text ends nothing; a stop token of the request does.
    ignore_eos: Annotated[bool | None, Carried(llama=None, label="Ignore the model's own end", ends=True)] = None

    def wishes(self) -> dict[str, Any]:
        """Return the options that are given, by the names here."""
        return {name: value for name in SAMPLED if (value := getattr(self, name)) is not None}


class MessagesSampling(BaseModel):
    """The sampling fields of Anthropic's API, within its bounds."""

    model_config = TokenSampling.model_config

    temperature: Annotated[float | None, Field(ge=0, le=1)] = None
    top_p: Annotated[float | None, Field(ge=0, le=1)] = None
    top_k: Annotated[int | None, Field(ge=0, lt=2**31), WHOLE] = None


SAMPLED: Mapping[str, FieldInfo] = TextSampling.model_fields


def carried(name: str) -> Carried:
    """Return how a field is told to engines, and shown to people."""
    return next(each for each in SAMPLED[name].metadata if isinstance(each, Carried))


def bounds_of(name: str) -> dict[str, float]:
    """Return the bounds of a number: `ge` and `gt`, `le` and `lt`, as far as there are any."""
    return {
        bound: getattr(each, bound)
        for each in SAMPLED[name].metadata
        for bound in ("ge", "gt", "le", "lt")
        if getattr(each, bound, None) is not None
    }


def kind_of(name: str) -> type:
    """Return the type of a field's value: `float`, `int`, `bool` or `dict`."""
    kind = get_args(SAMPLED[name].annotation)[0]
    return dict if get_origin(kind) is Annotated or get_origin(kind) is dict else kind


DIGEST_BYTES = 16


def digest_of(*names: str) -> str:
    """Return a digest of names, in lower-case hexadecimal; no two lists of names read the same."""
    # As JSON in ASCII: names come from clients, and may have half a character in them.
    return blake2b(json.dumps(names).encode(), digest_size=DIGEST_BYTES).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """The line of prompts that a generation belongs to, each of which begins with the one before.

    A chain of responses, a conversation, one agent of a harness: a pool of replicas chooses by it, and routers behind
    an engine are told it. It is named by a digest, which says nothing of what a client calls it, and in which its
    project has a part: two projects never have one session.
    """

    id: str = ""  # a digest; empty: it belongs to nothing
    parent: str = ""  # the session that began this one, and with which it may share its beginning; empty for none
    project: str = ""  # a digest of whose it is; empty where nobody is asked who they are
    # It is named by what its client shares among any prompts (`prompt_cache_key`): nobody can say when it is over.
    shared: bool = False
    final: bool = False  # it is over: nothing will ask for it any more
    # Within so many seconds its next turn most likely comes, where its model calls tools; None: nobody knows.
    back_in: float | None = None

    def child(self, name: str) -> "Session":
        """Return the session of what it has begun under a name."""
        return replace(self, id=digest_of(self.id, name), parent=self.id) if self.id else self


NO_SESSION = Session()


@dataclass(frozen=True, slots=True)
class AnyText:
    """Text without a rule."""


@dataclass(frozen=True, slots=True)
class AnyObject:
    """Any JSON object."""


@dataclass(frozen=True, slots=True)
class JsonSchema:
    """JSON that fits a schema, which is itself JSON text."""

    schema: str


@dataclass(frozen=True, slots=True)
class Regex:
    """Text that a regular expression matches as a whole."""

    pattern: str


@dataclass(frozen=True, slots=True)
class Lark:
    """Text that a Lark grammar derives."""

    grammar: str


Content = AnyText | AnyObject | JsonSchema | Regex | Lark


@dataclass(frozen=True, slots=True)
class CallRule:
    """A tool that can be called."""

    name: str  # without the format's own prefix
    content: Content = AnyText()  # what may stand in a call of it
    hosted: bool = False  # a tool of the server's, else of the client's


@dataclass(frozen=True, slots=True)
class TurnRules:
    """What a turn may be."""

    calls: tuple[CallRule, ...] = ()  # the only tools that can be called
    must_call: bool = False  # the turn ends with a call
    answer: Content = AnyText()  # what an answer may be, where there may be one


@dataclass(frozen=True, slots=True)
class TurnGrammar:
    """Rules in the words of a model's format."""

    rules: TurnRules  # what engines without a model read
    structural_tag: str  # JSON as xgrammar reads it, at the level of tokens: vLLM takes it as it is
    # It begins in the middle of a content that has a rule, and lets that one go on as any text; whether it fits is
    # to be asked once it has ended (`ModelFormat.problem_of`).
    loose: bool = False


class FinishReason(Enum):
    """Why a generation ended."""

    STOP = "stop"  # the model sampled a stop token
    LENGTH = "length"  # max_output_tokens or the context ran out
    ABORT = "abort"  # the caller closed the iterator, or the engine was told to abort


class SamplingOptions(TextSampling):
    """How to sample, and what is wanted beside tokens; `None` leaves the choice to the model's own defaults."""

    max_output_tokens: int | None = None  # stop tokens included
    top_logprobs: int | None = None  # every token's log probability and so many alternatives; 0: the token's own alone
    prompt_logprobs: int | None = None  # the same of the prompt's tokens; an engine that has none is never asked
    stop_token_ids: tuple[int, ...] = ()

    def but(self, **changes: Any) -> "SamplingOptions":
        """Return these options with some changed."""
        return self.model_copy(update=changes)

    def of_choice(self, place: int) -> "SamplingOptions":
        """Return the options of one of several answers: each has a seed of its own, as vLLM gives them."""
        return self if self.seed is None or not place else self.but(seed=self.seed + place)

    def named(self) -> dict[str, Any]:
        """Return what vLLM has under the same names, and was asked for."""
        logprobs = {} if self.prompt_logprobs is None else {"prompt_logprobs": self.prompt_logprobs}
        return {**self.wishes(), **logprobs}


@dataclass(frozen=True, slots=True)
class PictureSource:
    """A picture of a prompt. Engines keep what they have seen, so its bytes are loaded when they are asked for."""

    digest: str  # what tells it from all others: SHA-256 in lower-case hexadecimal
    load: Callable[[], Awaitable[bytes]]  # gives it as PNG, JPEG or WebP; raises `PictureGone`


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """One generation: a prompt of token ids and how to continue it."""

    request_id: str  # unique among the running generations of an engine
    prompt_token_ids: Sequence[int]
    # One for each image token of the prompt, in their order; an engine that takes none is never given any.
    pictures: Sequence[PictureSource] = ()
    sampling: SamplingOptions = field(default_factory=SamplingOptions)
    priority: int = 0  # vLLM's: lower runs first
    cache_salt: str | None = None  # two salts never share a block of a prefix cache
    session: Session = NO_SESSION  # those of the same one share a beginning, and go to the same replica of several
    kin: str = ""  # those with the same one only begin alike: a new session goes where another one of them was asked
    avoid: str = ""  # the replica that is asked last: `at` of a `GenerationCut`
    # The version of the weights that are to sample it, by which a pool chooses its replica; empty for any. Who asks
    # holds it against `TokenChunk.weights_version`.
    weights: str = ""
    grammar: TurnGrammar | None = None  # what the model is held to; only for an engine that can do that
    # For the part of vLLM that moves caches between engines; an engine that has none is never given any.
    kv_transfer_params: Mapping[str, Any] | None = None
    trace_headers: Mapping[str, str] = field(default_factory=dict)  # `traceparent`: the span above (W3C Trace Context)


@dataclass(slots=True)
class ChatPrompt:
    """A conversation in the shape of Chat Completions, which a model's chat template makes a prompt of."""

    messages: list[dict[str, Any]] = field(default_factory=list)
    tools: list[dict[str, Any]] = field(default_factory=list)
    template_kwargs: dict[str, Any] = field(default_factory=dict)  # variables that some templates read


@dataclass(slots=True)  # not frozen: where roll-outs are recorded there is one a token
class TokenLogprob:
    """How likely a sampled token was."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()  # the likeliest tokens at its place, likeliest first


@dataclass(frozen=True, slots=True)
class RankedToken:
    """How likely a token was at a place of the prompt."""

    token_id: int
    logprob: float  # finite: where the engine says that a token is impossible, -9999, as vLLM's servers say it
    rank: int  # among all tokens, from 1 on


PromptLogprobs = Sequence[Sequence[RankedToken] | None]


UNKNOWN = ""  # a version of weights: one of several, and nobody can say of which token


class WeightsSpan(NamedTuple):
    """Tokens in a row that weights of one version sampled."""

    version: str | None  # None where nobody knows
    tokens: int


@dataclass(slots=True, kw_only=True)  # not frozen: there is one a token, and a frozen one takes longer to make
class TokenChunk:
    """What an engine sampled since its last chunk; stop tokens included."""

    token_ids: Sequence[int]
    finish_reason: FinishReason | None = None  # of the last chunk, and only of it
    cached_tokens: int | None = None  # of the prompt, from the prefix cache; known at the latest in the last chunk
    # How long the prompt was with its pictures as the engine has them: each is one token in the request's. None where
    # there are none; known at the latest in the last chunk.
    prompt_tokens: int | None = None
    logprobs: Sequence[TokenLogprob] | None = None  # one a token, where they were asked for and the engine has them
    # Once, with the first chunk, where they were asked for: for each token of the prompt what stands there, first, and
    # its likeliest alternatives; None for the first token, before which nothing stands.
    prompt_logprobs: PromptLogprobs | None = None
    kv_transfer_params: Mapping[str, Any] | None = None  # with the last chunk, where the engine has any to tell
    # Of the weights that sampled these tokens; None where the engine does not tell, `UNKNOWN` where they may be
    # `newest` or older: the weights have changed meanwhile.
    weights_version: str | None = None
    newest: str | None = None
    # With the last chunk of an engine that tells it only then: the versions of all tokens of this generation, in their
    # order. What the chunks before said was the newest version that was known when they came, and may be late.
    weights: Sequence[WeightsSpan] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInfo:
    """What a started engine says of itself."""

    backend: str
    model: str
    max_model_len: int  # prompt and output tokens together
    detail: str = ""  # for the operator: how it is reached
    at_once: int = 0  # generations that it runs side by side, where more would wait in it; 0: any number
