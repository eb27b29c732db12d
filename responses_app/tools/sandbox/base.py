"""The contract of a sandbox: how a program is started so that it can harm nobody but itself.

A sandbox holds one program of ours, the warden (`inside/respsite_kernel/warden.py`), which runs code that nobody has
looked at. That code must never reach the network, files and processes of others, or more memory and disk than it was
given. A sandbox says how the warden is started (`BaseSandbox.launch`); `escapes` tests whether it holds.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from responses_app.tools.sandbox.interpreter import Interpreter

KIB, MIB = 1024, 1024 * 1024
WORK_FOLDER = "/mnt/data"  # where the model was told that files are kept
INSIDE = Path(__file__).parent / "inside"  # the folder of our programs that run inside


class SandboxError(Exception):
    """A sandbox cannot be had, or its program cannot be used any more; the text may be read by clients.

    `detail` may not: it is for the log.
    """

    def __init__(self, message: str, *, detail: str = "") -> None:
        super().__init__(message)
        self.detail = detail


@dataclass(frozen=True, slots=True)
class Limits:
    """What one container may use. Sizes in bytes, times in seconds.

    `memory` is that of all its processes, `disk` that of the files in its work folder; half as much may be in `/tmp`,
    and a quarter in `/dev/shm`. `processes` counts threads, too, as the kernel does. A call may take `call_seconds`,
    and what is kept of its output is `output`, half of it from the beginning and half from the end. `cpus` is how many
    cores its processes share.
    """

    memory: int = 1024 * MIB
    disk: int = 256 * MIB
    processes: int = 64
    open_files: int = 256
    call_seconds: float = 120.0
    output: int = 128 * KIB
    cpus: int = 1


@dataclass(frozen=True, slots=True)
class Launch:
    """How a warden is started: its command, its environment, and the descriptors that it inherits.

    `folder` is a folder on the host that holds all its files, and is removed behind it; None where they lie in memory
    of a fixed size. `ends_together`: all its processes end when the one that is started does.
    """

    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    pass_fds: Sequence[int] = ()
    folder: Path | None = None
    ends_together: bool = True


class BaseSandbox(ABC):
    """One way to keep a program apart. `name` is how the setting SANDBOX calls it."""

    name: ClassVar[str]

    @abstractmethod
    def missing(self) -> str | None:
        """Return what is to be installed or allowed before it can be tried at all, None for nothing."""

    @abstractmethod
    def launch(self, interpreter: Interpreter, limits: Limits, *, uid: int | None) -> Launch:
        """Return how a warden is started; `uid` is the user that it becomes, None for the server's own.

        Descriptors in `pass_fds` are the caller's to close.
        """
