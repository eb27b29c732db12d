"""Daphne with vLLM in its process, and before a vLLM server whose traffic is written down."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Self

import httpx

from tests.kit.engine_relay import EngineRelay
from tests.kit.sdk import MODEL
from tests.kit.server import Server
from tests.system.vllm.server import API_KEY, ENGINE_OPTIONS, MODEL_FOLDER, SERVED_MODEL, START_SECONDS, VllmServer


class LoadingServer(Server):
    """ENGINE=vllm. `start()` returns while the model loads; what the server said then is kept."""

    def __init__(self, folder: Path, **settings: object) -> None:
        own = {"engine_options": json.dumps(ENGINE_OPTIONS), "model": MODEL_FOLDER, "model_name": MODEL}
        super().__init__(folder, start_seconds=START_SECONDS, engine="vllm", **{**own, **settings})
        self.early_ready: httpx.Response | None = None
        self.early_create: httpx.Response | None = None

    def start(self, *, wait: bool = False) -> Self:
        """Start, and ask what a client may ask too early."""
        super().start(wait=wait)
        with httpx.Client(timeout=10, verify=False) as client:
            self.early_ready = client.get(f"{self.url}/ready")
            self.early_create = client.post(f"{self.base_url}/responses", json={"input": "too early"})
        return self


@asynccontextmanager
async def relayed(vllm: VllmServer, folder: Path, **settings: object) -> AsyncIterator[tuple[Server, EngineRelay]]:
    """Start a server before vLLM, and write down what goes between them."""
    async with EngineRelay(vllm.url) as relay:
        own = {"engine": "vllm-server", "engine_url": relay.url, "engine_api_key": API_KEY, "model": SERVED_MODEL}
        front = Server(folder, **{"model_name": MODEL, **own, **settings})
        try:
            await asyncio.to_thread(front.start)  # the relay answers meanwhile
            yield front, relay
        finally:
            await asyncio.to_thread(front.stop)
