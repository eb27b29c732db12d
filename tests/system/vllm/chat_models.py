"""Tiny models of two families, with made-up weights: Qwen3-like and Llama-like. Nothing here imports vLLM."""

import json
from pathlib import Path

from tests.unit.formats.families import QWEN, Family

SCRIPT_VARIABLE = "CHAT_SCRIPT"
SAMPLED = "…"  # at the end of a completion: what follows is sampled
MAX_MODEL_LEN = 2048


def write_model(family: Family, folder: Path) -> None:
    family.write(folder)
    qwen = family is QWEN
    config = {
        "architectures": ["Qwen3ForCausalLM" if qwen else "LlamaForCausalLM"],
        "model_type": "qwen3" if qwen else "llama",
        "vocab_size": family.size,
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "hidden_act": "silu",
        "max_position_embeddings": MAX_MODEL_LEN,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": family.ids[family.end],
        "dtype": "bfloat16",
        "transformers_version": "5.0.0",
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
