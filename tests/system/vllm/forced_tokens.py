"""A vLLM logits processor that makes a model with meaningless weights say exactly what a test wants.

Load it with `logits_processors=["tests.system.vllm.forced_tokens:ForcedTokens"]` (in process) or with
`--logits-processors tests.system.vllm.forced_tokens:ForcedTokens` (server). A completion comes from
`SamplingParams.extra_args["forced_tokens"]`, or else from the script that `FORCED_TOKENS_SCRIPT` names
(`tests/system/vllm/script.py`); a request that has neither is sampled as usual, and so is what follows a beginning.
vLLM still schedules, batches, caches prefixes, streams, aborts and counts tokens for real.

vLLM masks what a grammar forbids before this is asked. What is forced is forced all the same, and then vLLM's own copy
of the grammar has to accept it; what is sampled is left to the mask.
"""

import torch
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import AdapterLogitsProcessor

from tests.system.vllm.script import Completion, Completions


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
        extra = params.extra_args or {}
        given = extra.get("forced_tokens") or (extra.get("kv_transfer_params") or {}).get("forced_tokens")
        if given:
            return Forced(Completion(tuple(given)), None)
        return Forced(None, self._completions) if self._completions else None


class Forced:
    """One request; its completion is looked up by its prompt, once, where none was given."""

    def __init__(self, completion: Completion | None, completions: Completions | None) -> None:
        self._completion = completion
        self._completions = completions

    def __call__(self, prompt_ids: list[int], output_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
        """Return logits with one possible token, or as they are where the model samples."""
        if self._completions is not None:
            self._completion, self._completions = self._completions.find(prompt_ids), None
        if self._completion is None:
            return logits
        token = self._completion.token(len(output_ids), lambda token: bool(logits[token].isfinite()))
        if token is None:
            return logits
        only = torch.full_like(logits, float("-inf"))
        only[token] = 0.0
        return only
