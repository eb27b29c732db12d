"""The warden: the first program of ours in a sandbox. It starts the kernel, which runs code, and keeps its files.

It also runs commands of a shell, beside the kernel and without it (`shell`).

It is started with a JSON object as its argument (`WardenSettings`), and with a socket to the host as its standard
input. What the kernel and its children print goes to the standard output, which the host reads. Where the kernel dies,
the warden makes another one, so files outlive it; it forks, so that takes a millisecond.

The kernel runs as the same user, so code in it can kill or deceive the warden. That harms the container alone: the host
believes nothing that comes from here but that it has come, bounds all of it, and ends a sandbox that does not answer.

Between calls all processes are stopped: what a call leaves behind costs no time until the next one. The host sees to it
that they stay so.
"""

import contextlib
import json
import os
import resource
import select
import signal
import socket
import stat
import struct
import sys
import time
import traceback
from typing import Any, NamedTuple, NoReturn, Optional

from respsite_kernel.frames import Frame, packed, read_frame
from respsite_kernel.kernel import serve
from respsite_kernel.shell import ShellCommands

MAX_LISTED = 1000  # files of a container that can be seen from outside
MAX_PATH = 1024  # characters of a folder, in which files are told of
PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 4, 22, 36, 38  # `linux/prctl.h`
MAX_SIGNALS = 1024  # that wait, and timers: the system counts them by user, who may be the server's
BACKLOG = 64  # connections that wait for the proxy
GONE = 0  # exit status
GONE_SECONDS = 5.0  # how long processes that were killed may take to end
OOM_SCORE = "1000"  # where the machine has no memory left, the kernel's processes are the first to go


class WardenSettings(NamedTuple):
    """What the host tells the warden, as its argument."""

    # The user to become; None: it is that user already.
    uid: Optional[int]  # noqa: UP045  # older Pythons read this, too
    folder: str  # the work folder
    memory: int  # bytes, of one process
    disk: int  # bytes, of one file
    processes: int  # of the container together
    open_files: int  # of one process
    # It sees no process that is not its container's. If it does, it must not reach any other by signals, or it does
    # not start: it would stop and kill them all.
    has_own_processes: bool
    seccomp: str = ""  # a filter that the kernel loads itself, hexadecimal; "" where the sandbox has one already
    # A descriptor over which the host gets a socket that listens here, as a proxy; None where nothing is reached.
    door: Optional[int] = None  # noqa: UP045
    port: int = 0  # on which it listens


