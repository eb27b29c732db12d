"""`python -m bench.vllm [row …]`: measure beside vLLM's own server, print a table, write `BENCH_JSON`.

Ours with vLLM in its process, ours in front of a vLLM server, and that server's own `/v1/responses` say the same forced
tokens with the same options of the engine; rounds are interleaved and medians taken. CPU is that of the processes
between the client and vLLM's engine core. What a grammar costs is measured without servers, in vLLM in this process,
and there every token is sampled. Engines that a row does not compare are stopped before it: two are in memory at most.
A missed target is not a failure of the command.
"""

import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import vllm
from vllm.platforms import current_platform

from bench.report import Report, Result, check_names
from bench.vllm.aborts import aborts
from bench.vllm.cores import ENGINES, LOAD, SERVING
from bench.vllm.grammars import grammars
from bench.vllm.loops import rollouts
from bench.vllm.servers import Bench
from bench.vllm.shapes import large, small
from bench.vllm.streams import streams, workers
from tests.kit.ending import ended_cleanly

ROWS: Mapping[str, Callable[[Bench], Iterable[Result]]] = {
    "streams": streams,
    "workers": workers,
    "abort": aborts,
    "rollout": rollouts,
    "grammar": grammars,
}


class Diary(Report):
    """Says every step, in a line of its own where this is not a terminal: a step may take a minute."""

    def step(self, doing: str) -> None:
        if self._live:
            super().step(doing)
        else:
            print(f"… {self._current}: {doing}", flush=True)


def main(names: Sequence[str]) -> None:
    """Measure the rows that are named, or all: with a large model where there is a CUDA GPU, else with a small one."""
    check_names("bench", ROWS, names)
    shape = large() if current_platform.is_cuda() else small()
    began = time.monotonic()
    print(f"a model without weights: {shape.name}; {len(os.sched_getaffinity(0))} cores", flush=True)
    if not current_platform.is_cuda():
        print("skipped: a model as large as gpt-oss-20b at 64 and 256 streams, for want of a CUDA GPU", flush=True)
    with (
        ended_cleanly(),
        tempfile.TemporaryDirectory(prefix="respsite-bench-") as folder,
        Bench(Diary(), Path(folder), shape) as bench,
    ):
        failed = bench.report.measure(ROWS, names, bench)
        missed = [result.what for result in bench.report.results if result.verdict == "missed"]
        print(f"{len(missed)} missed, {len(failed)} failed; {time.monotonic() - began:.0f} s")
        if os.environ.get("BENCH_JSON"):
            bench.report.write_json(Path(os.environ["BENCH_JSON"]), _environment(shape.name))
    if failed:
        raise SystemExit(1)


def _environment(model: str) -> dict[str, object]:
    return {
        "python": platform.python_version(),
        "vllm": vllm.__version__,
        "model": model,
        "machine": platform.platform(),
        "cores": {"servers": sorted(SERVING), "load": sorted(LOAD), "engine cores": sorted(ENGINES)},
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


if __name__ == "__main__":
    main(sys.argv[1:])
