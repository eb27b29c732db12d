"""The contract of what keeps the files that clients upload, and what is known of those that come in parts.

`tests/contracts/files.py` is its suite. Parts are kept as they come, and are the
content of the file in the order that completes the upload: nothing is copied. An upload counts as a file of its project
from the moment it is created, with the size that it says.
"""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from responses_app.protocol.setting import MIB, RoomSettings, setting, whole

PIECE_BYTES = 1024 * 1024  # of a file's content that are kept, and in memory, as one


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRecord:
    """What is known of a file."""

    id: str  # "file-…"
    filename: str
    purpose: str
    bytes: int  # its size
    created_at: int  # Unix seconds
    expires_at: int | None = None  # Unix seconds; None for one that stays


@dataclass(frozen=True, slots=True)
class FileUsage:
    """How much a project keeps."""

    files: int  # those that are being uploaded, too
    bytes: int  # of all of them, and of the bundles of its skills
    uploads: int = 0  # of the files, those that come in parts and are not whole


@dataclass(frozen=True, kw_only=True)
class FileSettings(RoomSettings):
    """How much one project may keep."""

    file_max_bytes: int = setting(128 * MIB, whole(1), "largest file that can be uploaded")
    files_max_entries: int = setting(10_000, whole(), "files that one project may have (see Files); 0 = no limit")
    uploads_max_open: int = setting(100, whole(), "multipart uploads that one project may have open; 0 = no limit")
    files_max_bytes: int = setting(
        10 * 1024 * MIB, whole(), "total size of the files and skills of one project; 0 = no limit"
    )


UNLIMITED = FileSettings(files_max_entries=0, files_max_bytes=0, uploads_max_open=0)


class FilesFull(Exception):
    """The project keeps as much as it may; the message says of what."""


class FileGone(Exception):
    """A file was deleted, or has expired, while it was read or written."""


class BaseFileStore(ABC):
    """Keeps files of projects. A file is found from the moment it is whole until its `expires_at`.

    Every method raises `StoreError` where the store is away. One object serves one worker process.
    """

    @abstractmethod
    async def create(
        self,
        project: str,
        record: FileRecord,
        pieces: Iterable[bytes] | AsyncIterable[bytes],
        *,
        over_limits: bool = False,
    ) -> None:
        """Keep a file whose content is `record.bytes` long, in `pieces` of up to `PIECE_BYTES`, read on a thread.

        Where this raises or is cancelled, nothing is kept. `over_limits`: it is kept however many there are, as work
        that was taken on is not lost for that; it counts as any other.
        Raises `FilesFull`, and `ValueError` for pieces that are more or less than that.
        """

    @abstractmethod
    async def get(self, project: str, file_id: str) -> FileRecord | None:
        """Return what is known of a file."""

    @abstractmethod
    async def some(self, project: str, file_ids: Sequence[str]) -> Sequence[FileRecord]:
        """Return those of these files that there are, in the order of their ids."""

    @abstractmethod
    async def listed(
        self, project: str, *, purpose: str | None, after: str | None, descending: bool, limit: int
    ) -> Sequence[FileRecord]:
        """Return up to `limit` files behind the file `after`, which may be gone."""

    @abstractmethod
    def pieces(self, project: str, file_id: str) -> AsyncIterator[bytes]:
        """Yield what is in a file, a piece at a time. Raises `FileGone`, also at the start for one that is unknown."""

    @abstractmethod
    async def delete(self, project: str, file_id: str) -> bool:
        """Forget a file; return whether there was one."""

    @abstractmethod
    async def usage(self, project: str) -> FileUsage:
        """Return how much a project keeps."""

    @abstractmethod
    async def purge(self) -> int:
        """Remove files that have expired, and what uploads that were broken off have left; return how many."""

    @abstractmethod
    async def aclose(self) -> None:
        """Let go of everything. Safe to call twice."""

    async def content(self, project: str, file_id: str, *, max_bytes: int) -> bytes | None:
        """Return what is in a file as a whole, None for one larger than `max_bytes`. Raises `FileGone`."""
        parts, size = [], 0
        async for piece in self.pieces(project, file_id):
            parts.append(piece)
            size += len(piece)
            if size > max_bytes:
                return None
        return b"".join(parts)


TIMES_STORED = 2  # the parts of an upload may have its size so many times: one whose answer was lost is sent again


class UploadStatus(StrEnum):
    """How an upload stands."""

    PENDING = "pending"
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadRecord:
    """What is known of an upload. Times are Unix seconds."""

    id: str
    filename: str
    purpose: str
    bytes: int  # that the file is to have
    created_at: int
    expires_at: int  # until then it takes parts
    file_seconds: int | None = None  # how long the file stays once it is whole; None: until somebody deletes it
    status: UploadStatus = UploadStatus.PENDING
    file: FileRecord | None = None  # once it is completed, for as long as there is the file


@dataclass(frozen=True, slots=True, kw_only=True)
class PartRecord:
    """What is known of a part; `bytes` is its size."""

    id: str
    upload_id: str
    bytes: int
    created_at: int


class UploadClosed(Exception):
    """An upload is not pending any more; the message is its status."""


class PartsWrong(Exception):
    """Parts that cannot be: too many, or not those of the file. `param` is the field that is wrong."""

    def __init__(self, message: str, *, param: str) -> None:
        super().__init__(message)
        self.param = param


class UploadGone(Exception):
    """The project has no such upload."""
