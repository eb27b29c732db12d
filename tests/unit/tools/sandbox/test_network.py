"""Containers that reach hosts by their proxy: what programs inside see, and what code inside cannot get at."""

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from responses_app.extensions.containers.egress.base import NamedSecret
from responses_app.extensions.containers.egress.policy import EgressPolicy
from responses_app.extensions.containers.egress.settings import EgressSettings, reachable
from responses_app.extensions.containers.sandbox import choosing, processes, watching
from responses_app.extensions.containers.sandbox.checkpoints import Checkpoints
from responses_app.extensions.containers.sandbox.choosing import SandboxChoice
from responses_app.extensions.containers.sandbox.containers import Containers
from responses_app.extensions.containers.sandbox.hosts import OwnHost, RemoteHost
from responses_app.extensions.containers.sandbox.records import (
    CellEnd,
    CommandsRun,
    ContainerNotFound,
    NetworkRefused,
    SandboxError,
)
from responses_app.extensions.containers.sandbox.sandboxes import Sandlock
from responses_app.extensions.containers.sandbox.sharing import SharedContainers
from responses_app.kit.clock import IdFactory
from tests.kit.echo_host import EchoHost, certificate, echo_host
from tests.kit.egress import NAMES, TOKEN, policy, proxies
from tests.kit.sandboxes import SMALL, has_bubblewrap, host_at, needs_bubblewrap, plain_python, session_of
from tests.kit.waiting import eventually
from tests.unit.tools.sandbox.nobody import SYSTEM_PYTHON, needs_root, run_as_nobody

pytestmark = needs_bubblewrap


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EchoHost]:
    """A host of https://, which this machine trusts."""
    pem = certificate(tmp_path / "host.pem", NAMES)
    monkeypatch.setenv("SSL_CERT_FILE", str(pem))
    with echo_host(pem) as host:
        yield host


def containers_of(own: EgressSettings | None = None, **more: Any) -> Containers:
    """Return containers that may reach what requests say, which is this machine."""
    return Containers(has_bubblewrap, SMALL, new_id=IdFactory(time.time), proxies=lambda: proxies(own), **more)


@pytest.fixture
async def containers() -> AsyncIterator[Containers]:
    containers = containers_of()
    yield containers
    await containers.aclose()


class Ran:
    def __init__(self, run: CommandsRun, printed: Sequence[dict[str, Any]]) -> None:
        self.run = run
        self.out = "".join(each.get("stdout", "") for each in printed)
        self.err = "".join(each.get("stderr", "") for each in printed)


async def shell(containers: Containers | SharedContainers, id: str, command: str, project: str = "p") -> Ran:
    printed: list[dict[str, Any]] = []
    run = await containers.run_commands(project, id, [command], seconds=30, most=60_000, report=printed.append)
    return Ran(run, printed)


async def test_programs_find_the_proxy_and_trust_it(containers: Containers, host: EchoHost) -> None:
    domains = [f"{name}:{host.port}" for name in NAMES[:2]]
    one = await containers.create("p", network=policy(*domains, TOKEN="api.example"))
    asked = f"https://api.example:{host.port}"
    curl = await shell(containers, one.id, f'curl -sS {asked}/curl -H "X-Token: $TOKEN"')
    stands = json.loads(curl.out)["headers"]["X-Token"]
    assert stands.startswith("respsite-secret-")
    assert host.asked[-1]["headers"]["X-Token"] == TOKEN
    code = f"""
import os, urllib.request
asked = urllib.request.Request("{asked}/python", headers={{"X-Token": os.environ["TOKEN"]}})
print(urllib.request.urlopen(asked).read().decode())
"""
    run = await containers.run("p", one.id, code)
    assert json.loads(run.execution.output)["headers"]["X-Token"] == stands
    assert [host.asked[-1][each] for each in ("path", "method")] == ["/python", "GET"]
    assert host.asked[-1]["headers"]["X-Token"] == TOKEN
    blind = await shell(containers, one.id, f'curl -sS https://open.example:{host.port}/ -H "X-Token: $TOKEN"')
    assert json.loads(blind.out)["headers"]["X-Token"] == stands
    assert host.asked[-1]["headers"]["X-Token"] == stands
    refused = await shell(containers, one.id, f"curl -sS https://other.example:{host.port}/")
    assert "CONNECT tunnel failed, response 403" in refused.err
    code = f"import urllib.request as u; u.urlopen('https://other.example:{host.port}/')"
    run = await containers.run("p", one.id, code)
    assert "network_policy.allowed_domains" in run.execution.output


