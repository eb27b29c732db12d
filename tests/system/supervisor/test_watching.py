"""What operators see of several workers: metrics of all of them from any, and lines of the log that stay JSON.

Only this finds numbers that are lost with the worker that counted them, and lines that the supervisor breaks.
"""

import json
import os
import signal
from pathlib import Path

from tests.kit.served import Supervised
from tests.kit.server import Server
from tests.wire.transports.test_metrics import Numbers


def test_any_worker_answers_for_all_without_a_setting_and_json_lines_stay_json(tmp_path: Path) -> None:
    served = Supervised(tmp_path, workers=2, log_format="json")
    try:
        Server.start(served)
        served.wait_for_line(' serves"', count=2)
        for _ in range(10):
            answer = served.post("/responses", input="Hi")
            assert answer.status_code == 200, answer.text + served.output[-3000:]
        served.wait_for(lambda: all(Numbers(served).of("responses_total") == 10 for _ in range(6)))

        served.wait_for_line("completed input=", count=10)
        lines = [json.loads(line) for line in served.output.splitlines() if "completed input=" in line]
        assert {line["transport"] for line in lines} == {"json"}
        assert {line["pid"] for line in lines} <= set(served.pids())

        victim, _ = served.pids()
        os.kill(victim, signal.SIGKILL)
        served.wait_for(lambda: victim not in served.pids() and len(served.pids()) == 2)
        served.wait_for(lambda: Numbers(served).of("workers") == 2)
        served.wait_for(lambda: all(Numbers(served).of("responses_total") == 10 for _ in range(6)))
    finally:
        served.stop()
