"""Workers as real processes: how they begin, are replaced, and end.

Only this finds a port that is lost between two processes, a worker that outlives its supervisor, and one that is never
replaced: `tests/unit/management` decides the same with no process anywhere.
"""

import os
import re
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from tests.kit.served import Supervised, command_line, is_gone
from tests.kit.server import Server
from tests.wire.transports.test_metrics import Numbers

MIB = 1024 * 1024
SLOW = '{"tokens_per_second": 100}'
GRACE = 300  # seconds that what runs may take to end
GRACEFUL = 60.0  # seconds in which workers that have nothing to do stop, on a machine that is busy


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Supervised]:
    """Two workers whose engine is slow enough to be interrupted; a test may end them."""
    folder = tmp_path_factory.mktemp("ended")
    server = Supervised(folder, workers=2, engine_options=SLOW, shutdown_grace_seconds=GRACE)
    yield server
    if server.is_running:
        server.stop()
    assert "Traceback" not in server.output


@pytest.fixture
def served(ended: Supervised) -> Supervised:
    if not ended.is_running:
        ended.start()
    return ended


@pytest.fixture(scope="module")
def steady(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Supervised]:
    """Two workers of the program `respsite`, on IPv6; a test may kill or replace some, and leaves two, which serve."""
    folder = tmp_path_factory.mktemp("steady")
    settings = {"engine_options": SLOW, "shutdown_grace_seconds": GRACE, "host": "::1"}
    with Supervised(folder, workers=2, program="-m respsite", is_forked=False, **settings) as server:
        yield server
        began = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - began < GRACEFUL
    assert not server.accepts()
    assert "Traceback" not in server.output


def read_to_the_end(connection: ClientConnection) -> None:
    for _ in connection:
        pass
    raise connection.protocol.close_exc


def test_it_says_what_it_serves_and_which_worker_says_what(steady: Supervised) -> None:
    assert re.search(r"^warning: WORKERS=2 without REDIS_URL: [^\n]*set REDIS_URL\.\n", steady.output, re.MULTILINE)
    shown = [line.split()[0] for line in steady.told() if line]
    assert [word for word in shown if word.istitle() or word == "URL"][:8] == [
        *("URL", "Engine", "Database", "Keys", "Redis", "Workers", "Try", "Open")
    ]
    assert len(steady.pids()) == 2
    before = len(steady.output)
    while len(answering := steady.answered_by(since=before)) < 2:
        assert steady.post("/responses", input="Hi").status_code == 200
    for number in answering:
        assert any("completed" in line for line in steady.told(int(number)))


def test_ctrl_c_ends_all_at_once(served: Supervised) -> None:
    pids = served.pids()
    with httpx.stream(
        "POST", f"{served.base_url}/responses", json={"input": "count to 9000", "stream": True}, timeout=30
    ) as stream:
        assert next(stream.iter_lines()) == "event: response.created"
        began = time.monotonic()
        assert served.stop(signal.SIGINT) == 0
        assert time.monotonic() - began < GRACEFUL
    assert all(map(is_gone, pids))


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_sigterm_lets_what_runs_end_and_a_second_one_does_not(served: Supervised, second: signal.Signals) -> None:
    assert served.process is not None
    with connect(served.ws_url) as busy, connect(served.ws_url) as idle:
        busy.send('{"type": "response.create", "input": "count to 9000"}')
        assert "response.created" in str(busy.recv())
        served.process.send_signal(signal.SIGTERM)
        with pytest.raises(ConnectionClosed, match="1012"):
            idle.recv(timeout=GRACEFUL)
        served.wait_for(lambda: not served.accepts(), GRACEFUL)
        assert "response." in str(busy.recv())
        assert served.is_running
        began = time.monotonic()
        assert served.stop(second) == 0
        assert time.monotonic() - began < GRACEFUL
        with pytest.raises(ConnectionClosed, match="1012"):
            read_to_the_end(busy)


@pytest.mark.representative
def test_one_that_is_killed_is_replaced_and_the_port_stays(steady: Supervised) -> None:
    victim, other = steady.pids()
    before = steady.output.count(" serves\n")
    os.kill(victim, signal.SIGKILL)
    for _ in range(10):
        assert steady.post("/responses", input="Hi").status_code == 200
    steady.wait_for_line(" serves\n", count=before + 1)
    assert "was ended by SIGKILL" in steady.output
    assert len(steady.pids()) == 2
    assert other in steady.pids()


def test_one_that_stands_still_is_killed_and_replaced(tmp_path: Path) -> None:
    with Supervised(tmp_path, workers=2, worker_silence_seconds=8) as served:
        stopped, blocked = served.pids()
        os.kill(stopped, signal.SIGSTOP)
        os.kill(blocked, signal.SIGUSR1)
        served.wait_for_line("is silent, although it serves, and is killed", count=2)
        served.wait_for_line(" serves\n", count=4)
        assert not {stopped, blocked} & set(served.pids())
        assert served.post("/responses", input="Hi").status_code == 200


