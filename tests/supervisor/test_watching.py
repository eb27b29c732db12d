"""What operators see of several workers: metrics of all of them from any, and lines of the log that stay JSON."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.served import Supervised
from tests.kit.server import Server
from tests.transports.test_metrics import Numbers


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Supervised]:
    """Two workers."""
    with Supervised(tmp_path, workers=2) as server:
        yield server


def test_any_worker_answers_for_all_without_a_setting(served: Supervised) -> None:
    served.wait_for(lambda: Numbers(served).of("workers") == 2)
    for _ in range(10):
        assert served.post("/responses", input="Hi").status_code == 200
    served.wait_for(lambda: all(Numbers(served).of("responses_total") == 10 for _ in range(6)))
    os.kill(served.pids()[0], signal.SIGKILL)
    served.wait_for_line(" serves\n", count=3)
    served.wait_for(lambda: Numbers(served).of("workers") == 2)
    assert all(Numbers(served).of("responses_total") == 10 for _ in range(6))


def test_json_lines_of_workers_stay_json(tmp_path: Path) -> None:
    server = Supervised(tmp_path, workers=2, log_format="json")
    try:
        Server.start(server)
        assert server.post("/responses", input="Hi").status_code == 200
        server.wait_for_line("completed input=")
        (line,) = [line for line in server.output.splitlines() if "completed input=" in line]
        read = json.loads(line)
        assert read["transport"] == "json"
        assert read["pid"] in server.pids()
    finally:
        server.stop()
