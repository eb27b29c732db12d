"""Containers, their files and what came of their cells, as data; and the errors of those who ask for them.

The API and web workers know containers by these records. What a warden tells of cells and files is read here, bounded
and checked: code in a sandbox may have made it say anything, so what is not as it should be is left out. `Output` keeps
of what a cell prints as much as is worth reading.
"""

import contextlib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

from responses_app.protocol.setting import MIB
from responses_app.tools.egress.base import NetworkRecord
from responses_app.tools.sandbox.base import SandboxError
from responses_app.tools.sandbox.inside.respsite_kernel import frames

if TYPE_CHECKING:  # a sandbox is tried by users who have no more than this folder
    from responses_app.protocol.files.containers import MemoryLimit

FileSource = Literal["user", "assistant"]
UNKEPT = "unkept"  # the name of containers that never lie on disk: of projects that keep nothing


class ContainerNotFound(Exception):
    """There is no such container, or no such file in it; or it is another project's, or has expired."""


class FileUnknown(Exception):
    """The project has no such file of the Files API; the text is its id."""


class TooManyContainers(SandboxError):
    """As many containers work as there may be, or as one project may have; asking again later helps."""


class MemoryRefused(SandboxError):
    """No host has a container of so much memory; the text says what there is."""


class NetworkRefused(SandboxError):
    """No container has such a `network_policy` here; the text says why."""


class HostGone(SandboxError):
    """The host of the containers cannot be reached, or stops; what it had in memory is lost to whoever asks."""


class TooManyTransfers(SandboxError):
    """As many files of the project are read and written as may be; asking again later helps."""

    def __init__(self) -> None:
        super().__init__("too many files of this project's containers are read or written now; try again later")


@dataclass(frozen=True, slots=True)
class ContainerRecord:
    """A container as it stands now, whichever host has it. Times are Unix seconds."""

    id: str
    project: str
    name: str  # for people
    created_at: int
    idle: float  # seconds without use, after which it expires
    memory: "MemoryLimit"  # as OpenAI's API names it
    last_active: float
    network: NetworkRecord | None = None  # None: it reaches nothing


@dataclass(frozen=True, slots=True)
class ContainerFile:
    """A file of a container, under the id by which clients know it."""

    id: str
    path: str  # under the work folder
    size: int  # bytes
    created_at: int  # Unix seconds
    source: FileSource  # who has written it


@dataclass(frozen=True, slots=True)
class ChainFound:
    """The container of a chain."""

    place: int  # which of the keys that it was looked for by it was found by
    container: ContainerRecord


@dataclass(frozen=True, slots=True)
class Room:
    """What a host has, and has room for."""

    tag: str  # the last digits of the ids of its containers
    known: int  # containers that it has, started or not
    started: int  # those that hold memory
    working: int  # those that do something now
    saved: int  # those whose files lie on disk
    most: int  # containers that may be started at once
    memory: int  # bytes that a container may have
    is_leaving: bool  # it stops: it makes no more containers


MAX_FILES = 1000  # of a container that are told of; the warden itself tells of no more
MAX_FILE_SIZE = 2**53 - 1  # of those that JSON can say everywhere
MAX_IMAGES = 16  # of one cell
MAX_IMAGE_BYTES = 20 * MIB  # of all of them
MAX_PATH = 1024  # bytes


class CellEnd(Enum):
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

    media_type: str  # `image/png` or `image/jpeg`
    content: bytes


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of a container: its path under the work folder, and its size in bytes."""

    path: str
    size: int


@dataclass(frozen=True, slots=True)
class FilePart:
    """A part of a file."""

    content: bytes
    size: int  # bytes of the whole file
    written: int  # tells one state of the file from another: nanoseconds, as the container says them


@dataclass(frozen=True, slots=True)
class Execution:
    """What came of a cell."""

    output: str  # what it printed, with the traceback of `error` in it
    ended: CellEnd
    error: str | None = None  # the name of the exception; None where it raised nothing
    images: Sequence[Image] = ()
    files: Sequence[StoredFile] = ()  # those that it wrote
    variables_lost: bool = False  # all processes of the container were ended


@dataclass(frozen=True, slots=True)
class CellRun:
    """What came of a cell in a container."""

    execution: Execution  # how it ended, and what it printed
    files: Sequence[ContainerFile]  # those that it wrote
    begun_anew: str | None  # nothing of before is there: why, "" where that is not known; None: all is there
    was_saved: bool = False  # its variables are lost, and its files, which lay on disk meanwhile, are there


def clean(text: str) -> str:
    """Return a text that can be written as UTF-8: the name of a file in a container may be any bytes."""
    # A half character (a surrogate) becomes a question mark.
    return text.encode(errors="replace").decode()


def checked_path(path: str) -> str:
    """Return a path under the work folder. Raises `SandboxError` for one that leads elsewhere."""
    parts = path.split("/")
    if (
        not path
        or clean(path) != path
        or len(path.encode()) > MAX_PATH
        or "\0" in path
        # An empty part is a slash too many, or one at an end.
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


def _files(files: object) -> Iterator[StoredFile]:
    for each in files if isinstance(files, list) else []:
        match each:
            case [str(path), int(size)] if 0 <= size <= MAX_FILE_SIZE:
                with contextlib.suppress(SandboxError):
                    yield StoredFile(checked_path(path), int(size))


def _images(images: object, payload: bytes) -> Iterator[Image]:
    begin = 0
    for each in images if isinstance(images, list) else []:
        match each:
            case ["image/png" | "image/jpeg" as media_type, int(size)] if 0 < size <= len(payload) - begin:
                yield Image(media_type, payload[begin : begin + size])
                begin += size


class Output:
    """Keeps the beginning and the end of a stream of bytes, `most` bytes in all; `size` counts all that came."""

    def __init__(self, most: int) -> None:
        self.size = 0  # of all that came
        self._head = bytearray()
        self._most = most // 2  # of each of the two
        self._tail: deque[bytes] = deque()
        self._in_tail = 0  # bytes in `_tail`, which may be a little more than `_most`

    def add(self, content: bytes) -> None:
        """Take more."""
        self.size += len(content)
        room = self._most - len(self._head)
        if room > 0:
            self._head += content[:room]
            content = content[room:]
        if not content:
            return
        self._tail.append(content)
        self._in_tail += len(content)
        # Whole pieces go while what is left still fills the end.
        while self._in_tail - len(self._tail[0]) >= self._most:
            self._in_tail -= len(self._tail.popleft())

    def text(self) -> str:
        """Return it; what was left out of the middle is counted there."""
        tail = b"".join(self._tail)
        left_out = self.size - len(self._head) - min(len(tail), self._most)
        if left_out <= 0:
            return (bytes(self._head) + tail).decode(errors="replace")
        end = tail[-self._most :].decode(errors="replace")
        return f"{self._head.decode(errors='replace')}\n[… {left_out} bytes left out …]\n{end}"
