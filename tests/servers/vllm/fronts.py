"""Daphne with vLLM in its process."""

import json
from pathlib import Path

import httpx

from tests.kit.sdk import MODEL
from tests.kit.server import Server
from tests.servers.vllm.server import ENGINE_OPTIONS, MODEL_FOLDER, START_SECONDS


class LoadingServer(Server):
    """ENGINE=vllm. `start()` returns while the model loads; what the server said then is kept."""

    def __init__(self, folder: Path, **settings: object) -> None:
        own = {"engine_options": json.dumps(ENGINE_OPTIONS), "model": MODEL_FOLDER, "model_name": MODEL}
        super().__init__(folder, start_seconds=START_SECONDS, engine="vllm", **{**own, **settings})
        self.early_ready: httpx.Response | None = None
        self.early_create: httpx.Response | None = None

    def start(self, *, wait: bool = False) -> "LoadingServer":
        """Start, and ask what a client may ask too early."""
        super().start(wait=wait)
        with httpx.Client(timeout=10, verify=False) as client:
            self.early_ready = client.get(f"{self.url}/ready")
            self.early_create = client.post(f"{self.base_url}/responses", json={"input": "too early"})
        return self
