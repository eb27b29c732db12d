"""Gives respsite's engine the weights that TRL has trained."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import torch
from safetensors.torch import save_file


class Weights:
    """TRL's `WeightTransferProtocol`, over `/v1/engine`: vLLM reads the weights from a file."""

    def __init__(self, server: str, folder: Path) -> None:
        self.engine = httpx.Client(base_url=f"{server}/v1/engine", timeout=300)
        self.folder = folder.resolve()
        self.version = 0

    def init_weight_transfer(self) -> None:
        """Make the folder."""
        self.folder.mkdir(parents=True, exist_ok=True)

    def pause(self) -> None:
        """Freeze what runs. If this process dies, the engine goes on after a minute."""
        self._ask("/pause", mode="keep", lease_seconds=60)

    def send_weights(self, iterator: Iterator[tuple[str, torch.Tensor]]) -> None:
        """Have vLLM load the weights, under the number that TRL will call them by."""
        save_file({name: tensor.contiguous() for name, tensor in iterator}, self.folder / "model.safetensors")
        self.version += 1
        self._ask("/weights", action="begin", version=f"step-{self.version}", transfer=False)
        load = {"method": "reload_weights", "kwargs": {"weights_path": str(self.folder)}}
        self._ask("/weights", action="update", rpc=load)
        self._ask("/weights", action="finish")

    def resume(self) -> None:
        """Let the engine go on."""
        self._ask("/resume")

    def destroy(self) -> None:
        """Close the connection."""
        self.engine.close()

    def _ask(self, path: str, **fields: Any) -> None:
        answer = self.engine.post(path, json=fields)
        if answer.is_error:
            raise RuntimeError(f"{path}: {answer.text}")
