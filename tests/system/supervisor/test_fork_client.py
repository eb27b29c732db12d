"""`ForkClient`: fork servers that hang, refuse or die, and what then becomes of the processes that were ordered.

Only this finds an order that is lost with a real fork server, and a process that nobody waits for.

The fork server here is a real process that loads nothing, and whose processes do as a file says, in the place of
`manage.py fork_workers`.
"""

import ctypes
import os
import signal
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path

import pytest
import pytest_asyncio

from responses_app.management import forking
from responses_app.management.commands import fork_workers
from responses_app.management.forking import Descriptors, ForkClient, Order
from responses_app.management.processes import REFUSED, Ends, Process, WorkerProcess, run_program
from tests.kit.served import command_line, is_gone
from tests.kit.server import ROOT
from tests.kit.waiting import eventually

PR_SET_CHILD_SUBREAPER = 36  # prctl(2)
MANAGE = """
import os, socket, sys, time
sys.path.insert(0, {root!r})
from responses_app.management.forking import ForkServer
folder = os.path.dirname(__file__)
def does():
    return open(folder + "/does").read().split()
def value(flag):
    return int(sys.argv[sys.argv.index(flag) + 1])
if "serve_worker" in sys.argv:
    print("loaded by itself", flush=True)
    sys.exit(5)
with open(folder + "/servers", "a") as file:
    file.write(str(os.getpid()) + "\\n")
if does()[0] == "hang":
    time.sleep(600)
if does()[0] == "refuse":
    sys.exit(os.EX_CONFIG)
if does()[0] == "die":
    def die(self, number, pid):
        with open(folder + "/forked", "w") as file:
            file.write(str(pid))
        os.kill(os.getpid(), 9)
    ForkServer._keep = die
os.write(value("--says"), b"r")
if ForkServer(socket.socket(fileno=value("--control"))).serve() is not None:
    if does()[0] == "end":
        print("the last line", end="", flush=True)
        os._exit(int(does()[1]))
    time.sleep(600)
"""


