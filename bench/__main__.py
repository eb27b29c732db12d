"""`python -m bench [row …]`: measure, print a table row by row, write `BENCH_JSON`.

Everything is compared side by side in one run: rounds are interleaved and medians taken, so what the machine does
beside it falls on both. Times are CPU times of the serving process wherever a row says CPU; the server is pinned to
one core and the load to another where the machine allows it. A missed target is not a failure of the command; a row
that cannot be measured is one, and the rows behind it are measured all the same.

`BENCH_BASE=REVISION` measures the rows in a copy of that revision, too, and prints the change of each: see `trees`.
"""

import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from bench import (
    admin,
    agents,
    batches,
    beside,
    browsing,
    calling,
    chains,
    events,
    exporting,
    grammars,
    interpreting,
    limits,
    loads,
    logs,
    memory,
    metrics,
    paced,
    painting,
    replay,
    replicas,
    rollouts,
    said,
    sealed,
    searching,
    seeing,
    starting,
    steering,
    storing,
    telling,
    using,
    work,
    workers,
)
from bench.loads import database_of
from bench.report import Report, Result, check_names
from bench.routing.tables import routing
from bench.servers import Bench, can_pin
from bench.training.purging import rollout_purge
from bench.training.small import training
from bench.trees import compare, table
from tests.kit.ending import ended_cleanly


def _early(bench: Bench) -> Iterator[Result]:
    with database_of(bench, "SQLite"):
        from bench.early import early  # here: it takes sites of the tests, which know models

        yield from early(bench)


ROWS: Mapping[str, Callable[[Bench], Iterable[Result]]] = {
    "events": events.websocket_events,
    "lanes": events.lanes,
    "sse": events.sse,
    "chat": events.chat,
    "messages": events.messages,
    "paced": paced.paced,
    "continue": chains.continue_chain,
    "load": loads.load,
    "start": starting.start,
    "idle": memory.idle,
    "stalled": memory.stalled,
    "heavy": memory.heavy,
    "store": storing.store,
    "opening": work.opening,
    "inbound": work.inbound,
    "webhook": telling.webhook,
    "log": logs.log,
    "rollouts": rollouts.rollouts,
    "agents": agents.agents,
    "training": training,
    "rollout_purge": rollout_purge,
    "takeover": logs.takeover,
    "replay": replay.replay,
    "cold": replay.cold,
    "sealing": sealed.sealing,
    "sealed-replay": sealed.sealed_replay,
    "exports": exporting.exporting,
    "batches": batches.batches,
    "usage": using.usage,
    "steer": steering.steer,
    "admin": admin.admin,
    "admin_search": said.admin_search,
    "grammar": grammars.grammar,
    "browser": browsing.browsing,
    "file_search": searching.file_search,
    "vector_search": searching.vector_search,
    "tool_search": searching.tool_search,
    "program": interpreting.program,
    "mcp": calling.mcp,
    "early": _early,
    "tools": calling.tools,
    "images": painting.images,
    "seeing": seeing.seeing,
    "interpreter": interpreting.interpreting,
    "shell": interpreting.shell,
    "limits": limits.limits,
    "beside": beside.beside,
    "metrics": metrics.metrics,
    "workers": workers.workers,
    "replaced": workers.replaced,
    "slot": workers.slot,
    "cancel": workers.cancel,
    "replicas": replicas.replicas,
    "routing": routing,
}
LONGEST = 8  # rows whose times are told at the end


def main(names: Sequence[str]) -> None:
    """Measure the rows that are named, or all."""
    check_names("bench", ROWS, names)
    if os.environ.get("BENCH_BASE"):
        with ended_cleanly():
            print(*table(compare(os.environ["BENCH_BASE"], names, int(os.environ.get("BENCH_ROUNDS", "3")))), sep="\n")
        return
    began = time.monotonic()
    with (
        ended_cleanly(),
        tempfile.TemporaryDirectory(prefix="respsite-bench-") as folder,
        Bench(Report(), Path(folder)) as bench,
    ):
        failed = bench.report.measure(ROWS, names, bench)
        missed = [result.what for result in bench.report.results if result.verdict == "missed"]
        print(f"{len(missed)} missed, {len(failed)} failed; {time.monotonic() - began:.0f} s")
        longest = sorted(bench.report.seconds.items(), key=lambda row: -row[1])[:LONGEST]
        print(f"The longest rows: {', '.join(f'{name} {seconds:.0f} s' for name, seconds in longest)}")
        if os.environ.get("BENCH_JSON"):
            bench.report.write_json(Path(os.environ["BENCH_JSON"]), _environment())
    if failed:
        raise SystemExit(1)


def _environment() -> dict[str, object]:
    return {
        "python": platform.python_version(),
        "machine": platform.platform(),
        "cores": os.cpu_count(),
        "pinned": can_pin(),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


if __name__ == "__main__":
    main(sys.argv[1:])
