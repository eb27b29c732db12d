"""The fork server as a real process: workers outlive it, it outlives them, and a roll starts a new one.

Only this finds workers that end with their fork server, and a roll that forks the old version again.
"""

import os
import signal
from collections.abc import Iterator

import pytest

from tests.kit.served import Supervised, children, is_gone

NEW_VERSION = """
begin_as_before = begin
def begin():
    os.write(2, b"this is the new version\\n")
    begin_as_before()
"""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Supervised]:
    """Two workers; a test may kill or replace them, and leaves two that serve."""
    with Supervised(tmp_path_factory.mktemp("forked"), workers=2) as server:
        yield server
        pids = [*server.pids(), *server.fork_servers()]
        assert server.stop() == 0
        assert all(map(is_gone, pids))
    assert "Traceback" not in server.output


def fork_server(served: Supervised) -> int:
    served.wait_for(lambda: len(served.fork_servers()) == 1)
    return served.fork_servers()[0]


def kill_one(served: Supervised, victim: int) -> None:
    before = served.output.count(" serves\n")
    os.kill(victim, signal.SIGKILL)
    served.wait_for_line(" serves\n", count=before + 1)


def roll(served: Supervised, end: str) -> None:
    """Ask for a new version; wait until the supervisor says how that ended."""
    before = served.output.count(end)
    served.hup()
    served.wait_for_line(end, count=before + 1)


def test_one_that_dies_is_of_the_version_that_serves_and_a_roll_loads_the_one_on_the_disk(served: Supervised) -> None:
    server, (first, second) = fork_server(served), served.pids()
    with (served.folder / "custom" / "sitecustomize.py").open("a") as code:
        code.write(NEW_VERSION)
    kill_one(served, first)
    assert second in children(server)
    assert len(children(server)) == 2
    assert "this is the new version" not in served.output
    roll(served, "all workers are replaced")
    assert served.output.count("] this is the new version\n") == 2
    served.wait_for(lambda: is_gone(server) and len(served.pids()) == 2)
    assert served.post("/responses", input="Hi").status_code == 200


def test_a_version_that_cannot_be_loaded_leaves_the_fork_server_of_the_older(served: Supervised) -> None:
    server = fork_server(served)
    (served.folder / "broken-load").touch()
    roll(served, "no more is replaced")
    (served.folder / "broken-load").unlink()
    assert "[forkserver] this version is broken" in served.output
    kill_one(served, served.pids()[0])
    assert served.fork_servers() == [server]
    assert set(served.pids()) == set(children(server))


def test_a_fork_server_that_is_killed_is_started_again_and_its_workers_go_on(served: Supervised) -> None:
    server, orphans = fork_server(served), served.pids()
    os.kill(server, signal.SIGKILL)
    served.wait_for_line("the fork server was ended by SIGKILL; its workers go on")
    another = fork_server(served)
    assert another != server
    assert not any(map(is_gone, orphans))
    assert {served.post("/responses", input="Hi").status_code for _ in range(10)} == {200}
    for orphan in orphans:
        kill_one(served, orphan)
    assert served.output.count("has ended, and how is not known") == 2
    assert set(served.pids()) == set(children(another))
