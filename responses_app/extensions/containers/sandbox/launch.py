"""How a program is started so that it can harm nobody but itself: the contract of a sandbox, and all that it is given.

A sandbox holds one program of ours, the warden (`inside/respsite_kernel/warden.py`), which runs code that nobody has
looked at. That code must never reach the network, files and processes of others, or more memory and disk than it was
given. A sandbox says how the warden is started (`BaseSandbox.launch`); `choosing` tests whether it holds. Here is also
what every sandbox gives the warden: a Python and the folders that it needs (`Interpreter`), its command, its
environment, what it sees of the machine, and a user (`UserClaim`).

Users of containers: where the server is root, each container has one that no other process of the machine has. The
kernel counts processes by user, so two containers with one user would be in each other's way, also those of two
servers. A user is claimed by binding a local socket of its name: nobody else can, and when the server dies the kernel
gives it free.
"""

import asyncio
import contextlib
import json
import os
import random
import socket
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from engine.errors import reason_of
from responses_app.extensions.containers.egress.base import PROXY_PORT
from responses_app.extensions.containers.sandbox import disk
from responses_app.extensions.containers.sandbox.records import SandboxError
from responses_app.extensions.containers.sandbox.settings import SCRATCH, SandboxSettings

if TYPE_CHECKING:
    from responses_app.extensions.containers.egress.proxies import ContainerProxy

ASK_SECONDS = 10.0  # for a Python to say where it lives
# Of the system's own, what every sandbox shows; all but the first are links into it on most systems.
SYSTEM_FOLDERS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_QUESTION = "import json, sys; print(json.dumps([sys.prefix, sys.base_prefix, sys.exec_prefix, sys.version_info[:2]]))"
OLDEST = (3, 9)  # Python that our programs inside can run on