class Warden:
    """Answers the host: one frame for each of its own, in order, but for `interrupt`, which the run's end answers.

    Before the answer to `commands` there are frames of what they print, each with a `command` in its header.
    """

    def __init__(self, host: socket.socket, settings: WardenSettings) -> None:
        self._host = host
        self._settings = settings
        # Sizes and times of files as they were last told of, by their paths.
        self._seen: dict[str, tuple[int, int]] = {}
        self._running = False  # a cell runs, and its end has not been told
        self._shell: Optional[ShellCommands] = None  # noqa: UP045  # the commands that run
        self._lost_kernel = False  # it has died while they ran
        self._pid = 0  # of the kernel
        self._status: Optional[int] = None  # noqa: UP045  # of the kernel, when it has ended
        signal.signal(signal.SIGCHLD, self._reap)
        signal.siginterrupt(signal.SIGCHLD, False)  # where a supervisor carries calls out, any of them could be cut
        # A byte for each signal: else `select` would not see that a command has ended.
        self._woken, waking = socket.socketpair()
        self._waking = waking  # kept open
        for each in (self._woken, waking):
            each.setblocking(False)
        signal.set_wakeup_fd(waking.fileno(), warn_on_full_buffer=False)
        self._start_kernel()

    def serve(self) -> None:
        """Answer until the host is gone."""
        self._say({"ready": True})
        while True:
            readable, _, _ = select.select([self._host, self._kernel, *self._of_commands()], [], [])
            if self._host in readable:
                frame = read_frame(self._host)
                if frame is None:
                    return
                self._answer(frame)
            # Only when the host says nothing: an interruption must not wait behind what the kernel says.
            elif self._kernel in readable:
                self._hear_kernel()
            elif self._shell is not None:
                self._hear_commands(self._shell, readable)

    def end_all(self) -> None:
        """End all processes of the container but this one."""
        self._signal_all(signal.SIGKILL)

    def _answer(self, frame: Frame) -> None:
        action = frame.header.get("do")
        if action == "run":
            self._signal_all(signal.SIGCONT)
            self._running = True
            self._tell_kernel(frame.header, frame.payload)
        elif action == "commands":
            self._signal_all(signal.SIGCONT)
            self._lost_kernel = False
            self._shell = ShellCommands(lambda: _take_limits(self._settings))
            self._shell.start(json.loads(frame.payload))
        elif action == "interrupt" and self._shell is not None:
            self._shell.kill()
        elif action in ("answer", "interrupt"):
            if self._running:  # else nobody waits for the answer, and the signal would meet the next cell
                self._tell_kernel({}, frame.payload) if action == "answer" else os.kill(self._pid, signal.SIGINT)
        elif action == "restart":
            self._begin_anew(clear=bool(frame.header.get("clear")))
        else:
            try:
                self._say(*self._do(str(action), frame))
            except OSError as problem:
                self._say({"problem": problem.strerror or "it cannot be done"})

    def _tell_kernel(self, header: dict[str, Any], payload: bytes) -> None:
        with contextlib.suppress(BrokenPipeError):  # it has died meanwhile, which is heard next
            self._kernel.sendall(packed(header, payload))

    def _begin_anew(self, *, clear: bool) -> None:
        self._running = False
        self._restart()
        if self._shell is not None:
            self._shell.close()
            self._shell = None
        if clear:
            self._clear()
        self._say({"restarted": True})

    def _do(self, action: str, frame: Frame) -> tuple[dict[str, Any], bytes]:
        path = self._inside(str(frame.header.get("path", "")))
        if action == "put":
            os.makedirs(os.path.dirname(path), exist_ok=True)
            _add(path, int(frame.header["begin"]), frame.payload)
            return {}, b""
        if action == "rename":
            os.replace(path, self._inside(str(frame.header["to"])))
            self._changed()  # the next cell is not to be taken for its writer
            return {}, b""
        if action == "get":
            return _part(path, int(frame.header["begin"]), int(frame.header["most"]))
        if action == "remove":
            os.remove(path)
            return {}, b""
        if action == "list":
            return {"files": [[path, size] for path, (size, _) in self._listed().items()]}, b""
        return {"problem": "the host asked for something unknown"}, b""

    def _inside(self, path: str) -> str:
        return os.path.join(self._settings.folder, path)

    def _hear_kernel(self) -> None:
        frame = read_frame(self._kernel)
        if frame is None:
            how = self._restart()
            self._lost_kernel = True
            # It may also die between cells; then nobody waits.
            if self._running:
                self._running = False
                self._say({"died": how, "files": self._changed()})
        elif self._running and "call" in frame.header:  # it waits for the host's answer
            self._say({"call": True}, frame.payload)
        elif self._running:  # else it speaks without having been asked, and nobody waits for it
            self._running = False
            # Before the answer: when the host reads it, nothing runs any more.
            self._signal_all(signal.SIGSTOP)
            self._say({**frame.header, "files": self._changed()}, frame.payload)

    def _of_commands(self) -> list[Any]:
        """Return what to listen to for commands."""
        return [] if self._shell is None else [self._woken, *self._shell.pipes]

    def _hear_commands(self, shell: ShellCommands, readable: list[Any]) -> None:
        for each in readable:
            if each is self._woken:
                self._woken.recv(4096)
            elif (heard := shell.hear(each)) is not None:
                self._say(*heard)
        if shell.has_ended:
            for heard in shell.rest():
                self._say(*heard)
            self._shell = None
            # Before the answer, as behind a cell.
            self._signal_all(signal.SIGSTOP)
            self._say({"ended": shell.ends, "lost": self._lost_kernel, "files": self._changed()})

    def _restart(self) -> str:
        """End all processes of the container and begin with a new kernel; return how the old one ended."""
        self._signal_all(signal.SIGKILL)
        self._kernel.close()
        status = self._ended_with()
        deadline = time.monotonic() + GONE_SECONDS
        # They may fork while they are killed, so again until none is left.
        while self._others() and time.monotonic() < deadline:  # their memory is theirs until they are gone
            self._signal_all(signal.SIGKILL)
            time.sleep(0.002)
        self._start_kernel()
        if os.WIFSIGNALED(status):
            return f"by signal {os.WTERMSIG(status)}"
        return f"with status {os.WEXITSTATUS(status)}"

    def _ended_with(self) -> int:
        """Wait for the end of the kernel, and return its status as `os.waitpid` tells it."""
        while self._status is None:
            with contextlib.suppress(ChildProcessError):  # the handler was faster
                pid, status = os.waitpid(self._pid, 0)
                self._status = status if pid == self._pid else self._status
        return self._status

    def _reap(self, *_: object) -> None:
        """Take note of the ends of children: also of those that the kernel's have left behind."""
        with contextlib.suppress(ChildProcessError):
            while True:
                # WNOHANG: the handler must not wait; several may have ended with one signal.
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if pid == self._pid:
                    self._status = status
                elif self._shell is not None:
                    self._shell.note_end(pid, status)

    def _signal_all(self, number: int) -> None:
        """Send a signal to every process of the container but the warden, at once: else those that fork would escape.

        It reaches no other one: either there is none to be seen, or signals do not leave the sandbox (`main`).
        """
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(-1, number)

    def _others(self) -> list[int]:
        """Return the processes of the container that are neither the warden nor what started it."""
        others, user = [], os.getuid()
        for name in os.listdir("/proc"):
            # Its parent and the first process started it.
            if name.isdigit() and int(name) not in (os.getpid(), os.getppid(), 1):
                with contextlib.suppress(OSError):  # it ended meanwhile
                    if os.stat(f"/proc/{name}").st_uid == user and not _has_ended(name):
                        others.append(int(name))
        return others

    def _clear(self) -> None:
        """Remove all files."""
        for folder in (self._settings.folder, os.environ["HOME"]):
            for place, inner, names in os.walk(folder, topdown=False):
                # From the bottom up, so that each folder is empty when its turn comes.
                for name in (*names, *inner):
                    path = os.path.join(place, name)
                    with contextlib.suppress(OSError):
                        os.remove(path) if name in names or os.path.islink(path) else os.rmdir(path)

    def _start_kernel(self) -> None:
        self._kernel, other = socket.socketpair()
        self._status = None
        self._pid = os.fork()
        if self._pid == 0:
            # The kernel's children are its own to wait for.
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.set_wakeup_fd(-1)
            self._host.close()
            if self._shell is not None:  # the kernel before this one has died beside them
                self._shell.close()
            self._kernel.close()
            _become_kernel(other, self._settings)
        other.close()
        if read_frame(self._kernel) is None:
            raise SystemExit("The kernel does not start.")
        os.kill(self._pid, signal.SIGSTOP)

    def _changed(self) -> list[list[Any]]:
        """Return the files that are new or were written since the last time, with their sizes."""
        # All are looked at again: a cell may have written anything, anywhere.
        before, self._seen = self._seen, self._listed()
        return [[path, each[0]] for path, each in self._seen.items() if before.get(path) != each]

    def _listed(self) -> dict[str, tuple[int, int]]:
        listed: dict[str, tuple[int, int]] = {}
        for folder, inner, names in os.walk(self._settings.folder):
            # In place, so that `os.walk` goes into no hidden folder.
            inner[:] = sorted(each for each in inner if not each.startswith("."))
            if len(folder) > MAX_PATH:  # the host takes no longer ones; and `os.walk` calls itself for each level
                inner.clear()
            for name in sorted(names):
                path = os.path.join(folder, name)
                with contextlib.suppress(OSError):
                    about = os.lstat(path)
                    # `lstat`: links are not followed, and are no files.
                    if stat.S_ISREG(about.st_mode) and not name.startswith("."):
                        listed[os.path.relpath(path, self._settings.folder)] = (about.st_size, about.st_mtime_ns)
                if len(listed) == MAX_LISTED:
                    return listed
        return listed

    def _say(self, header: dict[str, Any], payload: bytes = b"") -> None:
        self._host.sendall(packed(header, payload))


