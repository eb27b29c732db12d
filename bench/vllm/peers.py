"""`make bench-peers`: respsite beside vLLM's own endpoint and LiteLLM's proxy; prints the page of figures.

One vLLM server without weights says the same forced tokens to all of them: to clients by itself, behind respsite and
behind LiteLLM's proxy. Rounds are interleaved. CPU is that of all processes between the client and vLLM's engine core,
and so vLLM's own server counts behind a gateway, too. `make bench-vllm` has respsite with vLLM in its process.
"""

import asyncio
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import aiohttp
import httpx
import vllm

from bench.peers_page import Measured, page
from bench.report import Report
from bench.vllm.cores import load_in_its_place, place_server
from bench.vllm.servers import Bench, Contender
from bench.vllm.shapes import small
from responses_app import __version__
from responses_app.command_line.endpoint import RemoteServer
from responses_app.extensions.terminal.bench import APIS, Api, Sample, ask, figures_of
from tests.kit import pip
from tests.kit.ending import ended_cleanly
from tests.kit.programs import secluded
from tests.kit.server import ROOT, free_port
from tests.system.vllm.server import SERVED_MODEL

REQUIREMENTS = ROOT / "tests" / "clients" / "python_clients" / "requirements.txt"
LEVELS = (1, 16, 64)  # streams at once
ROUNDS = 3
WORDS = 96  # of an answer, about as many tokens
MOST_TOKENS = 1000
START_SECONDS = 180.0
SETTLE_SECONDS = 0.2  # after the last event, for what a server still has to do for it
KEY = "sk-of-the-bench"  # LiteLLM wants one; the others ask nobody here
SCRIPT: list[dict[str, object]] = [
    {"when": "stream", "say": f"<|channel|>final<|message|>{' '.join(['river'] * WORDS)}<|return|>"}
]


class Steps(Report):
    """Says each step on standard error: standard output is the page."""

    def __init__(self) -> None:
        self._current = "bench-peers"

    def step(self, doing: str) -> None:
        print(f"… {doing}", file=sys.stderr, flush=True)


def main() -> None:
    """Measure, and print the page."""
    with (
        ended_cleanly(),
        tempfile.TemporaryDirectory(prefix="respsite-peers-") as name,
        Bench(Steps(), Path(name), small()) as bench,
    ):
        own = bench.own
        bench.report.step("starting LiteLLM's proxy")
        with litellm(Path(name), own) as gateway:
            contenders = {
                "vLLM's own endpoint": own,
                "respsite in front of vLLM": bench.by_server,
                "LiteLLM in front of vLLM": gateway,
            }
            bench.speak(SCRIPT)
            with load_in_its_place():
                measured = asyncio.run(_measure(bench, contenders))
    print(page(measured, _environment()))


@contextmanager
def litellm(folder: Path, behind: Contender, **settings: object) -> Iterator[Contender]:
    """Start LiteLLM's proxy in front of vLLM's own server."""
    port = free_port()
    parameters = {"model": f"hosted_vllm/{SERVED_MODEL}", "api_base": behind.url, "api_key": "none"}
    config = folder / "litellm.yaml"  # JSON is YAML
    config.write_text(
        json.dumps({"model_list": [{"model_name": SERVED_MODEL, "litellm_params": parameters}], **settings})
    )
    python, log = pip.installed(REQUIREMENTS), folder / "litellm.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [
                *(python, python.with_name("litellm"), "--config", config),
                *("--host", "127.0.0.1", "--port", str(port), "--telemetry", "False"),
            ],
            cwd=folder,
            env=secluded(folder, LITELLM_LOCAL_MODEL_COST_MAP="True", LITELLM_LOG="ERROR", LITELLM_MASTER_KEY=KEY),
            stdout=output,
            stderr=output,
        )
    try:
        wait_until_it_answers(f"http://127.0.0.1:{port}/health/liveliness", process, log)
        serving = (*place_server(process.pid), *behind.serving)
        url = f"http://127.0.0.1:{port}/v1"
        yield Contender(name="LiteLLM", url=url, serving=serving, metrics_url=behind.metrics_url)
    finally:
        process.terminate()
        process.wait()


def wait_until_it_answers(url: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    """Wait until a gateway answers; one that has ended, or takes too long, ends the program."""
    deadline = time.monotonic() + START_SECONDS
    with httpx.Client(timeout=5, verify=False) as client:
        while time.monotonic() < deadline and process.poll() is None:
            try:
                if client.get(url).status_code == httpx.codes.OK:
                    return
            except httpx.TransportError:
                time.sleep(0.5)
    raise SystemExit(f"{url} did not answer:\n{log.read_text()[-1000:]}")


async def _measure(bench: Bench, contenders: dict[str, Contender]) -> dict[tuple[str, int], dict[str, Measured]]:
    """Return what was measured, by the API and the number of streams, then by the contender."""
    measured: dict[tuple[str, int], dict[str, Measured]] = defaultdict(lambda: defaultdict(Measured))
    headers = {"authorization": f"Bearer {KEY}"}
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), headers=headers) as session:
        for turn in bench.report.rounds(ROUNDS, warm_up=True):
            for name, api in APIS.items():
                for level in LEVELS:
                    for who, contender in contenders.items():
                        kept = measured[name, level][who] if turn else Measured()
                        await _round(session, contender, api, level, kept)
    return measured


async def _round(session: aiohttp.ClientSession, contender: Contender, api: Api, level: int, kept: Measured) -> None:
    endpoint = RemoteServer(contender.url)

    async def stream(number: int) -> Sample:
        prompt = f"{time.monotonic_ns()} {number}: stream"  # a beginning that no prefix cache has
        return await ask(session, endpoint, api, api.body(prompt, SERVED_MODEL, MOST_TOKENS))

    before, began = contender.cpu_seconds(), time.perf_counter()
    samples: Sequence[Sample] = await asyncio.gather(*map(stream, range(level)))
    seconds = time.perf_counter() - began
    await asyncio.sleep(SETTLE_SECONDS)
    for sample in samples:
        if sample.error:
            print(f"  {contender.name}: {sample.error[:200]}", file=sys.stderr, flush=True)
    kept.add(figures_of(level, samples, seconds), cpu=contender.cpu_seconds() - before)


def _environment() -> dict[str, str]:
    pinned = dict(line.split("==") for line in REQUIREMENTS.read_text().splitlines() if "==" in line)
    return {
        "respsite": __version__,
        "vLLM": vllm.__version__,
        "LiteLLM": pinned["litellm"],
        "Python": platform.python_version(),
        "cores": str(len(os.sched_getaffinity(0))),
        "model": small().name,
        "tokens": str(WORDS),
        "rounds": str(ROUNDS),
        "day": time.strftime("%-d %B %Y", time.gmtime()),
    }


if __name__ == "__main__":
    main()
