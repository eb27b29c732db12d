"""A real vLLM server process, tokens in and tokens out, and a look at the processes of an engine."""

import contextlib
import os
import re
import signal
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

import psutil

from engine.backends.vocabulary_folder import write_vocabulary
from tests.system.engine_process import EngineProcess

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
FLAGS: Mapping[str, object] = {  # of every server
    "host": "127.0.0.1",
    "api-key": API_KEY,
    "load-format": "dummy",
    "dtype": DTYPE,
    "block-size": BLOCK_SIZE,
    "distributed-executor-backend": EXECUTOR,
}
SWITCHES = ("enable-scale-out", "enforce-eager", "enable-prompt-tokens-details")
STRUCTURED = {"structured-outputs-config": '{"backend": "xgrammar", "enable_in_reasoning": true}'}


class VllmProcess(EngineProcess):
    """`vllm serve`, with the flags that a subclass gives it."""

    start_seconds = START_SECONDS

    def __init__(self, folder: Path, *, flags: Mapping[str, object], **environ: str) -> None:
        super().__init__(folder / "vllm.log", key=API_KEY, environ=environ)
        self._flags = flags

    def running(self) -> int:
        return int(self.metric("vllm:num_requests_running"))

    def metric(self, name: str) -> float:
        text = self._client.get("/metrics").raise_for_status().text
        return sum(float(value) for value in re.findall(rf"^{name}\{{[^}}]*\}} (\S+)$", text, re.MULTILINE))

    def kill(self) -> None:
        """Kill it and its engine core (-9); return when they are gone."""
        assert self.process is not None
        processes = descendants(self.process.pid)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        wait_until_gone(processes)

    def _command(self) -> list[str]:
        flags = {**FLAGS, "port": self.port, **self._flags}
        return [
            *(sys.executable, "-m", "vllm.entrypoints.openai.api_server"),
            *(str(each) for name, value in flags.items() for each in (f"--{name}", value)),
            *(f"--{name}" for name in SWITCHES),
        ]


class VllmServer(VllmProcess):
    def __init__(self, folder: Path, *, flags: Mapping[str, object] = NO_FLAGS, **environ: str) -> None:
        vocabulary = folder / "vocabulary"
        write_vocabulary(vocabulary)
        own = {
            "model": MODEL_FOLDER,
            "served-model-name": SERVED_MODEL,
            "max-model-len": MAX_MODEL_LEN,
            "num-gpu-blocks-override": KV_BLOCKS,
            "scheduling-policy": "priority",
            "tokenizer": vocabulary,
            **STRUCTURED,
            "prefix-cache-retention-interval": BLOCK_SIZE,
            "logits-processors": "tests.system.vllm.forced_tokens:ForcedTokens",
        }
        super().__init__(folder, flags={**own, **flags}, **environ)


def descendants(pid: int) -> list[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        return [child for child in psutil.Process(pid).children(recursive=True) if _is_alive(child)]
    return []


def engine_core(pid: int) -> psutil.Process:
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
