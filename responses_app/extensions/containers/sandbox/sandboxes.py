"""The two sandboxes that there are: `Bubblewrap` and `Sandlock`.

bubblewrap: namespaces of its own for a program, and a file system that is made for it.

The container sees `/usr` and the interpreter, read-only, and files of its own in memory, each file system of a fixed
size. It has no network, and sees no process that is not its own. Where the server is root, namespaces are made by root,
and the warden becomes another user, one for each container; else there is a user namespace, which the kernel must
allow (`kernel.unprivileged_userns_clone`, AppArmor's `restrict_unprivileged_userns`).

sandlock: Landlock and seccomp, where no namespace can be had, as in Docker's usual container. A library; young.

It needs the package `sandlock` and a kernel of 6.12 or later. A launcher (`sandlock_launcher`) keeps its supervisor,
which answers the sandboxed program's system calls; the two end together. The work folder and `/tmp` are folders of the
host that are removed behind the container: what they hold is looked at by the host (`SandboxSession`).
"""

import json
import os
import shutil
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from responses_app.extensions.containers.egress.base import CA_BUNDLE
from responses_app.extensions.containers.sandbox import seccomp
from responses_app.extensions.containers.sandbox.disk import Folders
from responses_app.extensions.containers.sandbox.launch import (
    INSIDE,
    OF_ETC,
    OPEN_FILES,
    PROGRAMS,
    SYSTEM_FOLDERS,
    BaseSandbox,
    Interpreter,
    Launch,
    ProxyDoor,
    environment,
    warden_command,
    warden_settings,
)
from responses_app.extensions.containers.sandbox.settings import SCRATCH, SKILLS_FOLDER, WORK_FOLDER, SandboxSettings


