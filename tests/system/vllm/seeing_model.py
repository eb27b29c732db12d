"""A tiny model that sees, without weights: like Idefics3, which needs Pillow and no torchvision. Imports no vLLM."""

import json
from dataclasses import replace
from pathlib import Path

from tests.system.vllm.chat_models import MAX_MODEL_LEN
from tests.unit.formats.seeing import IDEFICS

SIDE = 56  # pixels: larger pictures are made smaller
PICTURE_TOKENS = 7  # that a picture becomes: 4, and what stands around them


def write_seeing_model(folder: Path) -> None:
    in_parts = "{% for part in message.content %}{{ part.text }}{% endfor %}"  # as Idefics3's own template reads them
    replace(IDEFICS, template=IDEFICS.template.replace("{{ message.content }}", in_parts)).write(folder)
    end, image = IDEFICS.ids[IDEFICS.end], IDEFICS.ids["<image>"]
    text = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "vocab_size": IDEFICS.size,
        "max_position_embeddings": MAX_MODEL_LEN,
        "rms_norm_eps": 1e-5,
        "bos_token_id": None,
        "eos_token_id": end,
        "pad_token_id": end,
        "dtype": "float32",
    }
    vision = {
        "model_type": "idefics3_vision",
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": SIDE,
        "patch_size": 14,
        "num_channels": 3,
    }
    config = {
        "architectures": ["Idefics3ForConditionalGeneration"],
        "model_type": "idefics3",
        "image_token_id": image,
        "scale_factor": 2,
        "pad_token_id": end,
        "tie_word_embeddings": False,
        "text_config": text,
        "vision_config": vision,
        "dtype": "float32",
    }
    pictures = {
        "processor_class": "Idefics3Processor",
        "image_processor_type": "Idefics3ImageProcessor",
        "do_convert_rgb": True,
        "do_image_splitting": False,
        "max_image_size": {"longest_edge": SIDE},
        "size": {"longest_edge": SIDE},
        "do_resize": True,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "do_pad": True,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "resample": 1,
    }
    files = {
        "config.json": config,
        "preprocessor_config.json": pictures,
        "processor_config.json": {"processor_class": "Idefics3Processor", "image_seq_len": 4},
        "generation_config.json": {"eos_token_id": end},
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content), encoding="utf-8")