def _has_ended(pid: str) -> bool:
    """Whether a process has ended; it stays in the table (a zombie) until its parent has asked how."""
    with open(f"/proc/{pid}/stat") as file:
        # Behind the last `)`: the name of a program may have spaces and brackets in it.
        return file.read().rpartition(")")[2].split()[0] == "Z"


def _part(path: str, begin: int, most: int) -> tuple[dict[str, Any], bytes]:
    """Return a part of a file, and nothing of what only looks like one: a pipe would never end.

    `size` is that of the whole file, and `written` tells when it was written last.
    """
    # A link or a pipe in place of the file must neither be followed nor waited for.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode):
            raise OSError(0, "it is not a file")
        file.seek(begin)
        return {"size": about.st_size, "written": about.st_mtime_ns}, file.read(most)


def _add(path: str, begin: int, content: bytes) -> None:
    """Write a part of a file behind those that are there already."""
    with open(path, "ab" if begin else "wb") as file:
        # Somebody else has written to it since the last part.
        if file.tell() != begin:
            raise OSError(0, "it was changed meanwhile")
        file.write(content)


def _become_kernel(channel: socket.socket, settings: WardenSettings) -> NoReturn:
    """Take the limits, and run what the warden sends; never return."""
    try:
        _take_limits(settings)
        serve(channel, settings.folder)
    except BaseException:  # noqa: BLE001  # the host logs it
        traceback.print_exc()
    finally:
        os._exit(GONE)