class Bubblewrap(BaseSandbox):
    """Runs `bwrap`, of version 0.5 or later."""

    name = "bubblewrap"
    has_ways_out = True

    def missing(self) -> str | None:
        if shutil.which("bwrap") is None:
            return "it is not installed (apt install bubblewrap)"
        if not seccomp.can_filter():
            return seccomp.UNKNOWN_MACHINE
        return None

    def launch(
        self,
        interpreter: Interpreter,
        settings: SandboxSettings,
        *,
        uid: int | None,
        skills: Path | None = None,
        door: ProxyDoor | None = None,
    ) -> Launch:
        reading, writing = os.pipe()
        # Closed here: the other end finds the end of the filter behind it.
        with open(writing, "wb") as pipe:
            pipe.write(seccomp.program(tcp=door is not None))  # some 1.5 KB: a pipe holds 64
        descriptor = door.descriptor if door is not None else None
        argument = warden_settings(settings, folder=WORK_FOLDER, uid=uid, has_own_processes=True, door=descriptor)
        bundle = _in_memory_file(door.bundle) if door is not None else None
        user: tuple[str, ...] = ("--unshare-user", "--uid", "1000", "--gid", "1000")
        if uid is not None:  # what the warden needs to become another user is left to root, until it has
            user = ("--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID")
        argv = [
            shutil.which("bwrap") or "bwrap",
            # Namespaces of its own; `-try`: older kernels have none of cgroups.
            *("--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"),
            *user,
            # `--new-session`: no terminal that code could type into.
            *("--die-with-parent", "--new-session", "--hostname", "sandbox", "--seccomp", str(reading)),
            *_system(),
            *("--proc", "/proc", "--dev", "/dev"),
            *_in_memory("/dev/shm", settings.sandbox_disk_bytes // 4),
            *_in_memory(SCRATCH, settings.sandbox_disk_bytes // 2),
            *_in_memory(WORK_FOLDER, settings.sandbox_disk_bytes),
            *(each for path in interpreter.folders for each in _in_place(path, path)),  # also where it lies in /tmp
            *_in_place(PROGRAMS, str(INSIDE)),
            *(_in_place(SKILLS_FOLDER, str(skills)) if skills is not None else ()),
            *(_certificates(bundle) if bundle is not None else ()),
            *("--remount-ro", "/dev", "--remount-ro", "/"),  # both are memory that nothing bounds
            *("--chdir", "/", "--"),
            *warden_command(interpreter, argument),
        ]
        if door is None or bundle is None:
            return Launch(argv, environment(), pass_fds=(reading,))
        return Launch(argv, {**environment(), **door.env}, pass_fds=(reading, bundle, door.descriptor))


def _system() -> Iterator[str]:
    for folder in map(Path, SYSTEM_FOLDERS):
        # On most systems `/bin` and its like are links into `/usr`.
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
    # Anybody may write there, and nobody may remove what is another's: as `/tmp` is everywhere.
    yield from ("--perms", "1777", "--size", str(size), "--tmpfs", folder)


def _certificates(descriptor: int) -> Iterator[str]:
    folder = Path(CA_BUNDLE).parent
    for each in (folder.parent, folder):
        yield from ("--dir", str(each))
    yield from ("--perms", "0444", "--ro-bind-data", str(descriptor), CA_BUNDLE)
    # Where OpenSSL looks by itself.
    yield from ("--symlink", f"{folder.name}/{Path(CA_BUNDLE).name}", str(folder.parent / "cert.pem"))


def _in_memory_file(content: bytes) -> int:
    """Return a descriptor of a file that has no name; the caller closes it."""
    descriptor = os.memfd_create("certificates", os.MFD_CLOEXEC)
    with open(descriptor, "wb", closefd=False) as file:
        file.write(content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


_LAUNCHER = Path(__file__).with_name("sandlock_launcher.py")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")  # what programs need of `/dev`


class Sandlock(BaseSandbox):
    """Runs the warden by the library sandlock."""

    name = "sandlock"

    def __init__(self) -> None:
        self._folders = Folders()

    def missing(self) -> str | None:
        if not seccomp.can_filter():
            return seccomp.UNKNOWN_MACHINE
        return None if find_spec("sandlock") else "it is not installed (pip install sandlock)"

    def launch(
        self,
        interpreter: Interpreter,
        settings: SandboxSettings,
        *,
        uid: int | None,
        skills: Path | None = None,
        door: ProxyDoor | None = None,
    ) -> Launch:
        assert door is None, "its containers have the network of the host: it has no ways out"
        folder = self._folders.make()
        data, scratch = folder / "data", folder / "tmp"
        for each in (data, scratch):
            each.mkdir()
        if uid is not None:
            for each in (data, scratch):
                # Made by root, written by the container's user.
                os.chown(each, uid, uid)
        library = find_spec("sandlock")
        readable = [*SYSTEM_FOLDERS, "/proc", *(f"/etc/{name}" for name in OF_ETC), *interpreter.folders, *_DEVICES]
        sandboxed = {
            "library": str(Path(library.origin).parents[1]) if library is not None and library.origin else "",
            "uid": uid,
            "server": os.getpid(),
            "command": list(
                warden_command(
                    interpreter,
                    warden_settings(
                        settings,
                        folder=WORK_FOLDER,
                        # The launcher becomes the user, before the sandbox begins.
                        uid=None,
                        has_own_processes=False,
                        # No namespace hides the machine's local sockets here, so none may be reached by its name.
                        seccomp=seccomp.program(local_sockets=False),
                    ),
                )
            ),
            "readable": [path for path in readable if os.path.exists(path)],
            "programs": {PROGRAMS: str(INSIDE), **({SKILLS_FOLDER: str(skills)} if skills is not None else {})},
            "mounts": {WORK_FOLDER: str(data), SCRATCH: str(scratch)},
            "memory": 4 * settings.sandbox_memory_bytes,  # it counts what is reserved; the host looks at what is used
            "processes": settings.sandbox_max_processes,
            "open_files": OPEN_FILES,
            "env": dict(environment()),
        }
        argv = [sys.executable, "-I", "-B", str(_LAUNCHER), json.dumps(sandboxed)]
        return Launch(argv, environment(), folder=folder, ends_together=False)
