"""What every sandbox gives the warden: its command, its settings, its environment."""

import json
from collections.abc import Mapping, Sequence

from responses_app.tools.sandbox.base import Limits
from responses_app.tools.sandbox.interpreter import Interpreter

SCRATCH = "/tmp"  # inside
_MAIN = "import sys; sys.path.insert(0, {folder!r}); from respsite_kernel.warden import main; main()"


def warden_command(interpreter: Interpreter, inside: str, settings: str) -> Sequence[str]:
    """Return how the warden is started; `inside` is where our programs are seen. It writes no compiled files."""
    return [interpreter.executable, "-I", "-B", "-c", _MAIN.format(folder=inside), settings]


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
