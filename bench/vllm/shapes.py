"""Models without weights: the small one of the tests, and one as large as gpt-oss-20b where there is a CUDA GPU."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.system.vllm.server import MODEL_FOLDER

MAX_MODEL_LEN = 16_384
LAYERS = 24


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A model's configuration, vLLM's options for it, and how many streams at once are measured."""

    name: str
    config: Mapping[str, object]
    options: Mapping[str, object]
    streams: Sequence[int]


def small() -> Shape:
    """Return two layers, for the CPU."""
    return Shape(
        name="2 layers, 26 M parameters",
        config=_config(),
        options={"max_model_len": MAX_MODEL_LEN, "enforce_eager": True},
        streams=(1, 16),
    )


def large() -> Shape:
    """Return the layers of gpt-oss-20b; three servers share the GPU's memory."""
    config = _config(
        num_hidden_layers=LAYERS,
        layer_types=["sliding_attention", "full_attention"] * (LAYERS // 2),
        hidden_size=2880,
        intermediate_size=2880,
        head_dim=64,
        num_attention_heads=64,
        num_key_value_heads=8,
        num_local_experts=32,
        num_experts_per_tok=4,
        quantization_config={
            "quant_method": "mxfp4",
            "modules_to_not_convert": [
                "model.layers.*.self_attn",
                "model.layers.*.mlp.router",
                "model.embed_tokens",
                "lm_head",
            ],
        },
    )
    return Shape(
        name="24 layers, 20 B parameters",
        config=config,
        options={"max_model_len": MAX_MODEL_LEN, "gpu_memory_utilization": 0.28},
        streams=(1, 64, 256),
    )


def _config(**changes: object) -> dict[str, object]:
    config = json.loads((MODEL_FOLDER / "config.json").read_text())
    return {**config, "max_position_embeddings": MAX_MODEL_LEN, **changes}
