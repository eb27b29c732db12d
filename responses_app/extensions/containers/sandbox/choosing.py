"""Which sandbox this machine has: each is tried, in the order of their strength, and the first that holds is used.

The self-test of a sandbox is code that tries to get out, and whether it did. It is run before a sandbox is used for the
first time on a machine: what a kernel allows differs too much to be trusted. Everything that is tried has a counterpart
on the host which tells whether it worked: a server that listens, a file with a secret, a process that is to be killed.
It takes a second or two, of which most is the start of two containers.
"""

import asyncio
import contextlib
import logging
import os
import secrets
import socket
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from responses_app.extensions.containers.sandbox.launch import (
    BaseSandbox,
    ContainerExtras,
    Interpreter,
    InterpreterError,
    find_interpreter,
)
from responses_app.extensions.containers.sandbox.records import CellEnd, Execution, SandboxError
from responses_app.extensions.containers.sandbox.sandboxes import Bubblewrap, Sandlock
from responses_app.extensions.containers.sandbox.session import SandboxSession
from responses_app.extensions.containers.sandbox.settings import KEPT_OUTPUT, SKILLS_FOLDER, SandboxSettings
from responses_app.extensions.containers.sandbox.watching import Cgroups, find_cgroups
from responses_app.protocol.setting import MIB

logger = logging.getLogger("respsite.sandbox")

LIMITS = SandboxSettings(
    sandbox_memory_bytes=96 * MIB, sandbox_disk_bytes=8 * MIB, sandbox_max_processes=16, sandbox_call_seconds=60.0
)
_STAYED_IN = "stayed in"  # what code prints that found no way
_MANY = 8  # processes that take a third of the memory each
_NOTICE_SECONDS = 10.0  # until the host must have seen that they did


@dataclass(frozen=True, slots=True)
class Host:
    """Whatever code in a sandbox must not reach: a port and local sockets that anybody may use, a file, a process."""

    port: int  # of 127.0.0.1, where a server listens
    socket_path: str  # of a local socket that anybody may connect to
    letter_box: str  # of one that takes datagrams
    file: str  # its path; the secret stands in it
    skills: Path  # a folder that containers see, and may not write to
    # A process that is to live on, with the secret in its environment and command line.
    canary: "subprocess.Popen[bytes]"
    secret: str  # nobody can know it who has not got out


@dataclass(frozen=True, slots=True)
class Escape:
    """One attempt to get out of a sandbox."""

    name: str  # what it tries: "code in it could …"
    code: Callable[[Host], str]  # what is run, for the host's own counterparts
    failed: Callable[[Execution, Host], bool]  # whether it stayed in, by what came of it


def _stayed_in(done: Execution, host: Host) -> bool:
    return done.ended is CellEnd.DONE and done.output.strip().endswith(_STAYED_IN) and host.secret not in done.output


def _canary_lives(done: Execution, host: Host) -> bool:
    return _stayed_in(done, host) and host.canary.poll() is None


def _was_ended(done: Execution, host: Host) -> bool:
    too_much = done.ended in (CellEnd.TOO_MUCH_MEMORY, CellEnd.DIED)
    return too_much or done.error in ("MemoryError", "BlockingIOError")  # BlockingIOError: of a fork


def _was_bounded(done: Execution, host: Host) -> bool:
    # Writing may fail inside, or the host may have ended it: both bound it.
    return _stayed_in(done, host) or done.ended is CellEnd.TOO_MUCH_DISK


def _was_cut(done: Execution, host: Host) -> bool:
    return done.ended is CellEnd.TOO_MUCH_OUTPUT and len(done.output) < 2 * KEPT_OUTPUT


# The first two sockets need a connection; datagrams need none, so a filter of `connect` alone would let them pass.
def _network(host: Host) -> str:
    return f"""
import socket
reached = []
targets = [
    (socket.AF_INET, ("127.0.0.1", {host.port})), (socket.AF_INET, ("10.0.0.1", 53)),
    (socket.AF_UNIX, {host.socket_path!r}), (socket.AF_UNIX, {_abstract(host)!r}),
]
for family, address in targets:
    try:
        with socket.socket(family) as one:
            one.settimeout(0.2)
            one.connect(address)
            reached.append(address)
    except OSError:
        pass
try:
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    one.sendto(b"hello", {host.letter_box!r})
    reached.append("letters")
except OSError:
    pass
print(reached or {_STAYED_IN!r})
"""


