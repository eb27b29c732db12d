"""A vLLM logits processor that makes the tiny models of two families say what a test wants.

What they say is in a JSON file that `CHAT_SCRIPT` names: completions by the text that comes last in the prompt.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path

import torch
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import AdapterLogitsProcessor

from engine.formats.chat_template.vocabulary import Vocabulary, vocabulary_of
from tests.system.vllm.chat_models import SAMPLED, SCRIPT_VARIABLE
from tests.unit.formats.families import LLAMA, QWEN
from tests.unit.formats.rendering import Renderer


class ForcedText(AdapterLogitsProcessor):
    """Leaves one token to choose from at every step of a request that the script knows."""

    def __init__(self, vllm_config: object, device: torch.device, is_pin_memory: bool) -> None:
        super().__init__(vllm_config, device, is_pin_memory)
        model_type = vllm_config.model_config.hf_config.model_type  # type: ignore[attr-defined]
        self._family = QWEN if model_type == "qwen3" else LLAMA
        self._renderer = Renderer(self._family)
        self._vocabulary = vocabulary_of(self._family.tokenizer(), [])
        self._path = Path(os.environ[SCRIPT_VARIABLE])

    @classmethod
    def validate_params(cls, params: SamplingParams) -> None:
        """Take any parameters."""

    def is_argmax_invariant(self) -> bool:
        """Say that greedy requests need it too."""
        return False

    def new_req_logits_processor(self, params: SamplingParams) -> "Forced":
        script: Mapping[str, str] = json.loads(self._path.read_text(encoding="utf-8"))[self._family.name]
        return Forced(self._renderer, self._vocabulary, script)


class Forced:
    def __init__(self, renderer: Renderer, vocabulary: Vocabulary, script: Mapping[str, str]) -> None:
        self._renderer = renderer
        self._vocabulary = vocabulary
        self._script = script
        self._said: list[int] | None = None

    def __call__(self, prompt_ids: list[int], output_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
        """Return logits with one possible token, or as they are where the model samples."""
        if self._said is None:
            self._said = self._found(prompt_ids)
        if len(output_ids) >= len(self._said):
            return logits
        only = torch.full_like(logits, float("-inf"))
        only[self._said[len(output_ids)]] = 0.0
        return only

    def _found(self, prompt_ids: list[int]) -> list[int]:
        prompt = b"".join(map(self._vocabulary.token_bytes, prompt_ids))
        places = {when: prompt.rfind(when.encode()) for when in self._script}
        when = max(places, key=lambda each: places[each], default="")
        if not when or places[when] < 0:
            return []
        text = self._script[when]
        end = "" if text.endswith(SAMPLED) else self._renderer.family.end
        said = self._renderer.encode(text.removesuffix(SAMPLED) + end)
        # A prompt may end with the beginning of it: then the rest is wanted.
        begun = next((size for size in range(len(said) - 1, 0, -1) if prompt_ids[-size:] == said[:size]), 0)
        return said[begun:]
