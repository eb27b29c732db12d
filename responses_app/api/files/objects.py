"""Files and uploads, as clients read them. Times are Unix seconds."""

from typing import Literal

from typing_extensions import TypedDict

from responses_app.stores.files import FileRecord
from responses_app.stores.uploads import UploadRecord


class UploadedFile(TypedDict):
    """A file that a client uploaded. `expires_at` is when it goes by itself, null for never."""

    id: str
    object: Literal["file"]
    bytes: int
    created_at: int
    expires_at: int | None
    filename: str
    purpose: str
    status: Literal["processed"]
    status_details: None


class UploadedFileList(TypedDict):
    """A part of a list of files. The ids of an empty one are empty texts."""

    object: Literal["list"]
    data: list[UploadedFile]
    first_id: str
    last_id: str
    has_more: bool


class DeletedFile(TypedDict):
    """A file is gone."""

    id: str
    object: Literal["file"]
    deleted: Literal[True]


class PartUpload(TypedDict):
    """A file that comes in parts. `file` is there once it is completed."""

    id: str
    object: Literal["upload"]
    bytes: int
    created_at: int
    expires_at: int
    filename: str
    purpose: str
    status: Literal["pending", "completed", "cancelled", "expired"]
    file: UploadedFile | None


class UploadPart(TypedDict):
    """A part of such a file."""

    id: str
    object: Literal["upload.part"]
    created_at: int
    upload_id: str


def file_object(record: FileRecord) -> UploadedFile:
    """Return a file."""
    return {
        "id": record.id,
        "object": "file",
        "bytes": record.bytes,
        "created_at": record.created_at,
        "expires_at": record.expires_at,
        "filename": record.filename,
        "purpose": record.purpose,
        "status": "processed",
        "status_details": None,
    }


def upload_object(upload: UploadRecord) -> PartUpload:
    """Return a file that comes in parts."""
    return {
        "id": upload.id,
        "object": "upload",
        "bytes": upload.bytes,
        "created_at": upload.created_at,
        "expires_at": upload.expires_at,
        "filename": upload.filename,
        "purpose": upload.purpose,
        "status": upload.status.value,
        "file": None if upload.file is None else file_object(upload.file),
    }