def _files(host: Host) -> str:
    return f"""
import os
found = []
for path in ({host.file!r}, "/proc/1/root" + {host.file!r}, "/proc/self/cwd/../.." + {host.file!r}):
    try:
        found.append(open(path).read())
    except OSError:
        pass
for folder in ("/usr", "/usr/bin", "/etc", "/", "/dev", {SKILLS_FOLDER!r}, os.path.dirname(os.__file__)):
    try:
        open(os.path.join(folder, "respsite-escape"), "w").close()
        found.append(folder)
    except OSError:
        pass
print(found or {_STAYED_IN!r})
"""


def _processes(host: Host) -> str:
    return f"""
import os
found = []
for pid in filter(str.isdigit, os.listdir("/proc")):
    for name in ("environ", "cmdline"):
        try:
            if {host.secret.encode()!r} in open(f"/proc/{{pid}}/{{name}}", "rb").read():
                found.append((pid, name))
        except OSError:
            pass
print(found or {_STAYED_IN!r})
"""


# The server itself gets signal 0 alone, which only asks whether a signal could be sent.
def _signals(host: Host) -> str:
    return f"""
import os, signal
for pid in ({host.canary.pid}, {os.getpid()}):
    try:
        os.kill(pid, signal.SIGKILL if pid == {host.canary.pid} else 0)
    except OSError:
        pass
print({_STAYED_IN!r})
"""


# The flags are CLONE_NEWUSER, CLONE_NEWNS and CLONE_NEWNET; 16 is PTRACE_ATTACH.
def _privileges(host: Host) -> str:
    return f"""
import ctypes, os
gained = []
for become in (lambda: os.setuid(0), lambda: os.setgid(0), lambda: os.setgroups([0]), lambda: os.chroot("/tmp")):
    try:
        become()
        gained.append("user")
    except OSError:
        pass
system = ctypes.CDLL(None)
for flag in (0x10000000, 0x20000, 0x40000000):
    if system.unshare(flag) == 0:
        gained.append(hex(flag))
if system.mount(b"none", b"/tmp", b"tmpfs", 0, None) == 0:
    gained.append("mount")
if system.ptrace(16, os.getppid(), 0, 0) == 0:
    gained.append("ptrace")
print(gained or {_STAYED_IN!r})
"""


def _forks(host: Host) -> str:
    return f"""
import os, time
children = []
try:
    while len(children) < {4 * LIMITS.sandbox_max_processes}:
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
        children.append(child)
except OSError:
    pass
for child in children:
    os.kill(child, 9)
    os.waitpid(child, 0)
print({_STAYED_IN!r} if len(children) <= {LIMITS.sandbox_max_processes} else len(children))
"""


# Slowly enough for the host to see it grow, where files lie on its disk.
def _disk(host: Host) -> str:
    return f"""
import os, time
written, open_files = 0, []
try:
    while written < {8 * LIMITS.sandbox_disk_bytes}:
        open_files.append(open(f"part{{len(open_files)}}", "wb", buffering=0))
        written += open_files[-1].write(bytes({LIMITS.sandbox_disk_bytes // 4}))
        time.sleep(0.02)
except OSError:
    pass
for place, file in enumerate(open_files):
    file.close()
    os.remove(f"part{{place}}")
print({_STAYED_IN!r} if written <= {LIMITS.sandbox_disk_bytes} else written)
"""


def _memory(host: Host) -> str:
    return f"""
kept = []
while len(kept) * {8 * MIB} < {2 * LIMITS.sandbox_memory_bytes}:
    kept.append(bytearray(b"x" * {8 * MIB}))
"""


