"""What a request says of sampling, as the engine is told it."""

from collections.abc import Iterable
from typing import Protocol

from engine.formats.base import ModelFormat
from engine.types import SamplingOptions
from responses_app.protocol.errors import invalid_request


class Wishes(Protocol):
    """The fields of a request that responses and raw completions have under the same names."""

    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    repetition_penalty: float | None
    seed: int | None
    stop_token_ids: list[int] | None
    logit_bias: dict[str, float] | None
    ignore_eos: bool | None


def sampling_of(
    wishes: Wishes,
    model_format: ModelFormat,
    *,
    top_logprobs: int | None,
    prompt_logprobs: int | None = None,
    max_output_tokens: int | None = None,
) -> SamplingOptions:
    """Return how to sample. Raises `ApiError` for tokens that the model does not have."""
    bias = {int(token): value for token, value in (wishes.logit_bias or {}).items()}
    stop_tokens = wishes.stop_token_ids or ()
    check_tokens(bias, model_format, "logit_bias")
    check_tokens(stop_tokens, model_format, "stop_token_ids")
    return SamplingOptions(
        max_output_tokens=max_output_tokens,
        temperature=wishes.temperature,
        top_p=wishes.top_p,
        top_k=wishes.top_k,
        min_p=wishes.min_p,
        presence_penalty=wishes.presence_penalty,
        frequency_penalty=wishes.frequency_penalty,
        repetition_penalty=wishes.repetition_penalty,
        seed=wishes.seed,
        logit_bias=bias or None,
        ignore_eos=wishes.ignore_eos,
        top_logprobs=top_logprobs,
        prompt_logprobs=prompt_logprobs,
        stop_token_ids=tuple(dict.fromkeys((*model_format.stop_tokens, *stop_tokens))),
    )


def check_tokens(tokens: Iterable[int], model_format: ModelFormat, param: str) -> None:
    """Refuse tokens that the model does not have."""
    strange = next((token for token in tokens if not model_format.is_token(token)), None)
    if strange is not None:
        raise invalid_request(
            f"Invalid value for '{param}': the model has no token {strange}.", param=param, code="invalid_value"
        )
