"""The row `start`: importing the application in a new process, beside an empty Django and daphne."""

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import NamedTuple

from bench.report import Result, beside
from bench.servers import SERVER_CORE, Bench, on_core
from tests.kit.server import ROOT, clean_environ

ROUNDS = 7
OURS = "import respsite.asgi"
EMPTY = "import django; from django.conf import settings; settings.configure(); django.setup(); import daphne.server"
_SAY = """
import json, time
seconds = time.process_time()
lines = dict(line.split(":", 1) for line in open("/proc/self/smaps_rollup") if ":" in line.split()[0])
print(json.dumps([seconds, int(lines["Rss"].split()[0]) / 1024]))
"""


class _Cost(NamedTuple):
    cpu: float  # seconds, with those of the interpreter
    memory: float  # MiB, with what is shared with other processes


def start(bench: Bench) -> Iterator[Result]:
    """CPU and memory of a process that has imported the application, with all bytecode compiled before."""
    folder = bench.folder / "start"
    folder.mkdir()
    environ = clean_environ(DATA_DIR=str(folder), PYTHONDONTWRITEBYTECODE="", PYTHONPYCACHEPREFIX=str(folder / "pyc"))
    costs: dict[str, list[_Cost]] = {OURS: [], EMPTY: []}
    for number in range(ROUNDS + 1):
        bench.report.step(f"round {number} of {ROUNDS}" if number else "compiling")
        for code, kept in costs.items():
            cost = _cost(code, environ)
            if number:
                kept.append(cost)
    yardstick = "an empty Django and daphne"
    yield beside(
        "CPU of importing the application",
        [cost.cpu for cost in costs[OURS]],
        yardstick=yardstick,
        its=[cost.cpu for cost in costs[EMPTY]],
        unit="s",
        target=2.2,
    )
    yield beside(
        "memory of the application once imported",
        [cost.memory for cost in costs[OURS]],
        yardstick=yardstick,
        its=[cost.memory for cost in costs[EMPTY]],
        unit="MiB",
        target=1.5,
    )


def _cost(code: str, environ: dict[str, str]) -> _Cost:
    with on_core(SERVER_CORE):
        done = subprocess.run(
            [sys.executable, "-c", f"{code}\n{_SAY}"], cwd=ROOT, env=environ, stdout=subprocess.PIPE, check=True
        )
    return _Cost(*json.loads(done.stdout))
