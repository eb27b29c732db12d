"""The settings of files, the fields of requests and answers of `/v1/files` and `/v1/uploads`, and their errors."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, StringConstraints
from typing_extensions import TypedDict

from responses_app.kit.clock import unix, utc
from responses_app.protocol.errors import ApiError, JsonObject, invalid_request, invalid_value, not_found
from responses_app.protocol.fields import ClientModel, check_fields, missing, validate, whole_number
from responses_app.protocol.files.files import MAX_FILENAME, MAX_SECONDS, MIN_SECONDS, FileExpiry, plain_name
from responses_app.protocol.setting import MIB, RoomSettings, setting, whole

if TYPE_CHECKING:
    from responses_app.resources.files import model

PIECE_BYTES = MIB  # of a content that are kept, and in memory, as one
BATCH_PURPOSE = "batch"  # of the inputs of batches
PURPOSES = ("assistants", BATCH_PURPOSE, "fine-tune", "vision", "user_data", "evals")
LISTED_PURPOSES = (*PURPOSES, "batch_output")  # also of those that batches write
BATCH_SECONDS = MAX_SECONDS  # OpenAI keeps files with the purpose `batch` so long, where nothing else is said
MAX_LISTED = 10_000  # of one list, which is also the default, as OpenAI has it
UPLOAD_SECONDS = 3600  # that an upload is open for, as at OpenAI
MAX_PART_BYTES = 64 * MIB  # of one part, as at OpenAI; SDKs send parts of that size
MAX_PARTS = 10_000  # of one upload, those that are sent again too
_MD5 = re.compile(r"[0-9a-fA-F]{32}")
_ANCHOR, _SECONDS = "expires_after[anchor]", "expires_after[seconds]"  # as forms nest fields


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


@dataclass(frozen=True, slots=True)
class FileUsage:
    """How much a project keeps."""

    files: int  # those that are being uploaded, too
    bytes: int  # of all of them, and of the bundles of its skills
    uploads: int = 0  # of the files, those that come in parts and are not whole


@dataclass(frozen=True, slots=True, kw_only=True)
class NewFile:
    """A file that is to be kept, whole or in parts."""

    filename: str
    purpose: str  # one of `LISTED_PURPOSES`
    bytes: int
    seconds: int | None = None  # how long it stays; None: until somebody deletes it

    def columns(self, at: int) -> dict[str, Any]:
        """Return the columns of the file, as one that is whole at this Unix time."""
        expires_at = None if self.seconds is None else utc(at + self.seconds)
        return {**self._plain, "created_at": utc(at), "expires_at": expires_at}

    def upload_columns(self, at: int) -> dict[str, Any]:
        """Return the columns of its upload, as one that begins at this Unix time."""
        times = {"created_at": utc(at), "expires_at": utc(at + UPLOAD_SECONDS)}
        return {**self._plain, **times, "file_seconds": self.seconds}

    @classmethod
    def of_upload(cls, row: "model.Upload") -> "NewFile":
        """Return the file that an upload becomes."""
        return cls(filename=row.filename, purpose=row.purpose, bytes=row.bytes, seconds=row.file_seconds)

    @property
    def _plain(self) -> dict[str, Any]:
        return {"filename": self.filename, "purpose": self.purpose, "bytes": self.bytes}


class UploadFields(ClientModel):
    """The names of a form's fields beside the file; each value is a text."""

    beside: ClassVar = ("file", "purpose", "expires_after", _ANCHOR, _SECONDS)
    own: ClassVar = (_ANCHOR, _SECONDS)  # as a form writes them


FORM: Mapping[str, JsonObject] = {  # the schemas of these
    "purpose": {"type": "string", "enum": list(PURPOSES)},
    _ANCHOR: {"type": "string", "enum": ["created_at"]},
    _SECONDS: {"type": "integer", "minimum": MIN_SECONDS, "maximum": MAX_SECONDS},
}


class PartFields(ClientModel):
    """The names of the fields of a form with a part of a file."""

    beside: ClassVar = ("data",)


