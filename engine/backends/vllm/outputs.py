"""What vLLM's `AsyncLLM` gives for a generation, as chunks of tokens."""

from collections.abc import Mapping, Sequence
from typing import Any

from engine.backends.vllm.config import reason
from engine.backends.vllm.prompt_logprobs import Place, RankedPrompt
from engine.errors import EngineError, EngineOverloaded, EngineUnavailable, GenerationFailed, GrammarBroken
from engine.types import FinishReason, TokenChunk, TokenLogprob

FINISH_REASONS = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH, "abort": FinishReason.ABORT}

FAILED = "error"  # vLLM's own, for an error of its own; above all for a token that a grammar rejects
# vLLM masks what a grammar forbids, so this is a fault of the server's, never of a request.
REJECTED = (
    "Where vLLM's log says 'grammar rejected tokens', a token came past the grammar's mask: leave out logits "
    "processors, speculative decoding and a tokenizer of your own, or report it with that line"
)


def chunk_of(
    output: Any, top_logprobs: int | None, *, constrained: bool = False, prompt: Sequence[int] = ()
) -> TokenChunk:
    """Return what a `RequestOutput` adds to the ones before it.

    Raises `GenerationFailed` for an unknown end, `GrammarBroken` for a failure of a `constrained` one.
    """
    (completion,) = output.outputs
    finish = completion.finish_reason
    if finish == FAILED and constrained:
        raise GrammarBroken(f"vLLM ended the generation with {finish!r}. {REJECTED}.")
    if finish is not None and finish not in FINISH_REASONS:
        raise GenerationFailed(f"vLLM ended the generation with {finish!r}.")
    logprobs = None
    if top_logprobs is not None and completion.logprobs is not None:
        logprobs = [
            _logprob(token, position, top_logprobs)
            for token, position in zip(completion.token_ids, completion.logprobs, strict=True)
        ]
    return TokenChunk(
        token_ids=completion.token_ids,
        finish_reason=FINISH_REASONS[finish] if finish else None,
        cached_tokens=output.num_cached_tokens,
        logprobs=logprobs,
        prompt_logprobs=RankedPrompt(prompt, output.prompt_logprobs, _entries) if output.prompt_logprobs else None,
        kv_transfer_params=output.kv_transfer_params if finish else None,
    )


def _entries(place: Mapping[int, Any]) -> Place:
    return ((token, entry.logprob, entry.rank) for token, entry in place.items())


def _logprob(token: int, position: Mapping[int, Any], top_logprobs: int) -> TokenLogprob:
    """Read one position: vLLM gives the sampled token, likely or not, and the `top_logprobs` likeliest ones."""
    ranked = sorted(position.items(), key=lambda entry: entry[1].rank)[:top_logprobs]
    top = tuple((each, entry.logprob) for each, entry in ranked)
    return TokenLogprob(token_id=token, logprob=position[token].logprob, top=top)


def translated(error: Exception) -> EngineError:
    """Return what an exception of vLLM means to the caller."""
    from vllm.exceptions import GracefulHTTPError
    from vllm.v1.engine.exceptions import EngineDeadError

    if isinstance(error, EngineDeadError):
        return EngineUnavailable("The vLLM engine died or was closed.")
    if isinstance(error, GracefulHTTPError):
        return EngineOverloaded(reason(error))
    cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
    return GenerationFailed(f"vLLM failed: {type(cause).__name__}: {reason(cause)}.")