class Forks:
    """A client, and workers that it has forked."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.client = ForkClient()
        self.ended: dict[int, int | None] = {}
        self.workers: list[WorkerProcess] = []
        self._inherited = [*os.pipe(), os.memfd_create("shares")]

    def does(self, what: str) -> None:
        (self.folder / "does").write_text(what)

    def start(self, number: int) -> WorkerProcess:
        worker = WorkerProcess(number, hears=lambda *_: None, ended=self.ended.__setitem__)
        self.workers.append(worker)
        worker.start(partial(self._fork, number), partial(run_program, ["serve_worker"], []))
        return worker

    async def _fork(self, number: int, ends: Ends) -> Process:
        inherited = dict(zip(Descriptors._fields[:3], self._inherited, strict=True))
        return self.client.fork(Order(number, at_once=False), Descriptors(**inherited, **ends._asdict()))

    def servers(self) -> list[int]:
        file = self.folder / "servers"
        return [int(pid) for pid in file.read_text().split()] if file.exists() else []

    async def close(self) -> None:
        for worker in self.workers:
            worker.send(signal.SIGKILL)
        await eventually(lambda: len(self.ended) == len(self.workers))
        await self.client.close()
        assert all(map(is_gone, self.servers()))
        for descriptor in self._inherited:
            os.close(descriptor)


@pytest.fixture
def adopts() -> Iterator[None]:
    prctl = ctypes.CDLL(None).prctl
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    yield
    prctl(PR_SET_CHILD_SUBREAPER, 0)


@pytest_asyncio.fixture
async def forks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Forks]:
    """One whose fork server and workers live until they are ended, unless a test says otherwise."""
    (tmp_path / "manage.py").write_text(MANAGE.format(root=str(ROOT)))
    monkeypatch.setattr("sys.argv", [str(tmp_path / "manage.py")])
    forks = Forks(tmp_path)
    forks.does("live")
    yield forks
    await forks.close()


async def test_a_status_and_the_last_line_come_and_each_process_has_its_own_name(
    forks: Forks, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    lives = forks.start(1)
    await eventually(lambda: "serve_worker --number 1" in command_line(lives.pid))
    forks.does("end 7")
    forks.start(23)
    await eventually(lambda: forks.ended == {23: 7})
    assert capfdbinary.readouterr().out == b"[23] the last line\n"
    assert os.getsid(lives.pid) == lives.pid
    assert len(forks.servers()) == 1
    lives.send(signal.SIGTERM)
    await eventually(lambda: forks.ended == {23: 7, 1: -signal.SIGTERM})


async def test_many_that_are_ordered_at_once_are_all_forked(forks: Forks) -> None:
    many = [forks.start(number) for number in range(1, 65)]
    await eventually(lambda: len({each.pid for each in many}) == len(many) and all(each.pid for each in many))


async def test_one_that_is_not_wanted_any_more_is_not_waited_for(forks: Forks) -> None:
    forks.does("hang")
    waits, stuck = forks.start(1), forks.start(2)
    await eventually(lambda: len(forks.servers()) == 1)
    waits.send(signal.SIGTERM)
    await eventually(lambda: forks.ended == {1: -signal.SIGTERM})
    assert not is_gone(forks.servers()[0])
    # In its time it has not started: its fork server hangs.
    stuck.send(signal.SIGKILL)
    await eventually(lambda: forks.ended == {1: -signal.SIGTERM, 2: -signal.SIGKILL})
    await eventually(lambda: is_gone(forks.servers()[0]))
    forks.does("live")
    another = forks.start(3)
    await eventually(lambda: another.pid > 0)


async def test_one_that_stands_still_hides_no_end_and_is_killed_with_the_worker_that_waits_for_it(
    forks: Forks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forking, "STATUS_SECONDS", 0.05)
    first, second = forks.start(1), forks.start(2)
    # One whose fork server is gone before it has told that it forked it ends by itself.
    await eventually(lambda: all("serve_worker" in command_line(each.pid) for each in (first, second)))
    os.kill(forks.servers()[0], signal.SIGSTOP)
    first.send(signal.SIGKILL)
    await eventually(lambda: forks.ended == {1: None})
    stuck = forks.start(3)
    stuck.send(signal.SIGKILL)
    await eventually(lambda: forks.ended == {1: None, 3: -signal.SIGKILL})
    await eventually(lambda: is_gone(forks.servers()[0]) and len(forks.servers()) == 2)
    assert not is_gone(second.pid)
    another = forks.start(4)
    await eventually(lambda: another.pid > 0)


async def test_what_it_has_forked_and_not_told_ends_with_it(forks: Forks) -> None:
    forks.does("die")
    forks.start(1)
    await eventually(lambda: forks.ended == {1: -signal.SIGKILL})
    await eventually(lambda: is_gone(int((forks.folder / "forked").read_text())))


async def test_an_orphan_that_ended_before_its_fork_server_is_waited_for_by_the_first_process_of_a_container(
    forks: Forks, monkeypatch: pytest.MonkeyPatch, adopts: None
) -> None:
    monkeypatch.setattr(forking, "STATUS_SECONDS", 1.0)
    first = forks.start(1)
    await eventually(lambda: first.pid > 0)
    server = forks.servers()[0]
    os.kill(server, signal.SIGSTOP)
    first.send(signal.SIGKILL)
    os.kill(server, signal.SIGKILL)
    await eventually(lambda: forks.ended == {1: -signal.SIGKILL})


async def test_one_that_is_ended_with_the_workers_is_not_started_again(
    forks: Forks, caplog: pytest.LogCaptureFixture
) -> None:
    first = forks.start(1)
    await eventually(lambda: first.pid > 0)
    forks.client.stop()
    os.kill(forks.servers()[0], signal.SIGTERM)
    await eventually(lambda: not forks.client.is_ready)
    assert len(forks.servers()) == 1
    assert "its workers go on" not in caplog.text


async def test_where_it_refuses_each_loads_the_application_itself(
    forks: Forks, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    forks.does("refuse")
    forks.start(1)
    await eventually(lambda: forks.ended == {1: 5})
    assert b"[1] loaded by itself\n" in capfdbinary.readouterr().out
    assert forks.client.refuses


async def test_one_that_dies_again_before_it_has_forked_anything_waits_for_the_next_order(
    forks: Forks, caplog: pytest.LogCaptureFixture
) -> None:
    first = forks.start(1)
    await eventually(lambda: first.pid > 0)

    async def kill_server(number: int) -> None:
        await eventually(lambda: len(forks.servers()) == number and forks.client.is_ready)
        os.kill(forks.servers()[-1], signal.SIGKILL)
        await eventually(lambda: caplog.text.count("the fork server was ended by SIGKILL") == number)

    await kill_server(1)
    await kill_server(2)
    assert not forks.client.is_ready
    assert len(forks.servers()) == 2
    second = forks.start(2)
    await eventually(lambda: second.pid > 0)
    first.send(signal.SIGKILL)
    await eventually(lambda: forks.ended == {1: None})
    first.send(signal.SIGKILL)  # as a supervisor does that is told to hurry


@pytest.fixture
def hangs_up() -> Iterator[None]:
    """Keep what this process does at a hang-up."""
    before = signal.getsignal(signal.SIGHUP)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("hangs_up")
def test_nothing_is_forked_where_a_thread_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(fork_workers, "load_application", lambda _: None)
    ours, theirs = socket.socketpair()
    enough = threading.Event()
    busy = threading.Thread(target=enough.wait, name="busybody")
    busy.start()
    try:
        with ours, theirs, pytest.raises(SystemExit) as ended:
            fork_workers.Command().handle(control=theirs.fileno(), says=ours.fileno())
    finally:
        enough.set()
        busy.join()
    assert ended.value.code == REFUSED
    assert "threads run here already" in capsys.readouterr().err
