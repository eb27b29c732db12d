"""What came of a cell, and the files of a container: as its warden tells of them, bounded and checked.

Code in a sandbox may have made the warden say anything: what is not as it should be is left out.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from typing import Any

from responses_app.tools.sandbox.base import MIB, SandboxError
from responses_app.tools.sandbox.inside.respsite_kernel import frames

MAX_FILES = 1000  # of a container that are told of; the warden itself tells of no more
MAX_FILE_SIZE = 2**53 - 1  # of those that JSON can say everywhere
MAX_IMAGES = 16  # of one cell
MAX_IMAGE_BYTES = 20 * MIB  # of all of them
MAX_PATH = 1024  # bytes


class Ended(Enum):
    """How a cell ended."""

    DONE = "done"  # it ran to its end, or raised something
    TIMED_OUT = "timed_out"
    STOPPED = "stopped"  # nobody waits for it any more
    TOO_MUCH_OUTPUT = "too_much_output"
    TOO_MUCH_MEMORY = "too_much_memory"
    TOO_MUCH_DISK = "too_much_disk"  # its files are lost, too
    TOO_MANY_FILES = "too_many_files"  # the container is lost
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
class FilePart:
    """A part of a file. `size` is that of the whole file in bytes; `written` tells one state of it from another."""

    content: bytes
    size: int
    written: int


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


def clean(text: str) -> str:
    """Return a text that can be written as UTF-8: the name of a file in a container may be any bytes."""
    return text.encode(errors="replace").decode()


def checked_path(path: str) -> str:
    """Return a path under the work folder. Raises `SandboxError` for one that leads elsewhere."""
    parts = path.split("/")
    if (
        not path
        or clean(path) != path
        or len(path.encode()) > MAX_PATH
        or "\0" in path
        or any(part in ("", ".", "..") for part in parts)
    ):
        raise SandboxError("that is not the path of a file")
    return path


def unfinished(path: str, name: str) -> str:
    """Return the path of a file until all of it is written: beside it, hidden, and of this name alone."""
    folder, slash, _ = path.rpartition("/")
    return f"{folder}{slash}.{name}.part"


def part_in(answer: frames.Frame, begin: int, most: int) -> FilePart:
    """Return the part of a file that a warden gives. Raises `SandboxError` for a file of more than `most` bytes."""
    match answer.header:
        case {"size": int(size), "written": int(written)} if begin + len(answer.payload) <= size:
            if size > most:
                raise SandboxError("it is too large")
            return FilePart(answer.payload, size, written)
    raise SandboxError("it cannot be read")


def files_in(header: Mapping[str, Any]) -> list[StoredFile]:
    """Return the files that a warden tells of, of which the first `MAX_FILES` count."""
    return list(islice(_files(header.get("files")), MAX_FILES))


def images_in(answer: frames.Frame) -> list[Image]:
    """Return the images that a cell has shown, of which the first `MAX_IMAGES` count."""
    return list(islice(_images(answer.header.get("images"), answer.payload), MAX_IMAGES))


def _files(told: object) -> Iterator[StoredFile]:
    for each in told if isinstance(told, list) else []:
        match each:
            case [str(path), int(size)] if 0 <= size <= MAX_FILE_SIZE:
                with contextlib.suppress(SandboxError):
                    yield StoredFile(checked_path(path), int(size))


def _images(told: object, payload: bytes) -> Iterator[Image]:
    begin = 0
    for each in told if isinstance(told, list) else []:
        match each:
            case ["image/png" | "image/jpeg" as media_type, int(size)] if 0 < size <= len(payload) - begin:
                yield Image(media_type, payload[begin : begin + size])
                begin += size