def test_when_the_supervisor_is_killed_no_worker_stays_and_the_next_one_can_start_at_once(served: Supervised) -> None:
    (served.folder / "hang").touch()
    served.hup()
    served.wait_for(lambda: len(served.pids()) == 3)
    pids = [*served.pids(), *served.fork_servers()]  # one of them is still starting
    with connect(served.ws_url, max_queue=None) as busy:
        busy.send('{"type": "response.create", "input": "count to 150"}')
        assert "response.created" in str(busy.recv())
        assert served.process is not None
        served.process.kill()
        served.process.wait()
        (served.folder / "hang").unlink()
        served.wait_for(lambda: not served.accepts(), GRACEFUL)
        served.start()
        said = ""
        try:
            while "response.completed" not in said:
                said = str(busy.recv(timeout=30))
        except ConnectionClosed as closed:
            pytest.fail(f"{closed}, behind {said[-500:]}; {served.output[-3000:]}")
    served.wait_for(lambda: all(map(is_gone, pids)), GRACEFUL)
    assert served.post("/responses", input="Hi").status_code == 200


def test_workers_that_cannot_start_end_it_with_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "broken").touch()
    served = Supervised(tmp_path, workers=2)
    with pytest.raises(AssertionError, match="the server ended"):
        served.start()
    assert served.process is not None
    assert served.process.returncode == 1
    assert served.output.splitlines()[-1] == "respsite: the workers cannot start; what they said is above."
    assert "[1] this version is broken" in served.output
    assert "worker 1 ended with status 3" in served.output
    assert "Traceback" not in served.output


@pytest.mark.representative
def test_a_new_version_that_does_not_start_leaves_the_old_one_where_it_is(steady: Supervised) -> None:
    pids = steady.pids()
    (steady.folder / "broken").touch()
    steady.hup()
    steady.wait_for_line("no more is replaced")
    assert steady.pids() == pids
    assert steady.post("/responses", input="Hi").status_code == 200
    (steady.folder / "broken").unlink()
    steady.hup()
    steady.wait_for_line("all workers are replaced")
    steady.wait_for(lambda: len(steady.pids()) == 2)
    assert not set(steady.pids()) & set(pids)
    assert steady.post("/responses", input="Hi").status_code == 200


def test_one_that_is_not_ready_leaves_what_comes_to_one_that_is_and_answers_where_that_is_killed(
    tmp_path: Path,
) -> None:
    (tmp_path / "slow-1").touch()
    served = Supervised(tmp_path, workers=2)
    try:
        Server.start(served)
        served.wait_for_line("worker 2 serves\n")
        served.wait_for(lambda: Numbers(served).of("workers") == 2)  # both listen
        answers = [served.post("/responses", input="Hi") for _ in range(30)]
        assert {answer.status_code for answer in answers} == {200}, answers[-1].text
        assert served.answered_by() == {"2"}
        (tmp_path / "hang").touch()  # the one that is started for it comes to nothing
        (victim,) = [pid for pid in served.pids() if "--number 2" in command_line(pid)]
        os.kill(victim, signal.SIGKILL)
        refused = served.post("/responses", input="Hi")
        assert refused.status_code == 503, refused.text
        (tmp_path / "hang").unlink()
        served.wait_for_line(" serves\n", count=2)
        assert {served.post("/responses", input="Hi").status_code for _ in range(10)} == {200}
    finally:
        served.stop()


def test_one_that_is_too_large_is_replaced(steady: Supervised, tmp_path: Path) -> None:
    limit = str(max(resident(pid) for pid in steady.pids()) + 100 * MIB)
    program = "tests/system/supervisor/quick_manage.py"
    with Supervised(tmp_path, workers=2, program=program, worker_max_memory_bytes=limit) as served:
        large, other = served.pids()
        (tmp_path / f"grow-{large}").touch()
        served.wait_for_line("more than WORKER_MAX_MEMORY_BYTES: it is replaced")
        served.wait_for(lambda: large not in served.pids())
        assert other in served.pids()
        assert len(served.pids()) == 2
        assert served.post("/responses", input="Hi").status_code == 200


def test_connections_are_shared_out_evenly(steady: Supervised) -> None:
    before = [sockets_of(pid) for pid in steady.pids()]
    opened = [socket.create_connection(("::1", steady.port)) for _ in range(60)]
    try:
        # One of the test before may close meanwhile.
        steady.wait_for(lambda: sum(map(sockets_of, steady.pids())) >= sum(before) + 58)
        held = [sockets_of(pid) - usual for pid, usual in zip(steady.pids(), before, strict=True)]
        assert max(held) - min(held) <= 12
    finally:
        for each in opened:
            each.close()


def sockets_of(pid: int) -> int:
    count = 0
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):  # it was closed meanwhile
            count += os.readlink(link).startswith("socket:")
    return count


def resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
