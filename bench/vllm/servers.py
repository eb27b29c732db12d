"""The servers that are compared: ours with vLLM in its process, ours in front of a vLLM server, and vLLM's own.

All of them run the same build of vLLM with the same options, the same model without weights and the same script of
forced tokens. The second and the third share one vLLM server process.
"""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import httpx

from bench.report import Report
from bench.vllm.client import WAKE
from bench.vllm.cores import ENGINES, place_server
from bench.vllm.shapes import Shape
from engine.backends.vllm.local import VllmEngine
from tests.kit.served import Supervised
from tests.kit.server import ROOT, Server
from tests.system.vllm.script import SCRIPT_VARIABLE, write_script
from tests.system.vllm.server import BLOCK_SIZE, SERVED_MODEL, START_SECONDS, VllmProcess, descendants

NO_WARNING_IS_AN_ERROR = ""  # vLLM's libraries warn of this and that at import
WORKERS = 2  # front ends of one engine core, ours and vLLM's own
FORCED = "tests.system.vllm.forced_tokens:ForcedTokens"


@dataclass(frozen=True, kw_only=True)
class Contender:
    """One way to get a response. `serving` are the processes between the client and the engine core, in this order."""

    name: str
    url: str
    serving: Sequence[int]
    metrics_url: str
    _client: httpx.Client = field(default_factory=lambda: httpx.Client(timeout=30, verify=False), repr=False)

    def cpu_seconds(self) -> float:
        """Return the CPU time that the serving processes have used."""
        return sum(map(_cpu_seconds, self.serving))

    def first_cpu_seconds(self) -> float:
        """Return the CPU time of the process that the client talks to."""
        return _cpu_seconds(self.serving[0])

    def whole_cpu_seconds(self) -> float:
        """Return the CPU time of the serving processes and of everything they started: the engine core too."""
        below = {child.pid for pid in self.serving for child in descendants(pid)}
        return sum(map(_cpu_seconds, below.union(self.serving)))

    def metric(self, name: str) -> float:
        """Return the sum of the samples of one of vLLM's metrics."""
        text = self._client.get(self.metrics_url, params={"name[]": f"vllm:{name}"}).raise_for_status().text
        return sum(float(value) for value in re.findall(rf"^vllm:{name}\{{[^}}]*\}} (\S+)$", text, re.MULTILINE))

    def engine_seconds(self) -> float:
        """Return for how long the engine core has had requests, in its own clock: queued, in prefill, in decode."""
        return self.metric("request_queue_time_seconds_sum") + self.metric("request_inference_time_seconds_sum")

    def running(self) -> float:
        """Return how many requests the scheduler runs."""
        return self.metric("num_requests_running")


def _cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process, all threads, in nanoseconds' resolution (see clock_getcpuclockid(3))."""
    return time.clock_gettime((~pid << 3) | 2)


def _with_vllm(model: Path, options: dict[str, object]) -> dict[str, Any]:
    """Return the settings of a server of ours that has vLLM itself."""
    return {"engine": "vllm", "engine_options": json.dumps(options), "model": model, "model_name": SERVED_MODEL}


class InProcess(Server):
    """Daphne with ENGINE=vllm."""

    def __init__(self, folder: Path, model: Path, options: dict[str, object]) -> None:
        super().__init__(folder, start_seconds=START_SECONDS, **_with_vllm(model, options))
        self.environ["PYTHONWARNINGS"] = NO_WARNING_IS_AN_ERROR

    def _command(self) -> list[str]:
        return [*super()._command()[:-1], "bench.vllm.application:application"]


class OnOneCore(Supervised):
    """Workers that share an engine core."""

    def __init__(self, folder: Path, model: Path, options: dict[str, object]) -> None:
        super().__init__(folder, workers=WORKERS, **_with_vllm(model, options))
        self.start_seconds = START_SECONDS
        self.environ["PYTHONWARNINGS"] = NO_WARNING_IS_AN_ERROR

    def start(self, *, wait: bool = True) -> Self:
        """Start; wait until all workers serve."""
        Server.start(self, wait=wait)
        self.wait_for_line(" serves\n", count=self.workers, seconds=START_SECONDS)
        return self


class TextServer(VllmProcess):
    """`vllm serve` with a tokenizer: its own `/v1/responses`, and tokens in and out for our server."""

    def __init__(self, folder: Path, model: Path, options: dict[str, object]) -> None:
        folder.mkdir(exist_ok=True)
        super().__init__(folder, flags={})
        self._model = model
        self._options = options

    def _command(self) -> list[str]:
        options = {
            "model": str(self._model),
            "served_model_name": SERVED_MODEL,
            "host": "127.0.0.1",
            "port": self.port,
            "enable_scale_out": True,
            "enable_prompt_tokens_details": True,
            **self._options,
        }
        return [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *_flags(options)]


def _flags(options: dict[str, object]) -> list[str]:
    flags: list[str] = []
    for name, value in options.items():
        flags.append(f"--{'' if value is not False else 'no-'}{name.replace('_', '-')}")
        if not isinstance(value, bool):
            flags += map(str, value) if isinstance(value, list) else [str(value)]
    return flags


