"""A real llama-server process. `LLAMA_SERVER` names its program; without it these tests are left out."""

import os
import signal
from pathlib import Path

import httpx

from tests.kit.server import cpu_seconds_of
from tests.system.engine_process import EngineProcess

PROGRAM = os.environ.get("LLAMA_SERVER", "")
LEFT_OUT = "LLAMA_SERVER names no llama-server: `make test-llama` builds one and runs these"
START_SECONDS = 60.0  # a start takes 2 to 5 s
API_KEY = "a key of the llama server"
SLOTS = 4
# What weighs the later of two cues more needs numbers of 32 bits (`gguf`). The rest is gpt-oss's own way of sampling.
EXACT = ("--cache-type-k", "f32", "--cache-type-v", "f32", "--flash-attn", "off")
SAMPLING = ("--temp", "1.0", "--top-p", "1.0", "--top-k", "0", "--min-p", "0")


class LlamaServer(EngineProcess):
    """`llama-server` with a model; `context` is the tokens of each slot."""

    start_seconds = START_SECONDS

    def __init__(self, folder: Path, model: Path, *flags: str, context: int) -> None:
        super().__init__(folder / "llama-server.log", key=API_KEY)
        self._model = model
        self._flags = flags
        self._context = context

    def running(self) -> int:
        slots = self._client.get("/slots").raise_for_status().json()
        return sum(bool(slot["is_processing"]) for slot in slots)

    def post(self, path: str, /, **body: object) -> httpx.Response:
        return self._client.post(path, json=body, timeout=60)

    def cpu_seconds(self) -> float:
        """Return the CPU time the process has used."""
        assert self.process is not None
        return cpu_seconds_of(self.process.pid)

    def pause(self) -> None:
        """Stop it (SIGSTOP): it keeps its connections, and says nothing."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def _command(self) -> list[str]:
        return [
            *(PROGRAM, "--model", str(self._model), "--host", "127.0.0.1", "--port", str(self.port)),
            *("--ctx-size", str(SLOTS * self._context), "--parallel", str(SLOTS), "--threads", "1", "--slots"),
            *("--api-key", API_KEY, "--no-webui", *EXACT, *SAMPLING, *self._flags),
        ]
