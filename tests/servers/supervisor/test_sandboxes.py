"""Containers beside `serve`: they outlive its workers, and end with it."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.kit.sandboxes import needs_bubblewrap
from tests.kit.served import Supervised, command_line, is_gone

pytestmark = needs_bubblewrap

ASKED: dict[str, Any] = {
    "tools": [{"type": "code_interpreter", "container": {"type": "auto"}}],
    "include": ["code_interpreter_call.outputs"],
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Supervised]:
    """Return a server with two workers, which is stopped behind."""
    settings = {"worker_lease_seconds": 2, "sandbox_call_seconds": 60, "secret_key": "never told to a host" * 3}
    hosts: list[int] = []
    with Supervised(tmp_path_factory.mktemp("served"), workers=2, **settings) as server:
        yield server
        hosts += hosts_of(server)
    server.wait_for(lambda: all(map(is_gone, hosts)))


def hosts_of(server: Supervised) -> list[int]:
    """Return the hosts of containers that live."""
    assert server.process is not None
    pids = Path(f"/proc/{server.process.pid}/task").glob("*/children")
    return [int(pid) for each in pids for pid in each.read_text().split() if " sandboxes " in command_line(int(pid))]


def run(server: Supervised, code: str, **more: Any) -> dict[str, Any]:
    """Have code run in a response; return the response."""
    with httpx.Client(base_url=server.base_url, timeout=60) as http:
        answer = http.post("/responses", json={**ASKED, "input": f"python: {code}", **more})
        assert answer.status_code == 200, answer.text
        return dict(answer.json())


def output_of(response: dict[str, Any]) -> str:
    """Return what the code of a response has printed."""
    (call,) = [item for item in response["output"] if item["type"] == "code_interpreter_call"]
    return "".join(each["logs"] for each in call["outputs"])


def kill_workers(server: Supervised) -> None:
    """Kill all workers, and wait until one serves again."""
    before = server.output.count(" serves\n")
    for pid in server.pids():
        os.kill(pid, signal.SIGKILL)
    server.wait_for_line(" serves\n", count=before + 1)


def test_variables_outlive_three_rolls(served: Supervised) -> None:
    last = run(served, "x = 1")
    hosts = hosts_of(served)
    for roll in range(3):
        served.hup()
        served.wait_for_line("all workers are replaced", count=roll + 1)
        last = run(served, "x += 1; print(x)", previous_response_id=last["id"])
        assert output_of(last) == f"{roll + 2}\n"
    assert hosts_of(served) == hosts
    assert len(hosts) == 1


def test_a_call_whose_worker_is_killed_is_made_once_and_its_output_is_there(served: Supervised) -> None:
    first = run(served, "n = 0")
    code = "n += 1; import time; time.sleep(4); print(n)"
    body = {**ASKED, "input": f"python: {code}", "previous_response_id": first["id"]}
    with httpx.Client(base_url=served.base_url, timeout=60) as http:
        asked = {**body, "background": True, "stream": True}
        with http.stream("POST", "/responses", json=asked) as events:
            lines = (line.removeprefix("data: ") for line in events.iter_lines() if line.startswith("data: "))
            begun = json.loads(next(lines))["response"]
            assert any('"response.code_interpreter_call.interpreting"' in line for line in lines)
    kill_workers(served)

    def stored() -> dict[str, Any]:
        with httpx.Client(base_url=served.base_url, timeout=60) as http:
            return dict(http.get(f"/responses/{begun['id']}", params={"include[]": ASKED["include"]}).json())

    served.wait_for(lambda: stored()["status"] not in ("queued", "in_progress"))
    assert stored()["status"] == "completed"
    assert output_of(stored()) == "1\n"
    assert output_of(run(served, "print(n)", previous_response_id=begun["id"])) == "1\n"


def test_a_host_is_told_of_no_secrets(served: Supervised) -> None:
    run(served, "x = 1")
    (host,) = hosts_of(served)
    workers, told = (
        {each.partition("=")[0] for each in Path(f"/proc/{pid}/environ").read_text().split("\0")}
        for pid in (served.pids()[0], host)
    )
    assert workers & {"SECRET_KEY", "SANDBOX_HOSTS", "WORKER_LEASE_SECONDS"} == {
        *("SECRET_KEY", "SANDBOX_HOSTS", "WORKER_LEASE_SECONDS")
    }
    assert not told & {"SECRET_KEY", "SANDBOX_HOSTS", "WORKER_LEASE_SECONDS", "DATABASE_URL", "REDIS_URL"}
    assert told >= {"SANDBOX_CALL_SECONDS", "DATA_DIR", "PATH"}


def test_a_killed_host_is_told_of_and_started_again(served: Supervised) -> None:
    first = run(served, "x = 1")
    (killed,) = hosts_of(served)
    os.kill(killed, signal.SIGKILL)
    served.wait_for_line("the host of containers is gone")
    second = run(served, "print('x' in globals())", previous_response_id=first["id"])
    assert output_of(second) == "False\n"
    calls = [[item for item in each["output"] if item["type"] == "code_interpreter_call"] for each in (first, second)]
    assert calls[0][0]["container_id"] != calls[1][0]["container_id"]
    assert hosts_of(served) != [killed]


def test_a_host_that_hangs_is_killed_and_started_again(tmp_path: Path) -> None:
    with Supervised(tmp_path, workers=2, worker_silence_seconds=6) as server:
        first = run(server, "x = 1")
        (hung,) = hosts_of(server)
        os.kill(hung, signal.SIGSTOP)
        server.wait_for_line("the host of containers is silent, although it serves")
        server.wait_for_line("the host of containers is gone")
        second = run(server, "print('x' in globals())", previous_response_id=first["id"])
        assert output_of(second) == "False\n"
        assert is_gone(hung)
