"""What an engine is asked and what it answers: token ids in, token ids out.

What a turn may be, in no model format's own words: what can be called, whether it must be, and what an answer is.

A request makes `TurnRules`; its model's format makes a `TurnGrammar` of them, which an engine then holds the model to:

    tools, tool_choice, text.format ──> TurnRules ── ModelFormat.grammar() ──> TurnGrammar ──> GenerationRequest

Whatever the rules are, the model may think, and say something before it calls, as often as it likes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any


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
    """A tool that can be called, and what may stand in a call of it.

    `name` is without the format's own prefix; `hosted`: a tool of the server's, else of the client's.
    """

    name: str
    content: Content = AnyText()
    hosted: bool = False


@dataclass(frozen=True, slots=True)
class TurnRules:
    """What a turn may be. `calls` are the only tools that can be called; with `must_call` the turn ends with a call."""

    calls: tuple[CallRule, ...] = ()
    must_call: bool = False
    answer: Content = AnyText()


@dataclass(frozen=True, slots=True)
class TurnGrammar:
    """Rules in the words of a model's format.

    `structural_tag` is JSON as xgrammar reads it, at the level of tokens: vLLM takes it as it is. Engines without a
    model read the `rules`. `loose`: it begins in the middle of a content that has a rule, and lets that one go on as
    any text; whether it fits is to be asked once it has ended (`ModelFormat.problem_of`).
    """

    rules: TurnRules
    structural_tag: str
    loose: bool = False


class FinishReason(Enum):
    """Why a generation ended."""

    STOP = "stop"  # the model sampled a stop token
    LENGTH = "length"  # max_output_tokens or the context ran out
    ABORT = "abort"  # the caller closed the iterator, or the engine was told to abort


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingOptions:
    """How to sample; `None` leaves the choice to the model's own defaults.

    `top_logprobs` asks for every token's log probability and that many alternatives; 0 for the token's own alone.
    `prompt_logprobs` asks for the same of the prompt's tokens; an engine that has none is never asked. `logit_bias` is
    added to the logits of tokens, by their ids. `ignore_eos`: the tokenizer's own end of a text ends nothing; those in
    `stop_token_ids` do.
    """

    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    logit_bias: Mapping[int, float] | None = None
    ignore_eos: bool | None = None
    top_logprobs: int | None = None
    prompt_logprobs: int | None = None
    stop_token_ids: tuple[int, ...] = ()

    def of_choice(self, place: int) -> "SamplingOptions":
        """Return the options of one of several answers: each has a seed of its own, as vLLM gives them."""
        return self if self.seed is None or not place else replace(self, seed=self.seed + place)

    def named(self) -> dict[str, Any]:
        """Return what vLLM has under the same names, and was asked for."""
        return {name: value for name in _AS_VLLM if (value := getattr(self, name)) is not None}


_AS_VLLM = (
    *("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"),
    *("seed", "logit_bias", "ignore_eos", "prompt_logprobs"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """One generation: a prompt of token ids and how to continue it.

    `request_id` is unique among the running generations of an engine. `priority` is vLLM's: lower runs first.
    `cache_salt` separates prefix caches: two salts never share a cached block. Requests with the same `affinity` go to
    the same replica, where an engine has several: their prompts share a beginning. The one that `avoid` names (it is
    that of a `GenerationCut`) is asked last. `grammar` is what the model is held to; an engine that cannot do that is
    never given one. `kv_transfer_params` are for the part of the engine that moves caches between engines, as vLLM has
    them; an engine that has none is never given any. `trace_headers` are for an engine that traces what it does:
    `traceparent` names the span above (W3C Trace Context).
    """

    request_id: str
    prompt_token_ids: Sequence[int]
    sampling: SamplingOptions = field(default_factory=SamplingOptions)
    priority: int = 0
    cache_salt: str | None = None
    affinity: str = ""
    avoid: str = ""
    grammar: TurnGrammar | None = None
    kv_transfer_params: Mapping[str, Any] | None = None
    trace_headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class ChatPrompt:
    """A conversation in the shape of Chat Completions, which a model's chat template makes a prompt of.

    `template_kwargs` are variables that some templates read.
    """

    messages: list[dict[str, Any]] = field(default_factory=list)
    tools: list[dict[str, Any]] = field(default_factory=list)
    template_kwargs: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """How likely a sampled token was; `top` are the likeliest tokens at its place, likeliest first."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class RankedToken:
    """How likely a token was at a place of the prompt; of all tokens the `rank`-th, from 1 on.

    `logprob` is finite: where the engine says that a token is impossible, -9999, as vLLM's servers say it.
    """

    token_id: int
    logprob: float
    rank: int


PromptLogprobs = Sequence[Sequence[RankedToken] | None]


@dataclass(slots=True, kw_only=True)  # not frozen: there is one a token, and a frozen one takes longer to make
class TokenChunk:
    """What an engine sampled since its last chunk; stop tokens included.

    The last chunk, and only it, has a `finish_reason`. `cached_tokens` is the part of the prompt that came from the
    engine's prefix cache, once the engine knows it (at the latest in the last chunk). `logprobs` has one entry
    per token where the request asked for them and the engine gives them. `prompt_logprobs` comes once, with the first
    chunk, where it was asked for: for each token of the prompt what stands there, first, and its likeliest
    alternatives; None for the first token, before which nothing stands. `kv_transfer_params` comes with the last chunk,
    where the engine has any to tell.
    """

    token_ids: Sequence[int]
    finish_reason: FinishReason | None = None
    cached_tokens: int | None = None
    logprobs: Sequence[TokenLogprob] | None = None
    prompt_logprobs: PromptLogprobs | None = None
    kv_transfer_params: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInfo:
    """What a started engine says of itself.

    `max_model_len` counts prompt and output tokens together; `detail` is for the operator: how it is reached.
    """

    backend: str
    model: str
    max_model_len: int
    detail: str = ""
