"""What the Files API takes and answers with, as types."""

from typing import Literal

from pydantic import BaseModel

from responses_app.protocol.errors import JsonObject
from responses_app.protocol.files import MAX_SECONDS, MIN_SECONDS, PURPOSES


class UploadedFile(BaseModel):
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


class UploadedFileList(BaseModel):
    """A part of a list of files. The ids of an empty one are empty texts."""

    object: Literal["list"]
    data: list[UploadedFile]
    first_id: str
    last_id: str
    has_more: bool


class DeletedFile(BaseModel):
    """A file is gone."""

    id: str
    object: Literal["file"]
    deleted: Literal[True]


class PartUpload(BaseModel):
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


class UploadPart(BaseModel):
    """A part of such a file."""

    id: str
    object: Literal["upload.part"]
    created_at: int
    upload_id: str


FILES = (UploadedFile, UploadedFileList, DeletedFile, PartUpload, UploadPart)
NEW_UPLOAD: JsonObject = {
    "type": "object",
    "description": "A form with a file.",
    "properties": {"file": {"type": "string", "contentMediaType": "application/octet-stream"}},
    "required": ["file"],
}
NEW_PART: JsonObject = {
    "type": "object",
    "description": "A form with a part of a file.",
    "properties": {"data": {"type": "string", "contentMediaType": "application/octet-stream"}},
    "required": ["data"],
}
NEW_FILE: JsonObject = {
    "type": "object",
    "description": "A form with a file, and what it is for.",
    "properties": {
        "file": {"type": "string", "contentMediaType": "application/octet-stream"},
        "purpose": {"type": "string", "enum": list(PURPOSES)},
        "expires_after[anchor]": {"type": "string", "enum": ["created_at"]},
        "expires_after[seconds]": {"type": "integer", "minimum": MIN_SECONDS, "maximum": MAX_SECONDS},
    },
    "required": ["file", "purpose"],
}
