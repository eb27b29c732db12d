"""A real llama-server process. `LLAMA_SERVER` names its program; without it these tests are left out."""

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

import httpx

from tests.kit.server import ROOT, cpu_seconds_of, free_port

PROGRAM = os.environ.get("LLAMA_SERVER", "")
LEFT_OUT = "LLAMA_SERVER names no llama-server: `make test-llama` builds one and runs these"
START_SECONDS = 60.0  # a start takes 2 to 5 s
API_KEY = "a key of the llama server"
SLOTS = 4
# What weighs the later of two cues more needs numbers of 32 bits (`gguf`). The rest is gpt-oss's own way of sampling.
EXACT = ("--cache-type-k", "f32", "--cache-type-v", "f32", "--flash-attn", "off")
SAMPLING = ("--temp", "1.0", "--top-p", "1.0", "--top-k", "0", "--min-p", "0")


class LlamaServer:
    """`llama-server` with a model. After `kill()` it can be started again, at the same address."""

    def __init__(self, folder: Path, model: Path, *flags: str, context: int) -> None:
        self.port = free_port()
        self.log = folder / "llama-server.log"
        self._model = model
        self._flags = flags
        self._context = context  # tokens of each slot
        self.process: subprocess.Popen[bytes] | None = None
        headers = {"authorization": f"Bearer {API_KEY}"}
        self._client = httpx.Client(timeout=5, verify=False, headers=headers, base_url=self.url)

    @property
    def url(self) -> str:
        """Where it listens, without a path."""
        return f"http://127.0.0.1:{self.port}"

    def start(self, *, wait: bool = True) -> "LlamaServer":
        """Start, and wait until it has loaded its model."""
        command = [
            *(PROGRAM, "--model", str(self._model), "--host", "127.0.0.1", "--port", str(self.port)),
            *("--ctx-size", str(SLOTS * self._context), "--parallel", str(SLOTS), "--threads", "1", "--slots"),
            *("--api-key", API_KEY, "--no-webui", *EXACT, *SAMPLING, *self._flags),
        ]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, start_new_session=True)
        if wait:
            try:
                self._wait_until_healthy()
            except BaseException:
                self.kill()
                raise
        return self

    def running(self) -> int:
        """Return how many generations its slots run now."""
        slots = self._client.get("/slots").raise_for_status().json()
        return sum(bool(slot["is_processing"]) for slot in slots)

    def post(self, path: str, /, **body: object) -> httpx.Response:
        """Ask it itself."""
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
        """Let a stopped one go on."""
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kill it (-9), and return when it is gone."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        """Kill it, and let go of the rest."""
        self._client.close()
        if self.process is not None:
            self.kill()

    def _wait_until_healthy(self) -> None:
        assert self.process is not None
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            assert self.process.poll() is None, f"llama-server ended:\n{self.log.read_text(errors='replace')[-4000:]}"
            with contextlib.suppress(httpx.TransportError):
                if self._client.get("/health").status_code == 200:
                    return
            time.sleep(0.05)
        raise AssertionError(f"llama-server was not healthy after {START_SECONDS} s")
