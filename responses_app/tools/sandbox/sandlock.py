"""sandlock: Landlock and seccomp, where no namespace can be had, as in Docker's usual container. A library; young.

It needs the package `sandlock` and a kernel of 6.12 or later. A launcher (`sandlock_launcher`) keeps its supervisor,
which answers the sandboxed program's system calls; the two end together. The work folder and `/tmp` are folders of the
host that are removed behind the container: what they hold is looked at by the host (`SandboxSession`).
"""

import json
import os
import sys
from importlib.util import find_spec
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
from responses_app.tools.sandbox.folders import Folders
from responses_app.tools.sandbox.interpreter import SYSTEM_FOLDERS, Interpreter

_LAUNCHER = Path(__file__).with_name("sandlock_launcher.py")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")


class Sandlock(BaseSandbox):
    """Runs the warden by the library sandlock."""

    name = "sandlock"

    def __init__(self) -> None:
        self._folders = Folders()

    def missing(self) -> str | None:
        if not seccomp.can_filter():
            return seccomp.UNKNOWN_MACHINE
        return None if find_spec("sandlock") else "it is not installed (pip install sandlock)"

    def launch(self, interpreter: Interpreter, limits: Limits, *, uid: int | None) -> Launch:
        folder = self._folders.make()
        data, scratch = folder / "data", folder / "tmp"
        for each in (data, scratch):
            each.mkdir()
        if uid is not None:
            for each in (data, scratch):
                os.chown(each, uid, uid)
        found = find_spec("sandlock")
        readable = [*SYSTEM_FOLDERS, "/proc", *(f"/etc/{name}" for name in OF_ETC), *interpreter.folders, *_DEVICES]
        settings = {
            "library": str(Path(found.origin).parents[1]) if found is not None and found.origin else "",
            "uid": uid,
            "server": os.getpid(),
            "command": list(
                warden_command(
                    interpreter,
                    warden_settings(
                        limits,
                        folder=WORK_FOLDER,
                        uid=None,
                        has_own_processes=False,
                        seccomp=seccomp.program(local_sockets=False),
                    ),
                )
            ),
            "readable": [path for path in readable if os.path.exists(path)],
            "programs": {PROGRAMS: str(INSIDE)},
            "mounts": {WORK_FOLDER: str(data), SCRATCH: str(scratch)},
            "memory": 4 * limits.memory,  # it counts what is reserved; the host looks at what is used
            "processes": limits.processes,
            "open_files": limits.open_files,
            "env": dict(environment(limits)),
        }
        argv = [sys.executable, "-I", "-B", str(_LAUNCHER), json.dumps(settings)]
        return Launch(argv, environment(limits), folder=folder, ends_together=False)
