"""What every sandbox gives the warden: its command, its settings, its environment, and what it sees of the machine."""

import json
from collections.abc import Mapping, Sequence

from responses_app.tools.sandbox.base import Limits
from responses_app.tools.sandbox.interpreter import Interpreter

SCRATCH = "/tmp"  # inside
PROGRAMS = "/opt/respsite"  # where our programs (`base.INSIDE`) are seen inside
# Files and folders of `/etc` that programs need, and that hold nothing of the machine's users or services.
OF_ETC = ("alternatives", "fonts", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "mime.types")
_MAIN = "import sys; sys.path.insert(0, {folder!r}); from respsite_kernel.warden import main; main()"


def warden_command(interpreter: Interpreter, settings: str, *, programs: str = PROGRAMS) -> Sequence[str]:
    """Return how the warden is started, with its `warden_settings`; it finds our programs in the folder `programs`.

    It writes no compiled files.
    """
    return [interpreter.executable, "-I", "-B", "-c", _MAIN.format(folder=programs), settings]


def warden_settings(
    limits: Limits, *, folder: str, uid: int | None, has_own_processes: bool, seccomp: bytes = b""
) -> str:
    """Return the warden's argument: see `Settings` in `inside/respsite_kernel/warden.py`."""
    return json.dumps(
        {
            "uid": uid,
            "folder": folder,
            "memory": limits.memory,
            "disk": limits.disk,
            "processes": limits.processes,
            "open_files": limits.open_files,
            "has_own_processes": has_own_processes,
            "seccomp": seccomp.hex(),
        }
    )


def environment(limits: Limits) -> Mapping[str, str]:
    """Return the environment of a container: nothing of the server's is in it."""
    threads = str(limits.cpus)
    return {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": SCRATCH,
        "LANG": "C.UTF-8",
        "MPLBACKEND": "module://respsite_kernel.figures",
        "MPLCONFIGDIR": f"{SCRATCH}/.matplotlib",
        "OMP_NUM_THREADS": threads,
        "OPENBLAS_NUM_THREADS": threads,
    }
