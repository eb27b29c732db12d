"""bubblewrap: namespaces of its own for a program, and a file system that is made for it.

The container sees `/usr` and the interpreter, read-only, and files of its own in memory, each file system of a fixed
size. It has no network, and sees no process that is not its own. Where the server is root, namespaces are made by root,
and the warden becomes another user, one for each container; else there is a user namespace, which the kernel must
allow (`kernel.unprivileged_userns_clone`, AppArmor's `restrict_unprivileged_userns`).
"""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from responses_app.tools.sandbox import seccomp
from responses_app.tools.sandbox.base import INSIDE, WORK_FOLDER, BaseSandbox, Launch, Limits
from responses_app.tools.sandbox.environment import (
    OF_ETC,
    PROGRAMS,
    SCRATCH,
    environment,
    warden_command,
    warden_settings,
)
from responses_app.tools.sandbox.interpreter import SYSTEM_FOLDERS, Interpreter


class Bubblewrap(BaseSandbox):
    """Runs `bwrap`, of version 0.5 or later."""

    name = "bubblewrap"

    def missing(self) -> str | None:
        if shutil.which("bwrap") is None:
            return "it is not installed (apt install bubblewrap)"
        if not seccomp.can_filter():
            return seccomp.UNKNOWN_MACHINE
        return None

    def launch(self, interpreter: Interpreter, limits: Limits, *, uid: int | None) -> Launch:
        reading, writing = os.pipe()
        with open(writing, "wb") as pipe:
            pipe.write(seccomp.program())  # some 1.5 KB: a pipe holds 64
        argv = [
            shutil.which("bwrap") or "bwrap",
            *("--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"),
            *(_as_user() if uid is None else _as_root()),
            *("--die-with-parent", "--new-session", "--hostname", "sandbox", "--seccomp", str(reading)),
            *_system(),
            *("--proc", "/proc", "--dev", "/dev"),
            *_in_memory("/dev/shm", limits.disk // 4),
            *_in_memory(SCRATCH, limits.disk // 2),
            *_in_memory(WORK_FOLDER, limits.disk),
            *(each for path in interpreter.folders for each in _in_place(path, path)),  # also where it lies in /tmp
            *_in_place(PROGRAMS, str(INSIDE)),
            *("--remount-ro", "/dev", "--remount-ro", "/"),  # both are memory that nothing bounds
            *("--chdir", "/", "--"),
            *warden_command(interpreter, warden_settings(limits, folder=WORK_FOLDER, uid=uid, has_own_processes=True)),
        ]
        return Launch(argv, environment(limits), pass_fds=(reading,))


def _as_root() -> Iterator[str]:
    """Leave to root what the warden needs to become another user, until it has."""
    yield from ("--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID")


def _as_user() -> Iterator[str]:
    yield from ("--unshare-user", "--uid", "1000", "--gid", "1000")


def _system() -> Iterator[str]:
    for folder in map(Path, SYSTEM_FOLDERS):
        if folder.is_symlink():
            yield from ("--symlink", str(folder.readlink()), str(folder))
        elif folder.is_dir():
            yield from ("--ro-bind", str(folder), str(folder))
    yield from ("--dir", "/etc")
    for name in OF_ETC:
        yield from ("--ro-bind-try", f"/etc/{name}", f"/etc/{name}")


def _in_place(folder: str, source: str) -> Iterator[str]:
    """Show a folder; those that lead to it are made before it, because bwrap would make them for root alone."""
    for parent in reversed(Path(folder).parents[:-1]):
        yield from ("--dir", str(parent))
    yield from ("--ro-bind", source, folder)


def _in_memory(folder: str, size: int) -> Iterator[str]:
    yield from ("--perms", "1777", "--size", str(size), "--tmpfs", folder)
