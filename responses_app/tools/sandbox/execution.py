"""What came of a cell, and how it is read from what a warden says.

Code in the sandbox may have made the warden say anything: what does not fit is left out, and all of it is bounded.
"""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from responses_app.tools.sandbox.base import SandboxError
from responses_app.tools.sandbox.inside.respsite_kernel.frames import Frame

MAX_FILES = 1000  # that are read of one answer: as many as a warden lists
MAX_IMAGES = 16  # as many as a kernel shows of one cell
MAX_PATH = 1024  # bytes


class Ended(Enum):
    """How a cell ended."""

    DONE = "done"  # it ran to its end, or raised something
    TIMED_OUT = "timed_out"
    STOPPED = "stopped"  # nobody waits for it any more
    TOO_MUCH_OUTPUT = "too_much_output"
    TOO_MUCH_MEMORY = "too_much_memory"
    TOO_MUCH_DISK = "too_much_disk"  # its files are lost, too
    DIED = "died"  # the kernel's process ended


@dataclass(frozen=True, slots=True)
class Image:
    """A picture that a cell has shown."""

    media_type: str
    content: bytes


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of a container: its path under the work folder, and its size in bytes."""

    path: str
    size: int


@dataclass(frozen=True, slots=True)
class Execution:
    """What came of a cell. `output` is what it printed, with the traceback of `error` in it.

    `files` are those that it wrote. `variables_lost`: all processes of the container were ended.
    """

    output: str
    ended: Ended
    error: str | None = None
    images: Sequence[Image] = ()
    files: Sequence[StoredFile] = ()
    variables_lost: bool = False


def cleaned(text: str) -> str:
    """Return a text that can be written as UTF-8: the name of a file in a container may be any bytes."""
    return text.encode(errors="replace").decode()


def checked_path(path: str) -> str:
    """Return a path under the work folder. Raises `SandboxError` for one that leads elsewhere."""
    parts = path.split("/")
    if (
        not path
        or cleaned(path) != path
        or len(path.encode()) > MAX_PATH
        or "\0" in path
        or any(part in ("", ".", "..") for part in parts)
    ):
        raise SandboxError("that is not the path of a file")
    return path


def files_of(header: Mapping[str, Any]) -> list[StoredFile]:
    """Return the files that a warden tells of, `MAX_FILES` at most."""
    found = []
    told = header.get("files")
    for each in told[:MAX_FILES] if isinstance(told, list) else []:
        match each:
            case [str(path), int(size)] if size >= 0:
                with contextlib.suppress(SandboxError):
                    found.append(StoredFile(checked_path(path), size))
    return found


def images_of(answer: Frame) -> list[Image]:
    """Return the images that an answer carries, `MAX_IMAGES` at most."""
    found, begin = [], 0
    told = answer.header.get("images")
    for each in told[:MAX_IMAGES] if isinstance(told, list) else []:
        match each:
            case ["image/png" | "image/jpeg" as media_type, int(size)] if size >= 0:
                found.append(Image(media_type, answer.payload[begin : begin + size]))
                begin += size
    return found