def _take_limits(settings: WardenSettings) -> None:
    """Take the limits, which nothing can give back, for this process and those that it makes."""
    for limit, most in (
        (resource.RLIMIT_DATA, settings.memory),
        (resource.RLIMIT_AS, 4 * settings.memory),  # files and unused reservations count here, too
        (resource.RLIMIT_FSIZE, settings.disk),
        # The system counts them by user: without a user of its own a container would count the server's.
        *([(resource.RLIMIT_NPROC, settings.processes)] if settings.has_own_processes else []),
        (resource.RLIMIT_NOFILE, settings.open_files),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
        (resource.RLIMIT_SIGPENDING, MAX_SIGNALS),
        (resource.RLIMIT_MEMLOCK, 0),
    ):
        # Both limits, soft and hard: it cannot be raised again.
        resource.setrlimit(limit, (most, most))
    if settings.seccomp:
        # Last: the filter refuses what would come after it.
        _load_filter(bytes.fromhex(settings.seccomp))


def _load_filter(program: bytes) -> None:
    """Have the system filter this process' calls from now on, and those of its children."""
    import ctypes

    steps = ctypes.create_string_buffer(program, len(program))
    described = struct.pack("@HP", len(program) // 8, ctypes.addressof(steps))  # `struct sock_fprog`
    # Without it only root may load a filter.
    _set(PR_SET_NO_NEW_PRIVS, 1)
    # SECCOMP_MODE_FILTER.
    _set(PR_SET_SECCOMP, 2, described)


def _set(what: int, *values: Any) -> None:
    """Set something of this process (`prctl`)."""
    import ctypes

    if ctypes.CDLL(None, use_errno=True).prctl(what, *values, *(0 for _ in range(4 - len(values)))):
        raise OSError(ctypes.get_errno(), f"prctl {what} is refused")


def _drop_privileges(uid: int) -> None:
    # Groups and group before the user: afterwards it may not any more.
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def _open_door(descriptor: int, port: int) -> None:
    """Give the host a socket that listens in this network, which it has no other part in; nothing of it stays here."""
    with socket.socket(fileno=descriptor) as door, socket.socket() as listener:
        listener.bind(("127.0.0.1", port))
        listener.listen(BACKLOG)
        socket.send_fds(door, [b"x"], [listener.fileno()])


def _reaches_others() -> bool:
    """Whether it could send a signal to the process that started it."""
    try:
        os.kill(os.getppid(), 0)
    except OSError:
        return False
    return True


def main() -> None:
    """Serve the host on the standard input until it is gone."""
    # Kept under another number: code inside finds nothing at 0.
    host = socket.socket(fileno=os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    settings = WardenSettings(**json.loads(sys.argv[1]))
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:  # as long as it may
        score.write(OOM_SCORE)
    if settings.uid is not None:
        _drop_privileges(settings.uid)
    elif settings.has_own_processes:
        _set(PR_SET_DUMPABLE, 0)  # the kernel is the same user, and could write into its memory
    if not settings.has_own_processes:
        _set(PR_SET_CHILD_SUBREAPER, 1)  # in namespaces of its own, the first process is one
    if not settings.has_own_processes and _reaches_others():
        raise SystemExit("The sandbox does not keep signals in.")
    if settings.door is not None:
        _open_door(settings.door, settings.port)
    os.umask(0o077)
    os.makedirs(settings.folder, exist_ok=True)
    os.chdir(settings.folder)
    warden = Warden(host, settings)
    try:
        warden.serve()
    finally:
        # The host may have gone before bwrap had itself ended with it: then nobody else ends what runs, or is stopped.
        warden.end_all()