async def test_the_proxy_serves_what_comes_behind_a_new_kernel(containers: Containers, host: EchoHost) -> None:
    one = await containers.create("p", network=policy(f"api.example:{host.port}"))
    url = f"https://api.example:{host.port}/"
    assert json.loads((await shell(containers, one.id, f"curl -sS {url}")).out)["path"] == "/"
    await containers.run("p", one.id, "import os; os.kill(os.getpid(), 9)")
    assert json.loads((await shell(containers, one.id, f"curl -sS {url}")).out)["path"] == "/"
    local = (
        "python3 -m http.server -b 127.0.0.1 8000 2>/dev/null & sleep 0.01; curl -sS --retry 50 --retry-connrefused "
    )
    assert (
        "Directory listing" in (await shell(containers, one.id, f"{local} --retry-delay 0 http://localhost:8000/")).out
    )


async def test_a_container_without_a_policy_is_as_ever(containers: Containers, host: EchoHost) -> None:
    one = await containers.create("p")
    ran = await shell(containers, one.id, "env | grep -i -e proxy -e ssl; ls /etc/ssl; cat /proc/net/tcp")
    assert "PROXY" not in ran.out.upper()
    assert "0C38" not in ran.out, "nothing listens at 3128"
    run = await containers.run("p", one.id, "import socket; socket.socket()")
    assert run.execution.error == "PermissionError"
    assert one.proxy is None


async def test_the_outside_is_the_proxy_alone(containers: Containers, host: EchoHost) -> None:
    """Whatever is tried from inside, none of it reaches a port of the machine or another container's proxy."""
    one = await containers.create("p", network=policy(f"api.example:{host.port}"))
    code = f"""
import ctypes, os, socket
reached = []
for address in ("127.0.0.1", "0.0.0.0", "127.0.0.2", "10.0.0.1", "169.254.169.254", "172.17.0.1", "192.0.2.1"):
    for port in ({host.port}, 53, 80):
        try:
            with socket.socket() as one:
                one.settimeout(0.2)
                one.connect((address, port))
                reached.append((address, port))
        except OSError:
            pass
kinds = [(socket.AF_INET, socket.SOCK_DGRAM, 0), (socket.AF_INET, socket.SOCK_RAW, 1), (socket.AF_INET6, 1, 0)]
kinds += [(socket.AF_INET, 1, 262), (socket.AF_INET, 1, 132), (socket.AF_NETLINK, 3, 0), (17, 3, 0), (40, 1, 0)]
for kind in kinds:
    try:
        socket.socket(*kind).close()
        reached.append(kind)
    except OSError:
        pass
with socket.socket() as one:
    try:
        one.setsockopt(socket.IPPROTO_TCP, 31, b"tls")
        reached.append("ulp")
    except OSError:
        pass
    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
for name in os.listdir("/proc/self/fd"):
    try:
        if "socket" in os.readlink(f"/proc/self/fd/{{name}}"):
            one = socket.socket(fileno=os.dup(int(name)))
            if one.family == socket.AF_INET:
                reached.append(name)
    except OSError:
        pass
print(reached or "stayed in")
"""
    run = await containers.run("p", one.id, code)
    assert run.execution.output.strip() == "stayed in"


DOOR = """
import asyncio, sys
from responses_app.extensions.containers.sandbox.launch import ContainerExtras, find_interpreter
from responses_app.extensions.containers.sandbox.sandboxes import Bubblewrap
from responses_app.extensions.containers.sandbox.session import SandboxSession
from responses_app.extensions.containers.sandbox.settings import SandboxSettings

class Door:  # stands for a `ContainerProxy`, whose libraries this user has not
    env, bundle = {"TOKEN": "stands for it"}, b"trusted"
    def open(self, listener):
        listener.setblocking(False)
        self.answering = asyncio.create_task(self.answer(listener))
    async def answer(self, listener):
        with listener:
            connection, _ = await asyncio.get_running_loop().sock_accept(listener)
            connection.sendall(b"from outside")
            connection.close()
    async def aclose(self):
        await self.answering

async def main():
    extras = ContainerExtras(way_out=Door())
    session = await SandboxSession.start(Bubblewrap(), find_interpreter(sys.argv[1]), SandboxSettings(), extras=extras)
    code = '''
import os, socket
with socket.create_connection(("127.0.0.1", 3128)) as one:
    print(os.environ["TOKEN"], open("/etc/ssl/cert.pem").read(), one.recv(100).decode(), sep=", ")
'''
    print((await session.run(code)).output.strip())
    await session.close()

asyncio.run(main())
"""


