"""What is said of containers and their files, and why it cannot be; light, as the API's views know it."""

from dataclasses import dataclass
from typing import Literal

from responses_app.protocol.files.containers import MemoryLimit
from responses_app.tools.sandbox.base import SandboxError

FileSource = Literal["user", "assistant"]


class ContainerNotFound(Exception):
    """There is no such container, or no such file in it; or it is another project's, or has expired."""


class FileUnknown(Exception):
    """The project has no such file of the Files API; the text is its id."""


class TooManyContainers(SandboxError):
    """As many containers work as there may be, or as one project may have; asking again later helps."""


class TooManyTransfers(SandboxError):
    """As many files of the project are read and written as may be; asking again later helps."""

    def __init__(self) -> None:
        super().__init__("too many files of this project's containers are read or written now; try again later")


@dataclass(frozen=True, slots=True)
class ContainerRecord:
    """A container as it stands now, whichever worker has it. Times are Unix seconds, `idle` is in seconds."""

    id: str
    project: str
    name: str
    created_at: int
    idle: float
    memory: MemoryLimit
    last_active: float


@dataclass(frozen=True, slots=True)
class ContainerFile:
    """A file of a container, under the id by which clients know it. `source`: `user` or `assistant`."""

    id: str
    path: str
    size: int
    created_at: int
    source: FileSource
