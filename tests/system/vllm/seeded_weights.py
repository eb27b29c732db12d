"""A way to change the weights of the dummy model: a backend of vLLM's own weight transfer, for which a seed is enough.

vLLM loads this in its workers, as `worker_extension_cls`: so the backend is known before the model is loaded.
"""

from dataclasses import dataclass
from typing import Any

import torch
from vllm.distributed.weight_transfer.base import WeightTransferEngine, WeightTransferInitInfo, WeightTransferUpdateInfo
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

BACKEND = "seeded"
OPTIONS: dict[str, object] = {
    "worker_extension_cls": "tests.system.vllm.seeded_weights.SeedExtension",
    "weight_transfer_config": {"backend": BACKEND},
    "dtype": "bfloat16",  # in float32 vLLM's layers on a CPU keep a copy of their weights, which no change reaches
}


def seed_weights(model: torch.nn.Module, seed: int) -> None:
    """Give a model other weights, the same ones for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.is_floating_point():
                noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float32)
                parameter.copy_((noise * 0.02).to(parameter.dtype))


class SeedExtension:
    """What vLLM's workers can do beside their own."""

    def seed_weights(self, seed: int) -> None:
        if seed < 0:
            raise ValueError("a seed is 0 or more")
        seed_weights(self.model_runner.get_model(), seed)  # type: ignore[attr-defined]  # of vLLM's worker


@dataclass
class SeedInit(WeightTransferInitInfo):
    trainer: str = ""


@dataclass
class SeedUpdate(WeightTransferUpdateInfo):
    """A seed; below 0 it fails in its middle."""

    seed: int = 0


class SeedEngine(WeightTransferEngine[SeedInit, SeedUpdate]):
    init_info_cls = SeedInit
    update_info_cls = SeedUpdate

    def init_transfer_engine(self, init_info: SeedInit) -> None:
        """Connect to nothing."""

    def start_weight_update(self) -> None:
        """Prepare nothing."""

    def receive_weights(self, update_info: SeedUpdate) -> None:
        if update_info.seed < 0:
            raise ValueError("the trainer went away")
        seed_weights(self.model, update_info.seed)

    def finish_weight_update(self) -> None:
        """Nothing is left to be done."""

    def shutdown(self) -> None:
        """Let go of nothing."""


def register() -> None:
    """Make the backend known, once a process."""
    registry: dict[str, Any] = WeightTransferEngineFactory._registry
    if BACKEND not in registry:
        WeightTransferEngineFactory.register_engine(BACKEND, SeedEngine)


register()
