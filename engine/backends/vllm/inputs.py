"""What vLLM's `AsyncLLM` is given for a generation: a prompt, and parameters with a grammar."""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from engine.errors import GrammarRefused
from engine.grammar import TurnGrammar
from engine.types import GenerationRequest, SamplingOptions


def rendered(llm: Any, request: GenerationRequest) -> Any:
    """Return the prompt as vLLM's renderer gives it."""
    prompt: dict[str, object] = {"prompt_token_ids": list(request.prompt_token_ids)}
    if request.cache_salt is not None:
        prompt["cache_salt"] = request.cache_salt
    (found,) = llm.renderer.render_cmpl([prompt])
    return found


def sampling_params(
    sampling: SamplingOptions,
    *,
    room: int,
    grammar: TurnGrammar | None = None,
    transfer: Mapping[str, Any] | None = None,
) -> Any:
    """Return vLLM's parameters; `room` is how many tokens there may be at most, `transfer` its kv_transfer_params."""
    from vllm.sampling_params import RequestOutputKind, SamplingParams, StructuredOutputsParams

    wanted: dict[str, object] = {
        **sampling.named(),
        "logprobs": sampling.top_logprobs,
        "extra_args": None if transfer is None else {"kv_transfer_params": dict(transfer)},
    }
    if grammar is not None:
        wanted["structured_outputs"] = StructuredOutputsParams(structural_tag=grammar.structural_tag)
    made = SamplingParams if grammar is None else _params_with_a_checked_grammar()
    return made(
        **{name: value for name, value in wanted.items() if value is not None},
        max_tokens=room if sampling.max_output_tokens is None else min(room, sampling.max_output_tokens),
        stop_token_ids=list(sampling.stop_token_ids),
        output_kind=RequestOutputKind.DELTA,
        detokenize=False,
    )


def require_readable(grammar: TurnGrammar) -> None:
    """Return if xgrammar can read a grammar; else raise `GrammarRefused`. Blocks: for 20 tools 30 ms."""
    import xgrammar

    try:
        xgrammar.Grammar.from_structural_tag(grammar.structural_tag)
    except Exception as error:
        reason = re.sub(
            r"^\[[^\]]*\] \S+: ", "", " ".join(str(error).split())
        )  # without a clock and a line of xgrammar's
        raise GrammarRefused(f"The grammar cannot be enforced: {reason[:300]}") from error


@lru_cache(maxsize=1)
def _params_with_a_checked_grammar() -> Any:
    """Return vLLM's parameters for a grammar that `require_readable` has seen.

    vLLM would read the whole grammar again for every generation, on the event loop (30 ms for 20 tools).
    """
    from vllm.sampling_params import SamplingParams

    class CheckedParams(SamplingParams):  # type: ignore[misc]  # vLLM is not installed where this is checked
        def _validate_structured_outputs(self, *_: object) -> None:
            self.structured_outputs._backend = "xgrammar"

    return CheckedParams
