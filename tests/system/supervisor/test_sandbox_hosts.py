"""`serve` whose containers are on two other hosts, over TLS: where they are made, kept, and what becomes of them.

Only this finds what is lost between two hosts and workers that each know a part of what lies there.

The workers have no right to make a sandbox: they are told of bubblewrap alone, and nothing in their PATH is it.
"""

import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.kit.sandboxes import FarHost, certificate, needs_bubblewrap
from tests.kit.served import Supervised
from tests.kit.server import Server
from tests.system.supervisor.test_sandboxes import ASKED, hosts_of, output_of, run

pytestmark = [needs_bubblewrap]

SECRET = "a secret of some length"
DIGITS = 8  # the last ones of a container's id, which tell its host
FEW, MANY = 1, 8  # containers that each host may have in memory


class House:
    """The server, and its two hosts. `no_rights` are settings by which a server finds no sandbox of its own."""

    def __init__(self, server: Supervised, hosts: list[FarHost], no_rights: dict[str, str]) -> None:
        self.server, self.hosts, self.no_rights = server, hosts, no_rights
        self.http = httpx.Client(base_url=server.base_url, timeout=60, headers={"connection": "close"})  # any worker

    def make(self) -> str:
        answer = self.http.post("/containers", json={"name": "x"})
        assert answer.status_code == 200, answer.text
        return str(answer.json()["id"])

    def used_at(self, tag: str) -> dict[str, Any]:
        """Return a response whose code has run in a container of its own, at this host."""
        while True:
            used = run(self.server, "x = 1; open('/mnt/data/a.txt', 'w').write('hello');")
            if host_of(container_of(used)) == tag:
                return used
            self.http.delete(f"/containers/{container_of(used)}").raise_for_status()  # it is in nobody's way

    def clear(self) -> None:
        for each in self.http.get("/containers?limit=100").json()["data"]:
            self.http.delete(f"/containers/{each['id']}").raise_for_status()


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    folder = tmp_path_factory.mktemp("hosts")
    files = certificate(folder)
    hosts = [
        FarHost(folder / name, files, sandbox_secret=SECRET, sandbox_max_containers=most)
        for name, most in (("few", FEW), ("many", MANY))
    ]
    (folder / "nothing").mkdir()
    no_rights = {"sandbox": "bubblewrap"}
    found = {"sandbox_hosts": ",".join(each.address for each in hosts), "sandbox_tls_ca": files[0]}
    server = Supervised(folder / "server", workers=2, **no_rights, **found, sandbox_secret=SECRET)
    server.environ["PATH"] = str(folder / "nothing")
    with ExitStack() as stack:
        for each in hosts:
            each.start()
            stack.callback(each.end, signal.SIGKILL)
        stack.enter_context(server)
        house = House(server, hosts, {**no_rights, **found})
        stack.enter_context(house.http)
        yield house
        assert "Traceback" not in server.output
        assert not any("Traceback" in each.log.read_text() for each in hosts)


@pytest.fixture(autouse=True)
def _clear(house: House) -> None:
    house.clear()


def container_of(response: dict[str, Any]) -> str:
    (call,) = [item for item in response["output"] if item["type"] == "code_interpreter_call"]
    return str(call["container_id"])


def host_of(container: str) -> str:
    """Return what tells the host of a container."""
    return container[-DIGITS:]


@pytest.mark.representative
def test_code_runs_at_hosts_where_the_workers_cannot_run_any(house: House, tmp_path: Path) -> None:
    assert output_of(run(house.server, "print(1 + 1)")) == "2\n"
    assert hosts_of(house.server) == []
    alone = Server(tmp_path, sandbox="bubblewrap")  # as the workers are, with no host
    alone.environ["PATH"] = house.server.environ["PATH"]
    with alone:
        refused = alone.post("/responses", **ASKED, input="python: 1")
    assert refused.status_code == 400
    assert "bubblewrap" in refused.json()["error"]["message"]


def test_new_containers_lie_where_there_is_room(house: House) -> None:
    few, many = (each.tag for each in house.hosts)
    made: list[str] = []

    def last(number: int) -> list[str]:
        made.append(host_of(house.make()))
        return made[-number:]

    house.server.wait_for(lambda: {*last(6)} == {few, many})
    house.used_at(few)  # it is full now, which workers hear within two seconds
    house.server.wait_for(lambda: last(6) == [many] * 6)
    house.clear()
    house.server.wait_for(lambda: {*last(6)} == {few, many})


def test_a_chain_keeps_its_host_whichever_worker_it_comes_to(house: House) -> None:
    for _ in range(2):
        last = run(house.server, "x = 1")
        home, since = container_of(last), len(house.server.output)
        count = 1
        while len(house.server.answered_by(since=since)) < 2 or count < 4:
            last = run(house.server, "x += 1; print(x)", previous_response_id=last["id"])
            count += 1
            assert (output_of(last), container_of(last)) == (f"{count}\n", home)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_where_a_host_ends_the_other_one_has_what_is_new(house: House, how: signal.Signals) -> None:
    ended, other = house.hosts
    here = other.tag
    kept, lost = house.used_at(here), house.used_at(ended.tag)
    ended.end(how)
    try:
        assert {host_of(house.make()) for _ in range(4)} == {here}
        answer = house.http.get(f"/containers/{container_of(lost)}")
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
        assert "the host of the container" in answer.json()["error"]["message"]
        listed = {host_of(each["id"]) for each in house.http.get("/containers?limit=100").json()["data"]}
        assert listed == {here}
        again = run(house.server, "print(x)", previous_response_id=kept["id"])
        assert (output_of(again), container_of(again)) == ("1\n", container_of(kept))
        anew = run(house.server, "print('x' in globals())", previous_response_id=lost["id"])
        assert (output_of(anew), host_of(container_of(anew))) == ("False\n", here)
        assert "its variables and files are lost" in anew["output"][-1]["content"][0]["text"], "the model is told"
    finally:
        ended.start()
    answers: list[httpx.Response] = []
    of_lost = f"/containers/{container_of(lost)}/files"
    house.server.wait_for(lambda: not answers.append(house.http.get(of_lost)) and answers[-1].status_code != 503)
    files = answers[-1]
    if how == signal.SIGKILL:
        assert files.status_code == 404
    else:
        assert [each["path"] for each in files.json()["data"]] == ["/mnt/data/a.txt"], "it has saved them"
    house.server.wait_for(lambda: host_of(house.make()) == ended.tag)


def test_a_server_with_a_wrong_secret_is_refused_and_says_so(house: House, tmp_path: Path) -> None:
    with Server(tmp_path, **house.no_rights, sandbox_secret=f"{SECRET}?") as server:  # type: ignore[arg-type]
        for answer in (server.post("/containers", name="x"), server.post("/responses", **ASKED, input="python: 1")):
            assert (answer.status_code, answer.headers.get("retry-after")) == (503, "2"), answer.text
            assert "the secret is wrong (SANDBOX_SECRET)" in answer.json()["error"]["message"]
        assert "cannot be used: the secret is wrong" in server.output
    for each in house.hosts:
        assert "a worker is refused: the secret is wrong" in each.log.read_text()
    assert output_of(run(house.server, "print(1 + 1)")) == "2\n"
