"""The contract of what keeps uploads: files that come in parts; `tests/contracts/uploads.py` is its suite.

Parts are kept as they come, and are the content of the file in the order that completes the upload: nothing is copied.
An upload counts as a file of its project from the moment it is created, with the size that it says.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from responses_app.stores.files import FileRecord

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
    expires_at: int
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


class BaseUploads(ABC):
    """Keeps uploads of projects, in the limits of their files.

    Every method raises `StoreError` where the store is away, and all but `create` `UploadGone`. One object serves one
    worker process.
    """

    @abstractmethod
    async def create(self, project: str, upload: UploadRecord) -> None:
        """Begin an upload. Raises `FilesFull`."""

    @abstractmethod
    async def get(self, project: str, upload_id: str) -> UploadRecord:
        """Return what is known of an upload."""

    @abstractmethod
    async def add(self, project: str, part: PartRecord, pieces: Iterable[bytes]) -> None:
        """Keep a part whose content is `part.bytes` long, in `pieces` of up to `PIECE_BYTES`, read on a thread.

        Where this raises or is cancelled, nothing is kept. Raises `UploadClosed`, and `PartsWrong` for too much.
        """

    @abstractmethod
    async def complete(
        self, project: str, upload_id: str, part_ids: Sequence[str], *, file_id: str, md5: str | None
    ) -> UploadRecord:
        """Make the file of these parts, in this order, under this id; a complete that was answered is answered again.

        Raises `PartsWrong` and `UploadClosed`.
        """

    @abstractmethod
    async def cancel(self, project: str, upload_id: str) -> UploadRecord:
        """Give an upload up, with its parts; again is as good as once. Raises `UploadClosed`."""

    @abstractmethod
    async def aclose(self) -> None:
        """Let go of everything. Safe to call twice."""
