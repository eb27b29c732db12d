"""The sandboxes that tests run code in: small ones, of the kind that this machine has."""

import asyncio
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from responses_app.extensions.containers.code_interpreter import CodeInterpreterTool
from responses_app.extensions.containers.egress.proxies import ContainerProxy
from responses_app.extensions.containers.sandbox.choosing import SandboxChoice
from responses_app.extensions.containers.sandbox.containers import Containers
from responses_app.extensions.containers.sandbox.hosts import HostListener, HostServer, OwnHost
from responses_app.extensions.containers.sandbox.launch import (
    BaseSandbox,
    ContainerExtras,
    Interpreter,
    find_interpreter,
)
from responses_app.extensions.containers.sandbox.records import SandboxError
from responses_app.extensions.containers.sandbox.sandboxes import Bubblewrap
from responses_app.extensions.containers.sandbox.session import SandboxSession
from responses_app.extensions.containers.sandbox.settings import SandboxSettings
from responses_app.extensions.containers.sandbox.sharing import SharedContainers
from responses_app.extensions.containers.sandbox.watching import Cgroups
from responses_app.protocol.setting import MIB
from tests.kit.server import ROOT, clean_environ, free_port

SMALL = SandboxSettings(
    sandbox_memory_bytes=192 * MIB, sandbox_disk_bytes=8 * MIB, sandbox_max_processes=24, sandbox_call_seconds=30.0
)
needs_bubblewrap = pytest.mark.needs("sandbox")


def plain_python() -> Interpreter:
    """Return the Python that this venv is made of, which is what a server uses that is told of no other."""
    return find_interpreter(getattr(sys, "_base_executable", sys.executable))


async def has_bubblewrap() -> SandboxChoice:
    """Say what the self-test would: it has tests of its own."""
    return SandboxChoice(Bubblewrap(), plain_python())


def shared(containers: Containers) -> SharedContainers:
    """Return containers of this process as whoever needs them has them."""
    return SharedContainers([OwnHost(containers)])


def interpreter(
    new_id: Callable[[str], str] | None = None,
    *,
    choose: Callable[[], Awaitable[SandboxChoice]] = has_bubblewrap,
    settings: SandboxSettings = SMALL,
    skills: Any = None,
) -> CodeInterpreterTool:
    """Return a tool that has its containers in this process; without `new_id` its ids are numbers."""
    numbers = count(1)
    containers = shared(Containers(choose, settings, new_id=new_id or (lambda prefix: f"{prefix}{next(numbers)}")))
    return CodeInterpreterTool(containers=containers, settings=settings, files=None, skills=skills)


