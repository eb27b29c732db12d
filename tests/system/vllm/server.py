"""A real vLLM server process, tokens in and tokens out, and a look at the processes of an engine."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

import httpx
import psutil

from engine.backends.vocabulary_folder import write_vocabulary
from tests.kit.server import ROOT, free_port

START_SECONDS = 240.0  # a start takes 20 to 100 s here, by what else the machine does
STOP_SECONDS = 20.0
MODEL_FOLDER = Path(__file__).parent / "model"
SERVED_MODEL = "openai/gpt-oss-20b"
API_KEY = "a key of the vLLM server"
BLOCK_SIZE = 32
MAX_MODEL_LEN = 10_240  # the task of `tests/system/agents` ends with 9,400 tokens, where Codex does it
KV_BLOCKS = 720  # of 32 tokens; the two groups of layers (sliding window, full attention) share them
# The model runs in the engine core's own process, as on one GPU. On a CPU vLLM would give it a process of its own, and
# the two would wait for each other by calling sched_yield without end: on two cores others starve, for up to 10 s.
EXECUTOR = "vllm.v1.executor.uniproc_executor.UniProcExecutor"
# A CPU without instructions for bfloat16 takes 120 ms for the logits of 16 streams in it, and 19 ms in float32. Where
# weights change, it is bfloat16 (`seeded_weights`).
DTYPE = "float32"
ENGINE_OPTIONS: dict[str, object] = {  # of AsyncEngineArgs; the server's flags say the same
    "load_format": "dummy",
    "dtype": DTYPE,
    "enforce_eager": True,
    "distributed_executor_backend": EXECUTOR,
    "block_size": BLOCK_SIZE,
    "max_model_len": MAX_MODEL_LEN,
    "num_gpu_blocks_override": KV_BLOCKS,
    "logits_processors": ["tests.system.vllm.forced_tokens:ForcedTokens"],
}
NO_FLAGS: Mapping[str, object] = {}


class VllmServer:
    """`vllm serve` with the dummy model. After `kill()` it can be started again, at the same address."""

    def __init__(self, folder: Path, *, flags: Mapping[str, object] = NO_FLAGS, **environ: str) -> None:
        self._flags = flags  # beside its own
        self._environ = environ
        self.port = free_port()
        self.log = folder / "vllm.log"
        self._vocabulary = folder / "vocabulary"
        self.process: subprocess.Popen[bytes] | None = None
        self._client = httpx.Client(timeout=5, verify=False, headers={"authorization": f"Bearer {API_KEY}"})

    @property
    def url(self) -> str:
        """Where it listens, without a path."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def log_tail(self) -> str:
        """The end of what it has logged."""
        return self.log.read_text(errors="replace")[-6000:] if self.log.exists() else ""

    def start(self) -> "VllmServer":
        """Start, and wait until it is healthy."""
        if not self._vocabulary.exists():
            write_vocabulary(self._vocabulary)
        with self.log.open("ab") as log:
            environ = {**os.environ, **self._environ}
            self.process = subprocess.Popen(
                self._command(), cwd=ROOT, env=environ, stdout=log, stderr=log, start_new_session=True
            )
        try:
            self._wait_until_healthy()
        except BaseException:
            self.kill()
            raise
        return self

    def running(self) -> int:
        """Return how many requests the scheduler runs now."""
        return int(self.metric("vllm:num_requests_running"))

    def metric(self, name: str) -> float:
        """Return the sum of a metric's samples."""
        text = self._client.get(f"{self.url}/metrics").raise_for_status().text
        return sum(float(value) for value in re.findall(rf"^{name}\{{[^}}]*\}} (\S+)$", text, re.MULTILINE))

    def kill(self) -> None:
        """Kill it and its engine core (-9); return when they are gone."""
        assert self.process is not None
        processes = descendants(self.process.pid)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        wait_until_gone(processes)

    def close(self) -> None:
        """Kill it, and let go of the rest."""
        self._client.close()
        if self.process is not None:
            self.kill()

    def _wait_until_healthy(self) -> None:
        assert self.process is not None
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            assert self.process.poll() is None, f"vLLM ended:\n{self.log_tail}"
            with contextlib.suppress(httpx.TransportError):
                if self._client.get(f"{self.url}/health").status_code == 200:
                    return
            time.sleep(0.1)
        raise AssertionError(f"vLLM was not healthy after {START_SECONDS} s:\n{self.log_tail}")

    def _command(self) -> list[str]:
        flags = {
            "model": MODEL_FOLDER,
            "served-model-name": SERVED_MODEL,
            "host": "127.0.0.1",
            "port": self.port,
            "api-key": API_KEY,
            "load-format": "dummy",
            "dtype": DTYPE,
            "block-size": BLOCK_SIZE,
            "max-model-len": MAX_MODEL_LEN,
            "num-gpu-blocks-override": KV_BLOCKS,
            "distributed-executor-backend": EXECUTOR,
            "scheduling-policy": "priority",
            "tokenizer": self._vocabulary,
            "structured-outputs-config": '{"backend": "xgrammar", "enable_in_reasoning": true}',
            "prefix-cache-retention-interval": BLOCK_SIZE,
            "logits-processors": "tests.system.vllm.forced_tokens:ForcedTokens",
            **self._flags,
        }
        switches = ("enable-scale-out", "enforce-eager", "enable-prompt-tokens-details")
        return [
            *(sys.executable, "-m", "vllm.entrypoints.openai.api_server"),
            *(str(each) for name, value in flags.items() for each in (f"--{name}", value)),
            *(f"--{name}" for name in switches),
        ]


def descendants(pid: int) -> list[psutil.Process]:
    """Return the processes that run below this one."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return [child for child in psutil.Process(pid).children(recursive=True) if _is_alive(child)]
    return []


def engine_core(pid: int) -> psutil.Process:
    """Return the process of vLLM's engine core below this one."""
    return next(child for child in descendants(pid) if "EngineCore" in " ".join(child.cmdline()))


def wait_until_gone(processes: Iterable[psutil.Process], *, timeout: float = STOP_SECONDS) -> None:
    """Return once none of these processes runs any more; a zombie that nobody fetched does not."""
    deadline = time.monotonic() + timeout
    while any(_is_alive(process) for process in processes):
        assert time.monotonic() < deadline, f"still running: {[each for each in processes if _is_alive(each)]}"
        time.sleep(0.02)


def _is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD))
    except psutil.NoSuchProcess:
        return False