class Bench:
    """What rows share: the report, a folder, and the servers, each started when a row needs it."""

    def __init__(self, report: Report, folder: Path, shape: Shape) -> None:
        self.report = report
        self.shape = shape
        self._folder = folder
        self._running: dict[str, Callable[[], object]] = {}  # what stops each server, by the name of its property here
        self._script = folder / "script.json"
        self.speak([{"say": "<|channel|>final<|message|>Hello.<|return|>"}])  # to whoever asks at a start
        os.environ[SCRIPT_VARIABLE] = str(self._script)
        os.environ["VLLM_ENABLE_RESPONSES_API_STORE"] = "1"  # vLLM's own `previous_response_id`
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", ",".join(map(str, sorted(ENGINES))))

    def __enter__(self) -> "Bench":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def speak(self, entries: Sequence[dict[str, object]]) -> None:
        """Have every server say this from now on."""
        write_script(self._script, [WAKE, *entries])

    @cached_property
    def in_process(self) -> Contender:
        """Our server with vLLM in its process."""
        return self._started("in_process", "ours in process", self._in_process("in-process", disable_log_stats=True))

    @cached_property
    def in_process_with_metrics(self) -> Contender:
        """The same with the metrics of vLLM, which ours leaves out and a vLLM server keeps."""
        server = self._in_process("in-process-with-metrics", disable_log_stats=False)
        return self._started("in_process_with_metrics", "ours in process", server)

    @cached_property
    def by_server(self) -> Contender:
        """Our server in front of vLLM's."""
        front = Server(
            self._folder / "by-server",
            engine="vllm-server",
            engine_url=self.own.url.removesuffix("/v1"),
            model=SERVED_MODEL,
            model_name=SERVED_MODEL,
        )
        return self._started("by_server", "ours by server", front, behind=self.own)

    @cached_property
    def own(self) -> Contender:
        """vLLM's own server, with the prefix cache set as we set it."""
        return self._started("own", "vLLM's own", self._text_server("own", prefix_cache_retention_interval=BLOCK_SIZE))

    @cached_property
    def own_as_shipped(self) -> Contender:
        """vLLM's own server, with the prefix cache as it is by default."""
        return self._started("own_as_shipped", "vLLM's own by default", self._text_server("own-as-shipped"))

    @cached_property
    def workers(self) -> Contender:
        """Our workers on one engine core."""
        server = OnOneCore(self._folder / "workers", self._model, {**self._options(), "disable_log_stats": True})
        return self._started("workers", "our workers", server)

    @cached_property
    def api_servers(self) -> Contender:
        """vLLM's own front ends on one engine core."""
        options = {"prefix_cache_retention_interval": BLOCK_SIZE, "api_server_count": WORKERS}
        return self._started("api_servers", "vLLM's API servers", self._text_server("api-servers", **options))

    def engine(self, **options: object) -> VllmEngine:
        """Return vLLM for this process, not started, with some options of its own; nothing is forced there."""
        options = {**self._options(), "logits_processors": None, **options}
        return VllmEngine(model=str(self._model), options=options)

    def compared(self, *names: str) -> list[Contender]:
        """Return these contenders, each a property's name here, once every other server has been stopped.

        An engine takes 4 GB: those that a comparison does not need would only take the memory of those that it does.
        """
        self._stop_but(names)
        return [getattr(self, name) for name in names]

    def stop(self) -> None:
        """Stop every server; one that is needed again is started again."""
        self._stop_but(())

    def _stop_but(self, kept: Sequence[str]) -> None:
        for name in reversed([name for name in self._running if name not in kept]):
            self.__dict__.pop(name, None)  # it may have failed to start
            self._running.pop(name)()

    def _in_process(self, name: str, **options: object) -> InProcess:
        return InProcess(self._folder / name, self._model, {**self._options(), **options})

    def _text_server(self, name: str, **options: object) -> TextServer:
        return TextServer(self._folder / name, self._model, {**self._options(), **options})

    def _started(self, key: str, name: str, server: Server | VllmProcess, behind: Contender | None = None) -> Contender:
        self.report.step(f"starting {name}")
        self._running[key] = server.stop if isinstance(server, Server) else server.close
        server.start()
        assert server.process is not None
        pid = server.process.pid
        serving = place_server(pid)
        return Contender(
            name=name,
            url=f"{server.url}/v1",
            serving=(*serving, *behind.serving) if behind else serving,
            metrics_url=behind.metrics_url if behind else f"{server.url}/metrics/",
        )

    def _options(self) -> dict[str, object]:
        return {
            "load_format": "dummy",
            "dtype": "bfloat16",
            "block_size": BLOCK_SIZE,
            "scheduling_policy": "priority",
            "logits_processors": [FORCED],
            **self.shape.options,
        }

    @cached_property
    def _model(self) -> Path:
        """A model's folder: a configuration, a tokenizer, no weights."""
        folder = self._folder / "model"
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(self.shape.config))
        self.report.step("writing a tokenizer")
        subprocess.run([sys.executable, "-m", "tests.system.vllm.make_tokenizer", str(folder)], cwd=ROOT, check=True)
        return folder
