"""`/metrics` of real servers: what is counted, over several workers too, and who may read it."""

import os
import signal
import socket as socket_module
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.kit.clients import Socket
from tests.kit.closed import ClosedServer, bearer
from tests.kit.fixtures import server_of_each_kind
from tests.kit.server import START_SECONDS, Server
from tests.kit.waiting import eventually
from tests.wire.transports.conftest import Connect

ASK = {"input": "Hello", "store": False}
PACE = '{"tokens_per_second": 300}'


class Numbers:
    """What a server's metrics say now."""

    def __init__(self, server: Server, headers: dict[str, str] | None = None) -> None:
        answer = httpx.get(f"{server.url}/metrics", headers=headers, verify=False)
        assert answer.status_code == 200, answer.text
        self.text = answer.text
        self.content_type = answer.headers["content-type"]
        self._samples = [s for family in text_string_to_metric_families(answer.text) for s in family.samples]

    def of(self, name: str, **labels: str) -> float:
        """Return the sum of all samples of a name with these labels."""
        return sum(
            sample.value
            for sample in self._samples
            if sample.name == f"respsite_{name}" and labels.items() <= sample.labels.items()
        )


counting = server_of_each_kind("metrics", engine_options=PACE)


def ask(server: Server, **fields: object) -> httpx.Response:
    """Post a create, and read all of the answer."""
    return httpx.post(f"{server.base_url}/responses", json={**ASK, **fields}, verify=False, timeout=30)


def test_responses_are_counted_by_transport(counting: Server) -> None:
    before = Numbers(counting)
    assert before.content_type.startswith("text/plain; version=0.0.4")
    usage = ask(counting, input="count to 30").json()["usage"]
    ask(counting, input="count to 30", stream=True)
    now = Numbers(counting)
    for transport in ("json", "sse"):
        labels = {"model": "demo", "transport": transport}
        for name in ("responses_total", "first_token_seconds_count", "response_seconds_count"):
            assert now.of(name, **labels) - before.of(name, **labels) == 1
    assert now.of("responses_total", status="completed") - before.of("responses_total", status="completed") == 2
    for name in ("input_tokens", "output_tokens"):
        assert now.of(f"{name}_total", model="demo") - before.of(f"{name}_total", model="demo") == 2 * usage[name]
    reasoning = usage["output_tokens_details"]["reasoning_tokens"]
    assert now.of("reasoning_tokens_total") - before.of("reasoning_tokens_total") == 2 * reasoning
    assert now.of("token_gap_seconds_count") > before.of("token_gap_seconds_count")
    assert now.of("journal_bytes_total") > before.of("journal_bytes_total")
    assert now.of("http_answers_total", status="200") >= 2
    assert now.of("responses_in_flight") == 0
    assert now.of("workers") == now.of("workers_reaching", service="database") == 1
    assert now.of("workers_reaching", service="engine") == 1
    assert 'service="redis"' not in now.text  # there is none
    assert now.of("memory_bytes") > 10_000_000
    assert now.of("cpu_seconds_total") > before.of("cpu_seconds_total") > 0


async def test_connections_lanes_and_what_waits(counting: Server, open_socket: Connect) -> None:
    socket: Socket = await open_socket(counting)
    for number in range(3):
        await socket.create("count to 5000", f"lane-{number}", store=False)
    await socket.create("Hello", "lane-0", store=False)
    for number in range(3):
        await socket.next(f"lane-{number}")
    now = Numbers(counting)
    assert now.of("websocket_connections") == 1
    assert now.of("websocket_lanes") == now.of("responses_in_flight", transport="websocket") == 3
    assert now.of("websocket_creates_waiting") == 1
    await socket.raw.close()
    for name in ("websocket_connections", "websocket_lanes", "responses_in_flight", "websocket_creates_waiting"):
        await eventually(lambda name=name: Numbers(counting).of(name) == 0)
    assert Numbers(counting).of("responses_total", transport="websocket", status="cancelled") == 3


async def test_errors_are_counted_where_clients_are_told(counting: Server, open_socket: Connect) -> None:
    socket: Socket = await open_socket(counting)
    await socket.create("Hello", model="no-such-model")
    await socket.next()
    await socket.raw.send("{")
    await socket.next()
    assert ask(counting, model="no-such-model").status_code == 404
    now = Numbers(counting)
    assert now.of("errors_total", where="websocket", code="model_not_found") == 1
    assert now.of("errors_total", where="websocket", code="invalid_json") == 1
    assert now.of("errors_total", where="http", code="model_not_found") == 1
    assert now.of("http_answers_total", status="404") == 1