class InterpreterError(Exception):
    """There is no such Python, or it is too old."""


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python on this machine."""

    executable: str  # its path as it is called, which may be a link
    folders: tuple[str, ...]  # what it needs beside `SYSTEM_FOLDERS`


def find_interpreter(executable: str) -> Interpreter:
    """Ask a Python where it lives. Takes 20 ms. Raises `InterpreterError`."""
    try:
        answer = subprocess.run(
            [executable, "-I", "-c", _QUESTION], capture_output=True, timeout=ASK_SECONDS, check=True, text=True
        )
        *prefixes, version = json.loads(answer.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        raise InterpreterError(f"{executable} is not a Python that can be run") from None
    if tuple(version) < (*OLDEST,):
        raise InterpreterError(f"{executable} is older than Python {'.'.join(map(str, OLDEST))}")
    folders = [*prefixes, *(str(folder) for folder in _on_the_way(Path(executable)))]
    return Interpreter(executable, tuple(dict.fromkeys(each for each in folders if not _is_system(each))))


def _on_the_way(path: Path) -> Iterator[Path]:
    """Yield the folders of the links that lead to the program: each must be seen, or it cannot be found inside."""
    for _ in range(40):  # as many links as the kernel follows
        if not path.is_symlink():
            return
        path = path.parent / path.readlink()
        yield path.parent


def _is_system(folder: str) -> bool:
    # `/` itself would show the whole machine.
    return folder in ("/", "") or any(folder == each or folder.startswith(f"{each}/") for each in SYSTEM_FOLDERS)


OPEN_FILES = 256  # of one process of a container
CPUS = 1  # cores that all processes of a container share
INSIDE = Path(__file__).parent / "inside"  # the folder of our programs that run inside


@dataclass(frozen=True, slots=True)
class ProxyDoor:
    """The means by which a container gets its way out."""

    descriptor: int  # of a socket over which the warden hands out the one that listens; the caller closes it
    env: Mapping[str, str] = field(repr=False)  # variables by which programs find the proxy
    bundle: bytes = field(repr=False)  # the certificates that they trust, as PEM


@dataclass(frozen=True, slots=True)
class Launch:
    """How a warden is started."""

    argv: Sequence[str]  # the program and its arguments
    env: Mapping[str, str] = field(default_factory=dict)  # all of it: nothing is inherited
    pass_fds: Sequence[int] = ()  # descriptors that it inherits; the caller closes them
    # On the host, with all its files, removed behind it; None where they lie in memory of a fixed size.
    folder: Path | None = None
    ends_together: bool = True  # all its processes end when the one that is started does


class BaseSandbox(ABC):
    """One way to keep a program apart. `name` is how the setting SANDBOX calls it."""

    name: ClassVar[str]
    has_ways_out: ClassVar[bool] = False  # its containers have a network of their own, which can have a proxy

    @abstractmethod
    def missing(self) -> str | None:
        """Say what to install or allow before it can be tried at all; None for nothing."""

    @abstractmethod
    def launch(
        self,
        interpreter: Interpreter,
        settings: SandboxSettings,
        *,
        uid: int | None,
        skills: Path | None = None,
        door: ProxyDoor | None = None,
    ) -> Launch:
        """Return how a warden is started; `uid` is the user that it becomes, None for the server's own.

        `skills` is a folder of the host that is seen at `SKILLS_FOLDER`, with what comes into it later; what runs
        inside cannot write there. There is a `door` only where it `has_ways_out`.

        In the work folder may be `sandbox_disk_bytes`, in `/tmp` half as much, and in `/dev/shm` a quarter.

        Descriptors in `pass_fds` are the caller's to close.
        """


PROGRAMS = "/opt/respsite"  # where our programs (`INSIDE`) are seen inside
# Files and folders of `/etc` that programs need, and that hold nothing of the machine's users or services.
OF_ETC = ("alternatives", "fonts", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "mime.types")
_MAIN = "import sys; sys.path.insert(0, {folder!r}); from respsite_kernel.warden import main; main()"


def warden_command(interpreter: Interpreter, settings: str, *, programs: str = PROGRAMS) -> Sequence[str]:
    """Return how the warden is started, with its `warden_settings`; it finds our programs in the folder `programs`.

    It writes no compiled files.
    """
    # `-I`: no environment, and nothing from the current folder; `-B`: no compiled files, as nothing can be written
    # there.
    return [interpreter.executable, "-I", "-B", "-c", _MAIN.format(folder=programs), settings]


def warden_settings(
    settings: SandboxSettings,
    *,
    folder: str,
    uid: int | None,
    has_own_processes: bool,
    seccomp: bytes = b"",
    door: int | None = None,
) -> str:
    """Return the warden's argument: see `WardenSettings` in `inside/respsite_kernel/warden.py`."""
    return json.dumps(
        {
            "uid": uid,
            "folder": folder,
            "memory": settings.sandbox_memory_bytes,
            "disk": settings.sandbox_disk_bytes,
            "processes": settings.sandbox_max_processes,
            "open_files": OPEN_FILES,
            "has_own_processes": has_own_processes,
            # Hexadecimal, as JSON has no bytes.
            "seccomp": seccomp.hex(),
            "door": door,
            "port": PROXY_PORT,
        }
    )


def environment() -> Mapping[str, str]:
    """Return the environment of a container: nothing of the server's is in it."""
    return {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": SCRATCH,
        "LANG": "C.UTF-8",
        "MPLBACKEND": "module://respsite_kernel.figures",
        "MPLCONFIGDIR": f"{SCRATCH}/.matplotlib",
        "OMP_NUM_THREADS": str(CPUS),
        "OPENBLAS_NUM_THREADS": str(CPUS),
    }


# systemd leaves these ids to services that have a user of their own while they run, and no file belongs to one for
# good (https://systemd.io/UIDS-GIDS, "Dynamic Service Users"); the usual map of a container's ids has them, too.
_FIRST, _USERS = 61184, 4336  # the first of them, and how many there are


@dataclass(frozen=True, slots=True)
class UserClaim:
    """A user that is nobody else's until `close`."""

    uid: int | None = None  # None where the server is not root: containers have the server's own user then
    lock: socket.socket | None = None  # held as long as the user is; the kernel closes it with the process

    def close(self) -> None:
        """Leave the user to others."""
        if self.lock is not None:
            self.lock.close()


def _has_users() -> bool:
    """Whether these users are there: a user namespace may have but one, which only looks like root."""
    try:
        lines = [list(map(int, line.split())) for line in Path("/proc/self/uid_map").read_text().splitlines()]
    except (OSError, ValueError):
        return False
    # Each line: the first id inside, the first one outside, and how many.
    return any(first <= _FIRST and first + count >= _FIRST + _USERS for first, _, count in lines)