def _memory_of_many(host: Host) -> str:
    """Each process takes less than a process may have; when all have it, the host has some time to see that."""
    return f"""
import os, time
children, (reading, writing) = [], os.pipe()
for _ in range({_MANY}):
    children.append(os.fork())
    if children[-1] == 0:
        try:
            kept = bytearray(b"x" * {LIMITS.sandbox_memory_bytes // 3})
            os.write(writing, b"x")
            time.sleep(60)
        finally:
            os._exit(0)
os.close(writing)
filled = 0
while filled < {_MANY} and os.read(reading, 1):
    filled += 1
if filled < {_MANY}:
    raise MemoryError
time.sleep({_NOTICE_SECONDS})
for child in children:
    os.kill(child, 9)
    os.waitpid(child, 0)
"""


def _output(host: Host) -> str:
    return "import os\nwhile True:\n    os.write(1, b'x' * 65536)\n"


ESCAPES = (
    Escape("reach the network", _network, _stayed_in),
    Escape("read and write files of the host", _files, _stayed_in),
    Escape("read of other processes", _processes, _stayed_in),
    Escape("send signals to the host", _signals, _canary_lives),
    Escape("gain privileges", _privileges, _stayed_in),
    Escape("start any number of processes", _forks, _stayed_in),
    Escape("fill the disk", _disk, _was_bounded),
    Escape("take all memory", _memory, _was_ended),
    Escape("take all memory with many processes", _memory_of_many, _was_ended),
    Escape("print for ever", _output, _was_cut),
)
_SECRET_FILE = "secret.txt"
_OTHER_CONTAINER = "read the files of another container"


async def ways_out(sandbox: BaseSandbox, interpreter: Interpreter, cgroups: Cgroups | None = None) -> list[str]:
    """Try to get out of a sandbox; return the ways out. Raises `SandboxError` where it does not even start."""
    with _host() as host:
        async with _session(sandbox, interpreter, cgroups, host.skills) as session:
            # One after the other: what one takes must not be another one's failure.
            possible = [each.name for each in ESCAPES if not await _failed(each, session, host)]
            await session.put(_SECRET_FILE, host.secret.encode())
            # A second container beside the first, which still lives.
            async with _session(sandbox, interpreter, cgroups, host.skills) as other:
                done = await other.run(_search_folders(host))
                if not _stayed_in(done, host):
                    _log(_OTHER_CONTAINER, done)
                    possible.append(_OTHER_CONTAINER)
    return possible


async def _failed(escape: Escape, session: SandboxSession, host: Host) -> bool:
    done = await session.run(escape.code(host))
    await session.restart()  # each begins with nothing that another has left
    if escape.failed(done, host):
        return True
    _log(escape.name, done)
    return False


def _log(name: str, done: Execution) -> None:
    logger.warning("an escape: %s: %s %s %r", name, done.ended, done.error, done.output[-500:])


def _search_folders(host: Host) -> str:
    return f"""
import os
found = []
for top in ("/mnt", "/tmp", "/proc/1/root/mnt", "/var/tmp"):
    for folder, _, names in os.walk(top):
        try:
            if {_SECRET_FILE!r} in names and {host.secret!r} in open(os.path.join(folder, {_SECRET_FILE!r})).read():
                found.append(folder)
        except OSError:
            pass
print(found or {_STAYED_IN!r})
"""


@contextlib.asynccontextmanager
async def _session(
    sandbox: BaseSandbox, interpreter: Interpreter, cgroups: Cgroups | None, skills: Path
) -> AsyncIterator[SandboxSession]:
    session = await SandboxSession.start(sandbox, interpreter, LIMITS, cgroups, extras=ContainerExtras(skills))
    try:
        yield session
    finally:
        await session.close()


def _abstract(host: Host) -> str:
    return f"\0respsite-{host.secret}"


