"""What TRL's asynchronous GRPO asks of a CUDA GPU, done on a CPU. Leave this file out on a GPU."""

from typing import Any

import torch
from transformers import AttentionInterface
from trl.experimental.async_grpo.packing import TREE_ATTENTION


def attention(
    module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, _: None, **tree: Any
) -> tuple[torch.Tensor, None]:
    """Do what its kernel does: each segment of a tree of tokens sees itself and what is before it."""
    begins, seen_begins = tree["tree_cu_seqlens_q"].tolist(), tree["tree_cu_seqlens_k"].tolist()
    outputs = []
    for place in range(len(begins) - 1):
        own = query[:, :, begins[place] : begins[place + 1]]
        seen = tree["tree_kv_index"][seen_begins[place] : seen_begins[place + 1]]
        mask = torch.ones(own.shape[2], len(seen), dtype=torch.bool).tril(len(seen) - own.shape[2])
        outputs.append(
            torch.nn.functional.scaled_dot_product_attention(
                own, key[:, :, seen], value[:, :, seen], attn_mask=mask, scale=tree["scaling"], enable_gqa=True
            )
        )
    return torch.cat(outputs, dim=2).transpose(1, 2), None


def before_the_trainer() -> None:
    """Give it the name of a GPU, by which it looks up how fast that is."""
    torch.cuda.get_device_name = lambda device=None: "a CPU"  # type: ignore[assignment]


def behind_the_trainer() -> None:
    """Replace its kernel, which it has registered."""
    AttentionInterface.register(TREE_ATTENTION, attention)
