"""The contract of a sandbox: how a program is started so that it can harm nobody but itself; and its settings.

With what every sandbox gives the warden: a Python and the folders that it needs (`Interpreter`), its command, its
environment, what it sees of the machine, and a user (`UserClaim`).

A sandbox holds one program of ours, the warden (`inside/respsite_kernel/warden.py`), which runs code that nobody has
looked at. That code must never reach the network, files and processes of others, or more memory and disk than it was
given. A sandbox says how the warden is started (`BaseSandbox.launch`); `escapes` tests whether it holds.

Users of containers: where the server is root, each container has one that no other process of the machine has.

The kernel counts processes by user, so two containers with one user would be in each other's way, also those of two
servers. A user is claimed by binding a local socket of its name: nobody else can, and when the server dies the kernel
gives it free.
"""

import json
import os
import random
import socket
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from responses_app.protocol.setting import KIB, MIB, RoomSettings, choice, seconds, setting, text, whole
from responses_app.tools.egress.base import PROXY_PORT

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
KEPT_OUTPUT = 128 * KIB  # bytes of what a cell prints: half of them from its beginning, and half from its end
SKILLS_FOLDER = "/mnt/skills"  # each in a folder of its own; nothing inside can write there
WORK_FOLDER = "/mnt/data"  # where the model was told that files are kept
MAX_HOSTS = 100  # each worker has a connection to each
LEAST_SECRET = 16  # characters
INSIDE = Path(__file__).parent / "inside"  # the folder of our programs that run inside


def sandbox_kind(value: str) -> str:
    """What keeps code apart."""
    if value.strip().lower() == "pyeryx":
        raise ValueError("one of auto, bubblewrap, sandlock, off; pyeryx has no package for the Python of this server")
    return choice("auto", "bubblewrap", "sandlock", "off")(value)


def hosts(value: str) -> tuple[str, ...]:
    """Hosts of containers: paths of Unix sockets, and addresses with their port."""
    hosts = tuple(dict.fromkeys(host.strip() for host in value.split(",") if host.strip()))
    for host in hosts:
        name, _, port = host.rpartition(":")
        if not host.startswith("/") and ("/" in host or not name or not port.isdecimal() or int(port) > 65535):
            raise ValueError(
                "addresses with a port, or paths of sockets, separated by commas, like box-1:8100,/run/box"
            )
    if len(hosts) > MAX_HOSTS:
        raise ValueError(f"at most {MAX_HOSTS} hosts")
    return hosts


def shared_secret(value: str) -> str:
    """A secret that is long enough."""
    if len(value.strip()) < LEAST_SECRET:
        raise ValueError(f"a secret of at least {LEAST_SECRET} characters")
    return value.strip()


@dataclass(frozen=True, kw_only=True)
class SandboxSettings(RoomSettings):
    """The settings of containers: which sandbox keeps them apart, what one may use, and how many there may be."""

    sandbox: str = setting(
        "auto", sandbox_kind,
        "sandbox for code written by the model: the first one that works here (`auto`), a certain one, or `off` "
        "for no code interpreter (see Code interpreter)",
    )  # fmt: skip
    sandbox_python: str = setting(
        "", text,
        "Python of the sandbox: the model's code can import its packages",
        default_text="the Python that the server's environment was made with",
    )  # fmt: skip
    sandbox_memory_bytes: int = setting(
        1024 * MIB, whole(64 * MIB),
        "maximum memory of all processes of a container; a container has 1 GiB unless the request sets "
        "`memory_limit`",
    )  # fmt: skip
    sandbox_disk_bytes: int = setting(
        256 * MIB, whole(MIB), "maximum size of the files of a container, which are kept in memory"
    )
    sandbox_max_processes: int = setting(64, whole(8, 4096), "processes and threads of one container")
    sandbox_call_seconds: float = setting(
        120.0, seconds(0.1), "how long the code of one call may run; then it is interrupted"
    )
    sandbox_max_containers: int = setting(
        32, whole(1, 4096),
        "containers of one host that are in memory at once; for a new one, the container that has been idle longest "
        "is saved on disk",
    )  # fmt: skip
    sandbox_project_containers: int = setting(
        0, whole(0, 4096),
        "containers of one project that may run code at once on one host; further calls wait; 0 = three "
        "quarters of SANDBOX_MAX_CONTAINERS",
    )  # fmt: skip
    sandbox_wait_seconds: float = setting(30.0, seconds(0), "how long a call waits for a free container; then it fails")
    sandbox_idle_seconds: float = setting(1200.0, seconds(1), "how long a container may be idle; then it expires")
    sandbox_save_seconds: float = setting(
        1200.0, seconds(1),
        "how long an idle container stays in memory; then its files are saved on disk, and its variables are lost",
    )  # fmt: skip
    sandbox_saved_bytes: int = setting(
        2048 * MIB, whole(0),
        "disk space of one host for the files of idle containers, in DATA_DIR/containers; 0 = containers are not "
        "saved, they end instead",
    )  # fmt: skip
    sandbox_hosts: tuple[str, ...] = setting(
        (), hosts,
        "where containers are: hosts of `respsite sandboxes`, as `name:port` or the path of a Unix socket, "
        "separated by commas",
        default_text="unset: a process that `respsite serve` starts; with another server, its own process",
    )  # fmt: skip
    sandbox_secret: str = setting(
        "", shared_secret,
        "secret that workers and the hosts of `respsite sandboxes --listen HOST:PORT` share",
        default_text="unset", secret=True,
    )  # fmt: skip
    sandbox_tls_cert: str = setting(
        "", text, "file with the TLS certificate of `respsite sandboxes --listen HOST:PORT`", default_text="unset"
    )
    sandbox_tls_key: str = setting("", text, "file with the private key of SANDBOX_TLS_CERT", default_text="unset")
    sandbox_tls_ca: str = setting(
        "", text,
        "file with the certificates that workers trust for the hosts in SANDBOX_HOSTS",
        default_text="unset: those of the system",
    )  # fmt: skip

    def problem(self, given: Container[str]) -> str | None:
        """Return what does not fit together."""
        if not self.sandbox_secret and any("/" not in each for each in self.sandbox_hosts):
            return "SANDBOX_HOSTS names another machine, and SANDBOX_SECRET is not set: the hosts there ask for it."
        return None


class SandboxError(Exception):
    """A sandbox cannot be had, or its program cannot be used any more; the text may be read by clients.

    `detail` may not: it is for the log.
    """

    def __init__(self, message: str, *, detail: str = "") -> None:
        super().__init__(message)
        self.detail = detail


@dataclass(frozen=True, slots=True)
class Door:
    """By what a container gets its way out."""

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
        """Return what is to be installed or allowed before it can be tried at all, None for nothing."""

    @abstractmethod
    def launch(
        self,
        interpreter: Interpreter,
        settings: SandboxSettings,
        *,
        uid: int | None,
        skills: Path | None = None,
        door: Door | None = None,
    ) -> Launch:
        """Return how a warden is started; `uid` is the user that it becomes, None for the server's own.

        `skills` is a folder of the host that is seen at `SKILLS_FOLDER`, with what comes into it later; what runs
        inside cannot write there. There is a `door` only where it `has_ways_out`.

        In the work folder may be `sandbox_disk_bytes`, in `/tmp` half as much, and in `/dev/shm` a quarter.

        Descriptors in `pass_fds` are the caller's to close.
        """


SCRATCH = "/tmp"  # inside
PROGRAMS = "/opt/respsite"  # where our programs (`base.INSIDE`) are seen inside
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