@asynccontextmanager
async def host_at(path: Path, containers: Containers, *, grace: float = 0.0) -> AsyncIterator[HostServer]:
    """Be a host of these containers, at a Unix socket; it stops behind."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()
    async with serving(HostServer(containers, HostListener(listener), grace=grace)) as server:
        yield server


@asynccontextmanager
async def serving(server: HostServer) -> AsyncIterator[HostServer]:
    """Have a host serve; it stops behind."""
    serves = asyncio.create_task(server.serve())
    try:
        yield server
    finally:
        server.leave()
        await serves


PROGRAM = (sys.executable, "-c", "import sys; from responses_app.command_line import main; sys.exit(main())")


@contextmanager
def host_process(folder: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """Run `respsite sandboxes` at `socket` in a folder whose path is short. It can be reached; it is killed behind."""
    socket_path, environ = folder / "socket", clean_environ(DATA_DIR=str(folder / "data"))
    socket_path.unlink(missing_ok=True)
    command = [*PROGRAM, "sandboxes", "--listen", str(socket_path)]
    with subprocess.Popen(command, env=environ, cwd=ROOT, stderr=subprocess.DEVNULL) as process:
        try:
            _wait_for(process, socket_path)
            yield process
        finally:
            process.kill()


def _wait_for(process: "subprocess.Popen[bytes]", address: Path | tuple[str, int]) -> None:
    """Return once a process listens at a socket, or at a port."""
    family = socket.AF_UNIX if isinstance(address, Path) else socket.AF_INET
    for _ in range(1200):  # a minute: the machine may be busy
        with socket.socket(family) as client, suppress(OSError):
            client.connect(str(address) if isinstance(address, Path) else address)
            return
        with suppress(subprocess.TimeoutExpired):
            raise AssertionError(f"the host has ended, with status {process.wait(0.05)}")
    raise AssertionError("the host cannot be reached")


class FarHost:
    """`respsite sandboxes` at a port, over TLS and with a secret; it can be started again, with what it has saved.

    `files` are its certificate and the key of that. Its output goes to `folder/log`.
    """

    def __init__(self, folder: Path, files: tuple[str, str], **settings: object) -> None:
        folder.mkdir()
        self.port = free_port()
        self.address = f"localhost:{self.port}"  # as SANDBOX_HOSTS has it
        self.log = folder / "log"
        own = {"data_dir": folder, "sandbox_tls_cert": files[0], "sandbox_tls_key": files[1], **settings}
        self._environ = clean_environ(**{name.upper(): str(value) for name, value in own.items()})
        self.process: subprocess.Popen[bytes] | None = None
        self._tag = folder / "containers" / "0" / "tag"

    @property
    def tag(self) -> str:
        """The end of the ids of its containers."""
        return self._tag.read_text()

    def start(self) -> None:
        """Start, and wait until it listens."""
        command = [*PROGRAM, "sandboxes", "--listen", f"127.0.0.1:{self.port}"]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, env=self._environ, cwd=ROOT, stderr=log)
        _wait_for(self.process, ("127.0.0.1", self.port))

    def end(self, how: signal.Signals) -> None:
        """End it, and wait until it has."""
        assert self.process is not None
        self.process.send_signal(how)
        self.process.wait(60)


def certificate(folder: Path) -> tuple[str, str]:
    """Make a certificate for localhost; return its file and that of its key."""
    names = str(folder / "cert"), str(folder / "key")
    made = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
    named = ("-out", names[0], "-keyout", names[1], "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost")
    subprocess.run(["openssl", *made.split(), *named], check=True, capture_output=True)
    return names


def started(containers: Containers | SharedContainers) -> set[str]:
    """Return the ids of the containers of this process in which something runs."""
    every = [containers] if isinstance(containers, Containers) else own(containers.hosts)
    living = (each for one in every for each in one._known)
    return {each.id for each in living if each.session is not None and each.session.is_alive}


def own(hosts: Sequence[object]) -> list[Containers]:
    """Return the containers of this process, of the hosts that somebody has."""
    return [host.containers for host in hosts if isinstance(host, OwnHost)]


async def pieces_of(*contents: bytes) -> AsyncIterator[bytes]:
    """Yield what is to be written into a file."""
    for content in contents:
        yield content


async def content_of(containers: SharedContainers, project: str, id: str, file_id: object) -> bytes:
    return b"".join([part.content async for part in containers.content(project, id, str(file_id))])


@asynccontextmanager
async def session_of(
    settings: SandboxSettings = SMALL,
    *,
    sandbox: BaseSandbox | None = None,
    python: Interpreter | None = None,
    cgroups: Cgroups | None = None,
    way_out: ContainerProxy | None = None,
) -> AsyncIterator[SandboxSession]:
    """Start a container, with bubblewrap unless another sandbox is named, and end it."""
    extras = ContainerExtras(way_out=way_out)
    kind, interpreter = sandbox or Bubblewrap(), python or plain_python()
    try:
        session = await SandboxSession.start(kind, interpreter, settings, cgroups, extras=extras)
    except SandboxError as error:
        error.add_note(error.detail)  # what the sandbox printed
        raise
    try:
        yield session
    finally:
        await session.close()
