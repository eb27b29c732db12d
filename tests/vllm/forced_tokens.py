"""A vLLM logits processor that makes a model with meaningless weights say exactly what a test wants.

Load it with `logits_processors=["tests.vllm.forced_tokens:ForcedTokens"]` (in process) or with
`--logits-processors tests.vllm.forced_tokens:ForcedTokens` (server). A completion comes from
`SamplingParams.extra_args["forced_tokens"]`, or else from the script that `FORCED_TOKENS_SCRIPT` names
(`tests/vllm/script.py`); a request that has neither is sampled as usual. vLLM still schedules, batches, caches
prefixes, streams, aborts and counts tokens for real.
"""

from collections.abc import Sequence

import torch
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import AdapterLogitsProcessor

from engine.formats.harmony.encoding import RETURN
from tests.vllm.script import Completions


class ForcedTokens(AdapterLogitsProcessor):
    """Leaves one token to choose from at every step of a forced request."""

    def __init__(self, vllm_config: object, device: torch.device, is_pin_memory: bool) -> None:
        super().__init__(vllm_config, device, is_pin_memory)
        self._completions = Completions.from_environ()

    @classmethod
    def validate_params(cls, params: SamplingParams) -> None:
        """Take any parameters."""

    def is_argmax_invariant(self) -> bool:
        """Say that greedy requests need it too."""
        return False

    def new_req_logits_processor(self, params: SamplingParams) -> "Forced | None":
        """Return what forces one request."""
        given = (params.extra_args or {}).get("forced_tokens")
        if given:
            return Forced(tuple(given), None)
        return Forced(None, self._completions) if self._completions else None


class Forced:
    """One request; its completion is looked up by its prompt, once, where none was given."""

    def __init__(self, completion: Sequence[int] | None, completions: Completions | None) -> None:
        self._completion = completion
        self._completions = completions

    def __call__(self, prompt_ids: list[int], output_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
        """Return logits with one possible token."""
        if self._completions is not None:
            self._completion, self._completions = self._completions.find(prompt_ids), None
        if self._completion is None:
            return logits
        position = len(output_ids)
        token = self._completion[position] if position < len(self._completion) else RETURN
        only = torch.full_like(logits, float("-inf"))
        only[token] = 0.0
        return only
