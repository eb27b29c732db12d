"""A generation by vLLM's `AsyncLLM`: its arguments, and its outputs as chunks.

`sampling_params` is for the one, `take_failure` and `chunk_of` for the other.
"""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

from engine.backends.vllm.config import reason
from engine.backends.vllm.pictures import KeptPictures, name_of
from engine.backends.vllm.wire import FINISH_REASONS, Place, RankedPrompt
from engine.errors import (
    EngineError,
    EngineOverloaded,
    EngineUnavailable,
    GenerationFailed,
    GrammarBroken,
    GrammarRefused,
)
from engine.threads import in_thread
from engine.types import GenerationRequest, TokenChunk, TokenLogprob, TurnGrammar

FAILED = "error"  # vLLM's own, for an error of its own; above all for a token that a grammar rejects
# vLLM masks what a grammar forbids, so this is a fault of the server's, never of a request.
REJECTED = (
    "Where vLLM's log says 'grammar rejected tokens', a token came past the grammar's mask: leave out logits "
    "processors, speculative decoding and a tokenizer of your own, or report it with that line"
)


def rendered(llm: Any, request: GenerationRequest) -> Any:
    """Return the prompt as vLLM's renderer gives it."""
    prompt: dict[str, object] = {"prompt_token_ids": list(request.prompt_token_ids)}
    if request.cache_salt is not None:
        prompt["cache_salt"] = request.cache_salt
    # vLLM 0.32 gives a list, one for each prompt: we always give one.
    (rendering,) = llm.renderer.render_cmpl([prompt])
    return rendering


async def rendered_with_pictures(
    llm: Any, request: GenerationRequest, kept: KeptPictures, *, every: bool = False
) -> Any:
    """Return the same of a prompt with pictures: vLLM gets those that it has not seen, or `every` one.

    Raises `PictureGone`, and what vLLM raises for pictures that it does not take.
    """
    names = [name_of(each, request.cache_salt) for each in request.pictures]
    prompt: dict[str, object] = {
        "prompt_token_ids": list(request.prompt_token_ids),
        "multi_modal_uuids": {"image": names},
    }
    if request.cache_salt is not None:
        prompt["cache_salt"] = request.cache_salt
    for last in (every, True):
        data = await kept.data_of(request.pictures, names, every=last)
        # Decoded on a thread, and what a model's processor makes of them is made on one of vLLM's.
        prompt["multi_modal_data"] = {"image": await in_thread(partial(_decoded, data))}
        try:
            (rendering,) = await llm.renderer.render_cmpl_async([prompt])
        except ValueError:
            if last or None not in data:
                raise
        else:
            kept.keep(names)
            return rendering
    raise AssertionError("the last attempt has worked or raised")


def _decoded(data: Sequence[bytes | None]) -> list[Any]:
    """Return images as vLLM reads them from requests of its own. Raises `ValueError`."""
    from vllm.multimodal.media.image import ImageMediaIO

    reader = ImageMediaIO()
    return [None if content is None else reader.load_bytes(content) for content in data]


def takes_pictures(llm: Any) -> bool:
    """Whether the model that is loaded sees, and may (`limit_mm_per_prompt`)."""
    limits = llm.vllm_config.model_config.multimodal_config
    return limits is not None and limits.get_limit_per_prompt("image") > 0


def sampling_params(request: GenerationRequest, *, max_tokens: int) -> Any:
    """Return vLLM's parameters."""
    from vllm.sampling_params import RequestOutputKind, SamplingParams, StructuredOutputsParams

    # Beside those that have the same name here and there (`named`): what vLLM calls otherwise.
    sampling, grammar, transfer = request.sampling, request.grammar, request.kv_transfer_params
    options: dict[str, object] = {
        **sampling.named(),
        "logit_bias": {int(token): bias for token, bias in (sampling.logit_bias or {}).items()} or None,
        "logprobs": sampling.top_logprobs,
        "extra_args": None if transfer is None else {"kv_transfer_params": dict(transfer)},
    }
    if grammar is not None:
        options["structured_outputs"] = StructuredOutputsParams(structural_tag=grammar.structural_tag)
    make = SamplingParams if grammar is None else _params_with_a_checked_grammar()
    return make(
        # What is None is left out: vLLM has defaults of its own, and takes no None for some of its fields.
        **{name: value for name, value in options.items() if value is not None},
        max_tokens=max_tokens,
        stop_token_ids=list(sampling.stop_token_ids),
        output_kind=RequestOutputKind.DELTA,  # only what is new since the last output, not the whole each time
        detokenize=False,  # we read token ids alone, and turn them into text ourselves
    )


def require_readable(grammar: TurnGrammar) -> None:
    """Return if xgrammar can read a grammar; else raise `GrammarRefused`. Blocks: for 20 tools 30 ms."""
    import xgrammar

    try:
        xgrammar.Grammar.from_structural_tag(grammar.structural_tag)
    except Exception as error:
        text = " ".join(str(error).split())
        text = re.sub(r"^\[[^\]]*\] \S+: ", "", text)  # a clock, and a line of xgrammar's
        raise GrammarRefused(f"The grammar cannot be enforced: {text[:300]}") from error


