"""`python -m bench.training`: ROLLOUTS (10,000) roll-outs of ROLLOUT_TURNS (30), and a comparison of every token.

3 workers, PostgreSQL, Redis, two engines. ROLLOUTS_AT_ONCE (200) run at a time. Meanwhile workers are killed and the
weights change twice. Logs and records stay in ROLLOUTS_FOLDER where that is given.
"""

import os
import tempfile
from contextlib import ExitStack
from pathlib import Path

from bench.report import Report
from bench.training.running import Sizes, train
from tests.kit.ending import ended_cleanly


def main() -> None:
    """Run, and print what came of it."""
    sizes = Sizes(
        rollouts=int(os.environ.get("ROLLOUTS", "10000")),
        turns=int(os.environ.get("ROLLOUT_TURNS", "30")),
        at_once=int(os.environ.get("ROLLOUTS_AT_ONCE", "200")),
        seconds=float(os.environ.get("ROLLOUTS_SECONDS", "inf")),
        kills=int(os.environ.get("ROLLOUTS_KILLS", "4")),
    )
    with ended_cleanly(), ExitStack() as stack:
        given = os.environ.get("ROLLOUTS_FOLDER")
        folder = Path(given or stack.enter_context(tempfile.TemporaryDirectory(prefix="respsite-training-")))
        report = Report()
        report.begin("rollouts")
        for result in train(folder, sizes, step=lambda text: print(f"… {text}", flush=True)):
            report.add(result)
    if any(each.verdict == "missed" for each in report.results):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