def test_what_the_api_never_sees_is_counted(counting: Server) -> None:
    head = "POST /v1/responses HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    with socket_module.create_connection(("127.0.0.1", counting.port), timeout=10) as raw:
        raw.sendall(f"{head}Content-Length: 999999999\r\n\r\n".encode())
        assert b" 413 " in raw.recv(4096)
    now = Numbers(counting)
    assert now.of("errors_total", where="http", code="request_too_large") == 1
    assert now.of("http_answers_total", status="413") == 1


def test_calls_are_counted_by_their_type(counting: Server) -> None:
    tool = {"type": "function", "name": "get_weather", "parameters": {"type": "object", "properties": {}}}
    ask(counting, input="call get_weather for Paris", tools=[tool])
    assert Numbers(counting).of("tool_calls_total", model="demo", type="function_call") == 1


def test_ids_keys_and_projects_are_not_labels(tmp_path: Path) -> None:
    with ClosedServer(tmp_path, auth="on", metrics="public") as server:
        key = server.new_key("--project", "a-project", "--name", "a-name")
        made = httpx.post(f"{server.base_url}/responses", json={"input": "Hello"}, headers=bearer(key), verify=False)
        assert made.status_code == 200
        page = Numbers(server).text
        for secret in ("a-project", "a-name", key[:8], made.json()["id"], "Hello"):
            assert secret not in page


def test_who_may_read_them(tmp_path: Path) -> None:
    with ClosedServer(tmp_path, auth="on") as server:
        answer = httpx.get(f"{server.url}/metrics", verify=False)
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
        answer = httpx.get(f"{server.url}/metrics", headers=bearer(server.new_key()), verify=False)
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "missing_scope")
        reads = server.new_key("--project", "operators", "--scopes", "api.metrics.read")
        now = Numbers(server, bearer(reads))
        assert now.of("auth_failures_total", code="invalid_api_key") == 1
        assert now.of("auth_failures_total", code="missing_scope") == 1
        answer = httpx.get(f"{server.base_url}/models", headers=bearer(reads), verify=False)
        assert answer.status_code == 403  # it is made for this alone


def test_off_is_off(tmp_path: Path) -> None:
    with Server(tmp_path, metrics="off") as server:
        assert ask(server).status_code == 200
        assert httpx.get(f"{server.url}/metrics", verify=False).status_code == 404


class Workers(Server):
    """Two workers of uvicorn behind one address."""

    def _command(self) -> list[str]:
        return [*super()._command(), "--workers", "2"]


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Workers]:
    """Two workers that share their metrics."""
    with Workers(tmp_path, kind="uvicorn", metrics_dir=tmp_path / "metrics") as server:
        yield server


def pids(server: Server) -> list[int]:
    """Return the processes that serve, which their supervisor has started."""
    pid = server.process.pid
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in children if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]


async def test_any_worker_answers_for_all_and_what_those_that_are_killed_counted_stays(
    workers: Workers, open_socket: Connect
) -> None:
    await eventually(lambda: Numbers(workers).of("workers_reaching", service="engine") == 2, timeout=START_SECONDS)
    for _ in range(20):
        assert ask(workers).status_code == 200
    sockets = [await open_socket(workers) for _ in range(8)]
    assert sockets

    def all_are_there() -> bool:
        seen = [Numbers(workers) for _ in range(6)]  # whichever worker is asked
        return all(
            each.of("responses_total", transport="json") == 20 and each.of("websocket_connections") == 8
            for each in seen
        )

    await eventually(all_are_there)
    victims = pids(workers)
    assert len(victims) == 2
    for victim in victims:
        os.kill(victim, signal.SIGKILL)

    def is_back() -> bool:
        try:
            now = Numbers(workers)
        except httpx.TransportError:
            return False
        # One that is killed is taken for alive while another puts its numbers away.
        return (now.of("workers"), now.of("websocket_connections")) == (2, 0)

    await eventually(is_back, timeout=START_SECONDS)  # uvicorn starts two others
    assert Numbers(workers).of("responses_total") == 20
    files = sorted(file.name for file in (workers.folder / "metrics").iterdir())
    assert len([name for name in files if name.endswith(".json")]) == 2


def test_a_folder_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with Server(tmp_path / "server", metrics_dir=file) as server:
        assert ask(server).status_code == 200
        assert Numbers(server).of("responses_total") == 1
        assert "cannot be shared in METRICS_DIR" in server.output