@lru_cache(maxsize=1)
def _params_with_a_checked_grammar() -> Any:
    """Return vLLM's parameters for a grammar that `require_readable` has seen.

    vLLM would read the whole grammar again for every generation, on the event loop (30 ms for 20 tools).
    """
    from vllm.sampling_params import SamplingParams

    class CheckedParams(SamplingParams):  # type: ignore[misc]  # vLLM is not installed where this is checked
        # vLLM's own check also notes the backend, which the engine core reads: so that is left for us to do.
        def _validate_structured_outputs(self, *_: object) -> None:
            self.structured_outputs._backend = "xgrammar"

    return CheckedParams


def has_failed(output: Any) -> bool:
    """Whether a `RequestOutput` says that the engine core failed before it sampled anything."""
    (completion,) = output.outputs
    return completion.finish_reason == FAILED and not completion.token_ids


def take_failure(output: Any, *, constrained: bool) -> EngineError | None:
    """Take an unknown end out of a `RequestOutput`, and return it as an error; None where it has none.

    The output then holds what was sampled before: vLLM adds an end to the outputs that nobody has read yet. Where the
    generation was `constrained`, the last token is the one that its grammar has rejected, so it is taken out as well.
    """
    (completion,) = output.outputs
    finish = completion.finish_reason
    if finish is None or finish in FINISH_REASONS:
        return None
    completion.finish_reason = None
    if finish != FAILED or not constrained:
        return GenerationFailed(f"vLLM ended the generation with {finish!r}.")
    completion.token_ids = completion.token_ids[:-1]
    if completion.logprobs is not None:
        completion.logprobs = completion.logprobs[:-1]
    return GrammarBroken(f"vLLM ended the generation with {finish!r}. {REJECTED}.")


def chunk_of(
    output: Any, top_logprobs: int | None, *, prompt: Sequence[int] = (), has_pictures: bool = False
) -> TokenChunk:
    """Return what a `RequestOutput` adds to the ones before it. With pictures it tells the tokens of the prompt, too.

    Its end is one that we know (`take_failure`).
    """
    # A tuple of one: we never ask for several answers (`n`) in one request.
    (completion,) = output.outputs
    finish = completion.finish_reason
    logprobs = None
    if top_logprobs is not None and completion.logprobs is not None:
        logprobs = [
            _logprob(token, position, top_logprobs)
            # `strict`: tokens and log probabilities that do not match would be shown for the wrong token.
            for token, position in zip(completion.token_ids, completion.logprobs, strict=True)
        ]
    prompted = output.prompt_token_ids if has_pictures else prompt
    return TokenChunk(
        token_ids=completion.token_ids,
        finish_reason=FINISH_REASONS[finish] if finish else None,
        cached_tokens=output.num_cached_tokens,  # vLLM says it with every output; the caller reads it from the last one
        logprobs=logprobs,
        prompt_logprobs=RankedPrompt(prompted, output.prompt_logprobs, _entries) if output.prompt_logprobs else None,
        # Made when the generation is over: earlier there is nothing to fetch.
        kv_transfer_params=output.kv_transfer_params if finish else None,
        prompt_tokens=len(output.prompt_token_ids) if has_pictures and finish else None,
    )


def _entries(place: Mapping[int, Any]) -> Place:
    return ((token, entry.logprob, entry.rank) for token, entry in place.items())


def _logprob(token: int, position: Mapping[int, Any], top_logprobs: int) -> TokenLogprob:
    """Read one position: vLLM gives the sampled token, likely or not, and the `top_logprobs` likeliest ones."""
    if not top_logprobs:  # as roll-outs ask for them
        return TokenLogprob(token, position[token].logprob)
    # The sampled token has its own rank: where it is not among the likeliest it stands behind them, and is cut off.
    ranked = sorted(position.items(), key=lambda entry: entry[1].rank)[:top_logprobs]
    top = tuple((each, entry.logprob) for each, entry in ranked)
    return TokenLogprob(token_id=token, logprob=position[token].logprob, top=top)


def blames_request(error: BaseException | None) -> bool:
    """Whether vLLM raises it for what it was asked, and not for a fault of its own."""
    if isinstance(error, ValueError):  # of its renderers
        return True
    from vllm.exceptions import VLLMClientError

    return isinstance(error, VLLMClientError)


def translated(error: Exception) -> EngineError:
    """Return what an exception of vLLM means to the caller."""
    from vllm.exceptions import GracefulHTTPError
    from vllm.v1.engine.exceptions import EngineDeadError

    if isinstance(error, EngineDeadError):
        return EngineUnavailable("The vLLM engine died or was closed.")
    if isinstance(error, GracefulHTTPError):
        return EngineOverloaded(reason(error))
    # vLLM wraps what goes wrong in an `EngineGenerateError`, whose own text says nothing.
    cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
    return GenerationFailed(f"vLLM failed: {type(cause).__name__}: {reason(cause)}.")