class NewUpload(ClientModel):
    """The body of a create."""

    idle: ClassVar = {"mime_type": "What is in a file says what it is, whoever reads it."}

    bytes: int = Field(ge=0, lt=2**63)
    filename: str = Field(min_length=1, max_length=MAX_FILENAME)
    mime_type: str = Field(max_length=256)
    purpose: str
    expires_after: FileExpiry | None = None

    @property
    def file(self) -> NewFile:
        """The file that the upload is to become."""
        seconds = _usual(self.purpose) if self.expires_after is None else self.expires_after.seconds
        return NewFile(filename=plain_name(self.filename), purpose=self.purpose, bytes=self.bytes, seconds=seconds)


class CompletedUpload(ClientModel):
    """The body that completes an upload: its parts in the order of the file, and what MD5 makes of them, in hex."""

    part_ids: list[Annotated[str, StringConstraints(max_length=256)]] = Field(max_length=MAX_PARTS)
    md5: str | None = None


@dataclass(frozen=True, slots=True)
class FileBounds:
    """How large files may be. The input of a batch may have more bytes than others, and never less."""

    file_max_bytes: int  # FILE_MAX_BYTES
    batch_max_bytes: int  # BATCH_MAX_BYTES

    @property
    def largest(self) -> tuple[int, str]:
        """The bytes that a file of any purpose may have, and the setting that says so."""
        bounds = ((self.file_max_bytes, "FILE_MAX_BYTES"), (self.batch_max_bytes, "BATCH_MAX_BYTES"))
        return max(bounds, key=lambda each: each[0])

    def check(self, size: int, purpose: str, *, param: str | None = None) -> None:
        """Raise `ApiError` (413) for a file that is too large for its purpose."""
        most, setting = self.largest if purpose == BATCH_PURPOSE else (self.file_max_bytes, "FILE_MAX_BYTES")
        if size > most:
            raise file_too_large(most, setting=setting, param=param)


def parse_upload(fields: Mapping[str, str], *, filename: str, size: int) -> NewFile:
    """Read the fields of a form beside its file. Raises `ApiError` that names the one that is wrong."""
    check_fields(UploadFields, fields)
    purpose = fields.get("purpose")
    if purpose is None:
        raise missing("purpose")
    check_purpose(purpose)
    return NewFile(filename=filename, purpose=purpose, bytes=size, seconds=_seconds(fields, _usual(purpose)))


def _usual(purpose: str) -> int | None:
    return BATCH_SECONDS if purpose == BATCH_PURPOSE else None


def check_purpose(purpose: str, purposes: Sequence[str] = PURPOSES) -> None:
    """Raise `ApiError` for a purpose that is none of these."""
    if purpose not in purposes:
        raise _invalid("purpose", purpose, f"Supported values are: {', '.join(map(repr, purposes))}.")


def _seconds(fields: Mapping[str, str], usual: int | None) -> int | None:
    anchor, seconds = fields.get(_ANCHOR), fields.get(_SECONDS)
    if anchor is None and seconds is None:
        if "expires_after" in fields:
            raise _invalid("expires_after", fields["expires_after"], f"It takes the fields {_ANCHOR} and {_SECONDS}.")
        return usual
    if anchor is None:
        raise missing("expires_after.anchor")
    if seconds is None:
        raise missing("expires_after.seconds")
    if anchor != "created_at":
        raise _invalid("expires_after.anchor", anchor, "Supported values are: 'created_at'.")
    expiry = whole_number(seconds, MIN_SECONDS, MAX_SECONDS)
    if expiry is None:
        hint = f"It takes a whole number from {MIN_SECONDS} to {MAX_SECONDS}."
        raise _invalid("expires_after.seconds", seconds, hint)
    return expiry


def _invalid(name: str, value: str, hint: str) -> ApiError:
    return invalid_value(name, f"{value[:80]!r}. {hint}")


def parse_new_upload(data: Mapping[str, object], *, bounds: FileBounds) -> NewFile:
    """Return the file of the body of a create. Raises `ApiError`: 413 for one that is too large."""
    upload = validate(NewUpload, data)
    check_purpose(upload.purpose)
    bounds.check(upload.bytes, upload.purpose, param="bytes")
    return upload.file