@needs_root
def test_a_server_that_is_not_root_gives_a_way_out_too(readable_copy: Path) -> None:
    said = run_as_nobody(readable_copy, SYSTEM_PYTHON, "-c", DOOR, SYSTEM_PYTHON)
    assert said == "stands for it, trusted, from outside"


async def test_escapes_fail_beside_a_proxy() -> None:
    """The self-test of sandboxes, in one that has a way out."""
    shared = proxies()
    proxy = await shared.proxy("p", policy("api.example", TOKEN="api.example"))
    with choosing._host() as machine:
        async with session_of(choosing.LIMITS, way_out=proxy) as session:
            for escape in choosing.ESCAPES:
                if escape.name != "read and write files of the host":  # there are no skills here
                    assert await choosing._failed(escape, session, machine), escape.name
            assert machine.canary.poll() is None
    assert not proxy._connections
    shared.close()


async def test_neither_a_value_nor_a_key_can_be_found_inside(containers: Containers, host: EchoHost) -> None:
    one = await containers.create("p", network=policy(f"api.example:{host.port}", TOKEN="api.example"))
    await shell(containers, one.id, f'curl -sS https://api.example:{host.port}/ -H "X-Token: $TOKEN"')
    assert host.asked[-1]["headers"]["X-Token"] == TOKEN
    code = f"""
import os
found, needles = [], ({TOKEN[:6]!r}.encode() + {TOKEN[6:]!r}.encode(), b"PRIVATE" + b" KEY")
for top in ("/etc/ssl", "/tmp", "/mnt", "/dev", "/opt", "/run", "/var"):
    for folder, _, names in os.walk(top):
        for name in names:
            path = os.path.join(folder, name)
            try:
                if os.path.isfile(path) and any(each in open(path, "rb").read() for each in needles):
                    found.append(path)
            except OSError:
                pass
for pid in filter(str.isdigit, os.listdir("/proc")):
    for name in ("environ", "cmdline"):
        try:
            content = open(f"/proc/{{pid}}/{{name}}", "rb").read()
            # The code itself stands in no command line.
            if any(each in content for each in needles):
                found.append((pid, name))
        except OSError:
            pass
print(found or "nothing", open("/etc/ssl/cert.pem").read().count("BEGIN CERTIFICATE"))
try:
    open("/etc/ssl/certs/ca-certificates.crt", "a")
    print("written")
except OSError:
    pass
"""
    run = await containers.run("p", one.id, code)
    assert run.execution.output == "nothing 2\n"


async def test_what_waits_in_sockets_is_bounded(containers: Containers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "MAX_WAITING", 300_000)
    one = await containers.create("p", network=policy("api.example"))
    code = """
import socket, time
listener, kept = socket.create_server(("127.0.0.1", 0)), []
while True:
    kept.append(socket.create_connection(listener.getsockname()))
    kept[-1].setblocking(False)
    try:
        while True:
            kept[-1].send(bytes(65536))
    except BlockingIOError:
        time.sleep(0.05)
"""
    run = await containers.run("p", one.id, code)
    assert run.execution.ended is CellEnd.TOO_MUCH_MEMORY
    assert processes.tcp_sockets(1 << 22) == (0, 0), "there is no such process"


async def test_nothing_is_open_behind_the_end_of_a_container(containers: Containers, host: EchoHost) -> None:
    counts = []
    for _ in range(3):
        one = await containers.create("p", network=policy(f"api.example:{host.port}"))
        asked = f"exec 3<>/dev/tcp/127.0.0.1/3128; curl -sS https://api.example:{host.port}/"
        assert json.loads((await shell(containers, one.id, asked)).out)["path"] == "/"
        proxy = one.proxy
        assert proxy is not None
        await containers.delete("p", one.id)
        assert not proxy._connections
        await eventually(lambda: not host.open)
        counts.append(descriptors())
    assert counts[1] == counts[2], "what the first one has made stays"
    starts = asyncio.create_task(
        shell(containers, (await containers.create("p", network=policy("a.example"))).id, "true")
    )
    await asyncio.sleep(0)
    starts.cancel()
    await asyncio.gather(starts, return_exceptions=True)
    assert descriptors() <= counts[2]


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


async def test_a_host_allows_what_its_settings_say() -> None:
    off = containers_of(EgressSettings())
    with pytest.raises(NetworkRefused, match=r"SANDBOX_NETWORK=off"):
        await off.create("p", network=policy("a.example"))
    some = containers_of(replace(EgressSettings(), sandbox_network=reachable("*.a.example, b.example")))
    await some.create("p", network=policy("x.a.example", "b.example:443"))
    for domain in ("a.example", "c.example", "b.example:22", "*.example"):
        with pytest.raises(NetworkRefused, match=rf"reach '{domain.replace('*', '.')}' \(SANDBOX_NETWORK\)"):
            await some.create("p", network=policy("b.example", domain))
    without = Containers(has_bubblewrap, SMALL, new_id=lambda prefix: prefix)
    with pytest.raises(NetworkRefused, match="no network here"):
        await without.create("p", network=policy("a.example"))
    for each in (off, some, without):
        await each.aclose()