@contextlib.contextmanager
def _host() -> Iterator[Host]:
    """Set up the things to be reached, and take them away again."""
    secret = secrets.token_hex(16)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="respsite-escape-")))
        # Anybody may enter it: what keeps code out is the sandbox, and not the folder's mode.
        folder.chmod(0o755)
        file = folder / "secret"
        file.write_text(secret)
        skills = folder / "skills"
        skills.mkdir()
        # Anybody might write there: again it is the sandbox that is to keep them from it.
        skills.chmod(0o777)
        port = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        local = stack.enter_context(socket.socket(socket.AF_UNIX))
        local.bind(str(folder / "socket"))
        local.listen()
        letters = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        letters.bind(str(folder / "letters"))
        for name in ("socket", "letters"):
            (folder / name).chmod(0o777)
        abstract = stack.enter_context(socket.socket(socket.AF_UNIX))
        command = ["/bin/sh", "-c", "read line", secret]
        canary = stack.enter_context(subprocess.Popen(command, env={"SECRET": secret}, stdin=subprocess.PIPE))
        stack.callback(canary.kill)
        sockets = (str(folder / "socket"), str(folder / "letters"))
        host = Host(port.getsockname()[1], *sockets, str(file), skills, canary, secret)
        # Bound last: its name has the secret, which `host` carries.
        abstract.bind(_abstract(host))
        abstract.listen()
        yield host


SANDBOXES: Sequence[type[BaseSandbox]] = (Bubblewrap, Sandlock)
_NO_START = "it does not start here, and the log of the server says why"


@dataclass(frozen=True, slots=True)
class SandboxChoice:
    """The result of the trial: the sandbox and its Python, or why there is none."""

    sandbox: BaseSandbox | None  # None where none holds
    interpreter: Interpreter | None  # None where SANDBOX_PYTHON names none that can be used
    problem: str = ""  # why there is none, in whole sentences, which clients may read
    cgroups: Cgroups | None = None  # where containers have groups of their own; None where they do not

    def between_calls(self) -> str:
        """Say what keeps containers still between calls."""
        return self.cgroups.described() if self.cgroups is not None else "no cgroup: each container is watched"


def missing(name: str) -> str:
    """Say what to install before a sandbox of this name, or any for `auto`, can be tried; "" for nothing."""
    reasons = {kind.name: kind().missing() for kind in SANDBOXES if name in ("auto", kind.name)}
    if None in reasons.values():
        return ""
    return " ".join(f"{kind}: {reason}." for kind, reason in reasons.items())


async def choose(name: str, python: str) -> SandboxChoice:
    """Return the sandbox of this name, or the first that holds for `auto`; `python` is the Python that runs in it."""
    try:
        interpreter = await asyncio.to_thread(find_interpreter, python)
    except InterpreterError as problem:
        logger.warning("SANDBOX_PYTHON: %s", problem)
        return SandboxChoice(None, None, "The setting SANDBOX_PYTHON names no Python that can be used.")
    reasons, cgroups = [], await asyncio.to_thread(find_cgroups)
    for kind in SANDBOXES:
        if name not in ("auto", kind.name):
            continue
        sandbox = kind()
        reason = sandbox.missing() or await _tried(sandbox, interpreter, cgroups)
        # It may be the group that keeps it from starting: tried once more without one.
        if reason == _NO_START and cgroups is not None:
            logger.warning("no cgroup for the containers of %s: they do not start in one", kind.name)
            cgroups = None
            reason = await _tried(sandbox, interpreter, None)
        if reason is None:
            choice = SandboxChoice(sandbox, interpreter, cgroups=cgroups)
            between = choice.between_calls()
            logger.info("code runs in a sandbox of %s with %s; %s", kind.name, interpreter.executable, between)
            return choice
        logger.warning("no sandbox of %s: %s", kind.name, reason)
        reasons.append(f"{kind.name}: {reason}")
    return SandboxChoice(None, None, f"No sandbox can be used here. {'; '.join(reasons)}.")


async def _tried(sandbox: BaseSandbox, interpreter: Interpreter, cgroups: Cgroups | None) -> str | None:
    """Return why a sandbox cannot be used, None if it holds."""
    try:
        possible = await ways_out(sandbox, interpreter, cgroups)
    except (SandboxError, OSError) as problem:
        logger.warning("%s: %s", sandbox.name, problem.detail if isinstance(problem, SandboxError) else problem)
        return _NO_START
    return f"code in it could {', '.join(possible)}" if possible else None