def claim_user() -> UserClaim:
    """Return a user for a container. Raises `OSError` where all are taken."""
    if os.geteuid() != 0 or not _has_users():
        return UserClaim()
    begin = random.randrange(_USERS)  # servers that do not see each other's sockets hardly meet
    for place in range(_USERS):
        uid = _FIRST + (begin + place) % _USERS
        lock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            # An abstract name: it is gone with the socket, and lies in no folder.
            lock.bind(f"\0respsite-user-{uid}")
        except OSError:
            lock.close()
            continue
        return UserClaim(uid, lock)
    raise OSError("all users are taken")


NO_START = "the container does not start"
_NICENESS = 10  # the server itself comes first


@dataclass(frozen=True, slots=True)
class StartedSandbox:
    """A sandbox whose processes begin, with our ends of its channels."""

    process: "subprocess.Popen[bytes]"
    launch: Launch
    user: UserClaim  # let go once its processes are gone
    channel: socket.socket  # the warden is spoken to over it
    output: int  # the pipe from which what is printed is read
    door: socket.socket | None = None  # by which the socket of its proxy comes, once the warden is there


@dataclass(frozen=True, slots=True)
class ContainerExtras:
    """Skills and network of a container."""

    skills: Path | None = None  # as `BaseSandbox.launch` has it
    way_out: "ContainerProxy | None" = None  # None: it reaches nothing


NOTHING_MORE = ContainerExtras()


async def start_process(
    sandbox: BaseSandbox, interpreter: Interpreter, settings: SandboxSettings, extras: ContainerExtras = NOTHING_MORE
) -> StartedSandbox:
    """Start a sandbox with its warden. Raises `SandboxError`; then nothing of it is left."""
    user, door = claim_user(), None
    if extras.way_out is None:
        launch = sandbox.launch(interpreter, settings, uid=user.uid, skills=extras.skills)
    else:
        door, theirs_of_door = socket.socketpair()
        # Closed with the others that are passed on.
        passed = ProxyDoor(theirs_of_door.detach(), extras.way_out.env, extras.way_out.bundle)
        launch = sandbox.launch(interpreter, settings, uid=user.uid, skills=extras.skills, door=passed)
    ours, theirs = socket.socketpair()
    reading, writing = os.pipe()
    try:
        # Not asyncio's: it would need a thread a container, and the end of the channel says that it has ended.
        process = subprocess.Popen(  # noqa: ASYNC220  # 2 ms
            launch.argv,
            env=dict(launch.env),
            stdin=theirs.fileno(),
            stdout=writing,
            stderr=writing,
            pass_fds=tuple(launch.pass_fds),
            cwd="/",
            start_new_session=True,
        )
    except OSError as problem:
        ours.close()
        if door is not None:
            door.close()
        os.close(reading)
        user.close()
        if launch.folder is not None:
            await asyncio.to_thread(disk.remove, launch.folder)
        raise SandboxError(NO_START, detail=f"{launch.argv[0]}: {reason_of(problem)}") from None
    finally:
        # The container has its own copies now; with ours open the end of the channel would never be heard.
        theirs.close()
        os.close(writing)
        for descriptor in launch.pass_fds:
            os.close(descriptor)
    return StartedSandbox(process, launch, user, ours, reading, door)


def received_listener(door: socket.socket) -> socket.socket:
    """Return the socket that a warden has sent before it said that it is there. Raises `SandboxError`."""
    with door:
        door.setblocking(False)
        try:
            _, descriptors, *_ = socket.recv_fds(door, 1, 1)
        except OSError:
            descriptors = []
    if not descriptors:
        raise SandboxError(NO_START, detail="it has no socket for a proxy")
    listener = socket.socket(fileno=descriptors[0])
    if listener.family != socket.AF_INET or not listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        listener.close()
        raise SandboxError(NO_START, detail="what it gave for a proxy does not listen")
    return listener


def give_cores(pids: Sequence[int]) -> None:
    """Give the processes of a container, the first one first, the cores and the priority that they keep."""
    cores = sorted(os.sched_getaffinity(0))
    # Spread over the cores, so that not all containers share the first one.
    first = pids[0] % len(cores)
    own = {cores[(first + place) % len(cores)] for place in range(min(CPUS, len(cores)))}
    for pid in pids:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(pid, own)
            os.setpriority(os.PRIO_PROCESS, pid, _NICENESS)