async def test_a_sandbox_without_a_network_of_its_own_has_no_proxy() -> None:
    async def sandlock() -> SandboxChoice:
        return SandboxChoice(Sandlock(), plain_python())

    containers = Containers(sandlock, SMALL, new_id=lambda prefix: prefix, proxies=proxies)
    with pytest.raises(NetworkRefused, match="the sandbox of this server is sandlock"):
        await containers.create("p", network=policy("a.example"))
    await containers.aclose()


async def test_a_chain_has_a_container_for_each_policy(containers: Containers) -> None:
    one, other = policy("a.example", "b.example"), policy("a.example")
    plain = await containers.create("p")
    first, second = [await containers.create("p", network=each) for each in (one, other)]
    for each in (plain, first, second):
        await containers.join_chain(each.id, [f"resp_1 {each.network_key}".strip()])
    keys = [plain.id, first.id, second.id, "resp_1", f"resp_1 {one.key}", f"resp_1 {other.key}"]
    for each in (plain, first, second):
        found = await containers.of_chain("p", keys, each.network_key)
        assert found is not None
        assert found.container == each.record()
        found = await containers.of_chain("p", keys[3:], each.network_key)
        assert found is not None
        assert found.container.id == each.id
    assert one.key == policy("b.example", "a.example").key, "in any order"
    assert await containers.of_chain("p", keys, policy("c.example").key) is None
    assert one.key != policy("a.example", "b.example", TOKEN="a.example").key


async def test_values_go_to_the_host_of_a_container_and_no_further(host: EchoHost, tmp_path: Path) -> None:
    """Saved on the disk, a container keeps its policy; the values are lost until a request gives them again."""
    allowed, folder = policy(f"api.example:{host.port}", TOKEN="api.example"), tmp_path / "saved"
    curl = f'curl -sS https://api.example:{host.port}/ -H "X-Token: $TOKEN"'
    before = containers_of(checkpoints=Checkpoints(folder, 1 << 20))
    async with host_at(tmp_path / "socket", before):
        shared = SharedContainers([RemoteHost(str(tmp_path / "socket"))])
        made = await shared.create("p", name="mine", network=allowed)
        assert made.network is not None
        assert made.network.secrets == [NamedSecret("api.example", "TOKEN")]
        assert TOKEN not in repr(made)
        assert await shared.of_chain("p", [made.id], allowed.key) == made
        assert await shared.of_chain("p", [made.id]) is None
        await shell(shared, made.id, curl)
        assert host.asked[-1]["headers"]["X-Token"] == TOKEN
        await shared.aclose()
    written = b"".join(each.read_bytes() for each in folder.rglob("*") if each.is_file())
    assert b"api.example" in written
    assert TOKEN[:6].encode() not in written
    behind = containers_of(checkpoints=Checkpoints(folder, 1 << 20))
    shared = SharedContainers([OwnHost(behind)])
    found = await shared.find("p", made.id)
    assert found.network == made.network
    lost = await shell(shared, made.id, curl)
    assert "The value of the secret TOKEN is not known any more" in lost.out
    await shared.give_secrets("p", made.id, [{"domain": "api.example", "name": "TOKEN", "value": TOKEN}])
    assert json.loads((await shell(shared, made.id, curl)).out)["path"] == "/"
    assert host.asked[-1]["headers"]["X-Token"] == TOKEN
    with pytest.raises(ContainerNotFound):
        await shared.give_secrets("q", made.id, [])
    await shared.aclose()


async def test_a_container_that_was_saved_obeys_the_settings_of_today(tmp_path: Path) -> None:
    before = containers_of(checkpoints=Checkpoints(tmp_path, 1 << 20))
    made = await before.create("p", name="mine", network=policy("a.example"))
    await shell(before, made.id, "true")
    await before.aclose()
    behind = containers_of(EgressSettings(), checkpoints=Checkpoints(tmp_path, 1 << 20))
    with pytest.raises(SandboxError, match="SANDBOX_NETWORK=off"):
        await shell(behind, made.id, "true")
    await behind.aclose()


def test_a_policy_is_read_as_it_was_sent() -> None:
    whole = policy("a.example", "b.example:8080", TOKEN="a.example")
    assert EgressPolicy.read(whole.whole()) == whole
