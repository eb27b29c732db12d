"""`EngineDetails`: what a request wants to know of the engine's work beside the answer, and what the engine said of it.

Nothing of it is in a response's events, its log or the store: it is for the client that asked, while it reads.
The names are vLLM's: `prompt_logprobs`, `kv_transfer_params`, `return_token_ids`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from engine import orjson
from engine.backends.base import BaseEngine
from engine.formats.base import ModelFormat
from engine.types import GenerationRequest, PromptLogprobs, TokenChunk
from responses_app.protocol.errors import invalid_value, unsupported_parameter

MAX_PROMPT_LOGPROBS = 500_000  # of one request: the tokens of its prompts and their alternatives; 40 MB of JSON


@dataclass(slots=True, kw_only=True)
class EngineDetails:
    """The details of one response."""

    # What its client asks for.
    wanted_logprobs: int | None = None  # how many alternatives to each token of the prompt; None: no log probabilities
    given_transfer: Mapping[str, Any] | None = None  # the client's own `kv_transfer_params`, for the engine
    # What its run has of the engine.
    prompt_token_ids: Sequence[int] = ()  # what the model has read
    token_ids: list[int] = field(default_factory=list)  # all that it has sampled so far
    prompt_logprobs: PromptLogprobs | None = None
    token_bytes: Callable[[int], bytes] = lambda _: b""  # those that a token stands for
    kv_transfer_params: Mapping[str, Any] | None = None  # the engine's, for the client

    def begin(self, engine: BaseEngine, written: ModelFormat) -> None:
        """Take the model that answers, and its format. Raises `ApiError` for details that the engine does not give."""
        self.token_bytes = written.token_bytes
        if self.wanted_logprobs is not None and not engine.supports_prompt_logprobs:
            hint = "The engine here gives no log probabilities of the prompt; leave it out."
            raise unsupported_parameter("prompt_logprobs", hint)
        if self.given_transfer is not None and not engine.supports_kv_transfer:
            hint = "The engine here does not move caches by request; leave it out."
            raise unsupported_parameter("kv_transfer_params", hint)

    def check_prompts(self, tokens: int) -> None:
        """Raise `ApiError` where so many tokens of prompts have more log probabilities than one request may have."""
        if self.wanted_logprobs is not None and tokens * (self.wanted_logprobs + 1) > MAX_PROMPT_LOGPROBS:
            raise invalid_value(
                "prompt_logprobs",
                f"the prompt has {tokens} tokens, and with {self.wanted_logprobs} "
                f"alternatives each there are more than {MAX_PROMPT_LOGPROBS}. Ask for fewer.",
            )

    def asked_of(self, request: GenerationRequest) -> GenerationRequest:
        """Return the request with the details; a turn that was cut and goes on does not ask for its prompt's again."""
        # Tokens are there already: this is the rest of a turn that was cut.
        if self.token_ids:
            return request
        self.prompt_token_ids = request.prompt_token_ids
        sampling = request.sampling.but(prompt_logprobs=self.wanted_logprobs)
        return replace(request, sampling=sampling, kv_transfer_params=self.given_transfer)

    def logprobs_as_json(self) -> list[orjson.Fragment] | None:
        """Return the log probabilities of the prompt as vLLM has them: by the ids of tokens, which are texts in JSON.

        A long prompt has up to `MAX_PROMPT_LOGPROBS`, a second's work: off the event loop, and written there, too.
        """
        if self.prompt_logprobs is None:
            return None
        places = (
            None
            if tokens is None
            else {
                str(each.token_id): {
                    "logprob": each.logprob,
                    "rank": each.rank,
                    "decoded_token": self.token_bytes(each.token_id).decode(errors="replace"),
                }
                for each in tokens
            }
            for tokens in self.prompt_logprobs
        )
        return [orjson.Fragment(orjson.dumps(place)) for place in places]

    def take(self, chunk: TokenChunk) -> None:
        """Take a chunk of the engine's."""
        self.token_ids.extend(chunk.token_ids)
        if chunk.prompt_logprobs is not None:
            self.prompt_logprobs = chunk.prompt_logprobs
        if chunk.kv_transfer_params is not None:
            self.kv_transfer_params = chunk.kv_transfer_params


def check_transfer(data: Mapping[str, object], *, engine_fields: bool) -> None:
    """Raise `ApiError` (400) for `kv_transfer_params` of a request, unless it may have the fields of the engine."""
    if data.get("kv_transfer_params") is not None and not engine_fields:
        raise unsupported_parameter(
            "kv_transfer_params",
            "They say where the engine reads caches: RESPONSES_COMPATIBILITY_MODE=false lets clients send them.",
        )