def parse_completed(data: Mapping[str, object]) -> CompletedUpload:
    """Read the body that completes an upload. Raises `ApiError`."""
    completion = validate(CompletedUpload, data)
    if len(set(completion.part_ids)) < len(completion.part_ids):
        raise invalid_value("part_ids", "a part is named twice.")
    if completion.md5 is not None and not _MD5.fullmatch(completion.md5):
        raise invalid_value("md5", "it takes the 32 hexadecimal digits of an MD5 checksum.")
    return completion


class UploadedFile(TypedDict):
    """A file that a client uploaded. `expires_at` is when it goes by itself, null for never."""

    id: str
    object: Literal["file"]
    bytes: int
    created_at: int  # Unix seconds, as all times here
    expires_at: int | None  # when it goes by itself; null for never
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
    bytes: int  # that the file is to have
    created_at: int
    expires_at: int  # until then it takes parts
    filename: str
    purpose: str
    status: Literal["pending", "completed", "cancelled", "expired"]
    file: UploadedFile | None  # once it is completed


class UploadPart(TypedDict):
    """A part of such a file."""

    id: str
    object: Literal["upload.part"]
    created_at: int
    upload_id: str


def shown(row: "model.StoredFile") -> UploadedFile:
    """Return a file as clients see it."""
    return {
        "id": row.pk,
        "object": "file",
        "bytes": row.bytes,
        "created_at": unix(row.created_at),
        "expires_at": None if row.expires_at is None else unix(row.expires_at),
        "filename": row.filename,
        "purpose": row.purpose,
        "status": "processed",
        "status_details": None,
    }


def shown_upload(row: "model.Upload") -> PartUpload:
    """Return a file that comes in parts as clients see it."""
    return {
        "id": row.pk,
        "object": "upload",
        "bytes": row.bytes,
        "created_at": unix(row.created_at),
        "expires_at": unix(row.expires_at),
        "filename": row.filename,
        "purpose": row.purpose,
        "status": row.status,
        "file": None if row.file is None else shown(row.file),
    }


def shown_part(row: "model.UploadPart") -> UploadPart:
    """Return a part as clients see it."""
    return {"id": row.pk, "object": "upload.part", "created_at": unix(row.created_at), "upload_id": row.upload_id}


class FilesFull(Exception):
    """The project keeps as much as it may; the message says of what."""


class FileGone(Exception):
    """A file was deleted, or has expired, while it was read or written."""


class UploadGone(Exception):
    """The project has no such upload."""


class UploadClosed(Exception):
    """An upload is not pending any more; the message is its status."""


class PartsWrong(Exception):
    """Parts that cannot be: too many, or not those of the file. `param` is the field that is wrong."""

    def __init__(self, message: str, *, param: str) -> None:
        super().__init__(message)
        self.param = param


def file_not_found(file_id: str, *, param: str = "file_id") -> ApiError:
    """There is no such file, or it has expired (404)."""
    message = f"File with id '{file_id[:80]}' not found. It may have expired."
    return not_found(message, param=param)


def file_too_large(limit: int, *, setting: str = "FILE_MAX_BYTES", param: str | None = None) -> ApiError:
    """More than a file may have (413); `setting` says where that is set."""
    message = f"The file is larger than {limit} bytes ({setting}). Send a smaller one, or several."
    return ApiError(message, status=413, code="request_too_large", param=param)


def files_full(message: str, *, param: str = "file") -> ApiError:
    """The project keeps as much as it may (400)."""
    return invalid_request(f"{message}. Delete files that are not needed any more.", param=param, code="files_full")


def upload_not_found(upload_id: str) -> ApiError:
    """There is no such upload, or it was forgotten a day after it had expired (404)."""
    message = f"Upload with id '{upload_id[:80]}' not found."
    return not_found(message, param="upload_id")


def upload_closed(status: str) -> ApiError:
    """The upload takes no more parts, and cannot be completed or cancelled (400)."""
    message = f"This upload is {status}. Create another one."
    return invalid_request(message, param="upload_id", code="upload_closed")


def part_too_large() -> ApiError:
    """More than a part may have (413)."""
    message = f"The part is larger than {MAX_PART_BYTES} bytes. Send smaller parts."
    return ApiError(message, status=413, code="request_too_large", param="data")


def parts_wrong(message: str, param: str) -> ApiError:
    """The parts do not make the file that the upload was created for (400)."""
    return invalid_request(message, param=param, code="invalid_value")
