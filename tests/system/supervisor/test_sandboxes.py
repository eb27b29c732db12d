"""Containers beside `serve`: they outlive its workers, and end with it.

Only this finds a host that ends with a worker, or stays behind the server, and a call that is made twice by the worker
that takes over.
"""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.kit.databases import postgres_url
from tests.kit.redis_server import RedisServer
from tests.kit.sandboxes import needs_bubblewrap
from tests.kit.served import Supervised, command_line, is_gone
from tests.kit.server import manage

pytestmark = needs_bubblewrap

ASKED: dict[str, Any] = {
    "tools": [{"type": "code_interpreter", "container": {"type": "auto"}}],
    "include": ["code_interpreter_call.outputs"],
}


SETTINGS = {"worker_lease_seconds": 5, "sandbox_call_seconds": 60, "secret_key": "never told to a host" * 3}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Supervised]:
    """Return a server with two workers, on SQLite and without Redis, which is stopped behind."""
    yield from serve(tmp_path_factory.mktemp("served"))


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory, redis: RedisServer) -> Iterator[Supervised]:
    """Return one on PostgreSQL and with Redis."""
    folder = tmp_path_factory.mktemp("large")
    yield from serve(folder, database_url=postgres_url(folder, manage), redis_url=redis.url)


def serve(folder: Path, **settings: object) -> Iterator[Supervised]:
    hosts: list[int] = []
    with Supervised(folder, workers=2, **SETTINGS, **settings) as server:
        yield server
        hosts += hosts_of(server)
    server.wait_for(lambda: all(map(is_gone, hosts)))


def hosts_of(server: Supervised) -> list[int]:
    assert server.process is not None
    pids = Path(f"/proc/{server.process.pid}/task").glob("*/children")
    return [int(pid) for each in pids for pid in each.read_text().split() if " sandboxes " in command_line(int(pid))]


def run(server: Supervised, code: str, **more: Any) -> dict[str, Any]:
    with httpx.Client(base_url=server.base_url, timeout=60) as http:
        answer = http.post("/responses", json={**ASKED, "input": f"python: {code}", **more})
        assert answer.status_code == 200, answer.text
        return dict(answer.json())


def output_of(response: dict[str, Any]) -> str:
    (call,) = [item for item in response["output"] if item["type"] == "code_interpreter_call"]
    return "".join(each["logs"] for each in call["outputs"])


def kill_workers(server: Supervised) -> None:
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


def begun(server: Supervised, until: str, **asked: Any) -> str:
    """Begin a response in the background; return its id once an event of its stream has this in it."""
    body = {**asked, "background": True, "stream": True}
    with httpx.stream("POST", f"{server.base_url}/responses", json=body, timeout=60) as events:
        lines = (line.removeprefix("data: ") for line in events.iter_lines() if line.startswith("data: "))
        id = json.loads(next(lines))["response"]["id"]
        assert any(until in line for line in lines)
        return str(id)


def ended(server: Supervised, id: str) -> dict[str, Any]:

    def stored() -> dict[str, Any]:
        with httpx.Client(base_url=server.base_url, timeout=60) as http:
            return dict(http.get(f"/responses/{id}", params={"include[]": ASKED["include"]}).json())

    server.wait_for(lambda: stored()["status"] not in ("queued", "in_progress"))
    return stored()


def test_a_call_whose_worker_is_killed_is_made_once_and_its_output_is_there(large: Supervised) -> None:
    first = run(large, "n = 0")
    code = "n += 1; import time; time.sleep(4); print(n)"
    asked = {**ASKED, "input": f"python: {code}", "previous_response_id": first["id"]}
    id = begun(large, '"response.code_interpreter_call.interpreting"', **asked)
    kill_workers(large)
    response = ended(large, id)
    assert (response["status"], output_of(response)) == ("completed", "1\n")
    # All of them have been replaced since the kill, too.
    large.hup()
    large.wait_for_line("all workers are replaced")
    assert output_of(run(large, "print(n)", previous_response_id=id)) == "1\n"
    assert len(hosts_of(large)) == 1


def test_commands_whose_worker_is_killed_run_once_and_what_they_printed_is_there(served: Supervised) -> None:
    tools = [{"type": "shell", "environment": {"type": "container_auto"}}]
    command = "echo run | tee -a /mnt/data/runs; sleep 300"
    id = begun(served, '"stdout":"run', tools=tools, input=f"shell: {command}")
    kill_workers(served)
    response = ended(served, id)
    (call,) = [item for item in response["output"] if item["type"] == "shell_call"]
    (output,) = [item for item in response["output"] if item["type"] == "shell_call_output"]
    assert (response["status"], output["status"], output["output"][0]["stdout"]) == ("completed", "incomplete", "run\n")
    assert "What it has done by then is not known" in response["output"][-1]["content"][0]["text"], "the model is told"
    # The same container: it ran once, and was stopped.
    names = "[open(each).read().strip() for each in __import__('glob').glob('/proc/[0-9]*/comm')]"
    code = f"names = {names}; print(open('/mnt/data/runs').read().split(), 'sleep' in names, len(names) > 0)"
    after = run(served, code, previous_response_id=id)
    assert output_of(after) == "['run'] False True\n"
    (used,) = [item for item in after["output"] if item["type"] == "code_interpreter_call"]
    assert used["container_id"] == call["environment"]["container_id"]


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
    with Supervised(tmp_path, workers=2, worker_silence_seconds=8) as server:
        first = run(server, "x = 1")
        (hung,) = hosts_of(server)
        os.kill(hung, signal.SIGSTOP)
        server.wait_for_line("the host of containers is silent, although it serves")
        server.wait_for_line("the host of containers is gone")
        second = run(server, "print('x' in globals())", previous_response_id=first["id"])
        assert output_of(second) == "False\n"
        assert is_gone(hung)
