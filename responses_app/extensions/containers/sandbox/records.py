"""Containers, their files and the results of their cells, as data; and the errors of those who ask for them.

The API and web workers know containers by these records.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Literal

from responses_app.extensions.containers.egress.base import NetworkRecord

if TYPE_CHECKING:
    from responses_app.protocol.files.containers import MemoryLimit


class SandboxError(Exception):
    """A sandbox cannot be had, or its program cannot be used any more; the text may be read by clients.

    `detail` may not: it is for the log.
    """

    def __init__(self, message: str, *, detail: str = "") -> None:
        super().__init__(message)
        self.detail = detail


FileSource = Literal["user", "assistant"]
UNKEPT = "unkept"  # the name of containers that never lie on disk: of projects that keep nothing


class ContainerNotFound(Exception):
    """There is no such container, or no such file in it; or it is another project's, or has expired."""


class FileUnknown(Exception):
    """The project has no such file of the Files API; the text is its id."""


class TooManyContainers(SandboxError):
    """As many containers work as there may be, or as one project may have; asking again later helps."""


class MemoryRefused(SandboxError):
    """No host has a container of so much memory; the text says how much there is."""


class NetworkRefused(SandboxError):
    """No container has such a `network_policy` here; the text says why."""


class HostGone(SandboxError):
    """The host of the containers cannot be reached, or stops; whatever it had in memory is lost to whoever asks."""


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
class ContainerFileRecord:
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
class HostRoom:
    """The containers that a host has, and may have."""

    tag: str  # the last digits of the ids of its containers
    known: int  # containers that it has, started or not
    started: int  # those that hold memory
    working: int  # those that do something now
    saved: int  # those whose files lie on disk
    most: int  # containers that may be started at once
    memory: int  # bytes that a container may have
    is_leaving: bool  # it stops: it makes no more containers


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
class ListedFile:
    """A file of a container: its path under the work folder, and its size in bytes."""

    path: str
    size: int


@dataclass(frozen=True, slots=True)
class ContainerFilePart:
    """A part of a file."""

    content: bytes
    size: int  # bytes of the whole file
    written: int  # tells one state of the file from another: nanoseconds, as the container says them


@dataclass(frozen=True, slots=True)
class Execution:
    """The result of a cell."""

    output: str  # what it printed, with the traceback of `error` in it
    ended: CellEnd
    error: str | None = None  # the name of the exception; None where it raised nothing
    images: Sequence[Image] = ()
    files: Sequence[ListedFile] = ()  # those that it wrote
    variables_lost: bool = False  # all processes of the container were ended


@dataclass(frozen=True, slots=True)
class CellRun:
    """The result of a cell in a container."""

    execution: Execution  # how it ended, and what it printed
    files: Sequence[ContainerFileRecord]  # those that it wrote
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


@dataclass(frozen=True, slots=True)
class CommandEnd:
    """How a command ended."""

    exit_code: int
    killed: bool = False  # it did not end by itself: it was told to


@dataclass(frozen=True, slots=True)
class CommandsEnd:
    """The result of one call's commands."""

    ended: CellEnd  # why those that were killed were
    commands: Sequence[CommandEnd]
    files: Sequence[ListedFile] = ()  # those that they wrote
    variables_lost: bool = False  # the kernel was ended, too


@dataclass(frozen=True, slots=True)
class CommandsRun:
    """The result of commands in a container."""

    execution: CommandsEnd  # how they ended
    files: Sequence[ContainerFileRecord]  # those that they wrote
    begun_anew: str | None  # as in `CellRun`
