"""Files that clients upload, whole or in parts: the fields of the form, the bodies of `/v1/uploads`, and the errors.

One that comes in parts:

    create {bytes, filename, …} → parts, each a form, in any order and beside each other → complete {part_ids} → a file
"""

import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal
from unicodedata import category

from pydantic import Field, StringConstraints

from responses_app.protocol.errors import ApiError, invalid_request, invalid_value, not_found
from responses_app.protocol.fields import ClientModel, check_fields, missing, validate, whole_number

BATCH_PURPOSE = "batch"  # of the inputs of batches
PURPOSES = ("assistants", BATCH_PURPOSE, "fine-tune", "vision", "user_data", "evals")
LISTED_PURPOSES = (*PURPOSES, "batch_output")  # also of those that batches write
MIN_SECONDS, MAX_SECONDS = 3600, 30 * 24 * 3600  # that `expires_after` may say: an hour to 30 days
BATCH_SECONDS = MAX_SECONDS  # OpenAI keeps files with the purpose `batch` so long, where nothing else is said
MAX_LISTED = 10_000  # of one list, which is also the default, as OpenAI has it
MAX_FILENAME = 255  # characters
_MAX_STEM, _MAX_SUFFIX = 80, 16  # characters of a name in a container

_ANCHOR, _SECONDS = "expires_after[anchor]", "expires_after[seconds]"  # as forms nest fields
_JOINERS = "\u200c\u200d"  # characters that do not show, and change the letters or pictures beside them
_NOT_IN_NAMES = re.compile(r'[\\/:*?"<>|]')  # what some file system takes for something else


class UploadFields(ClientModel):
    """The names of a form's fields beside the file; each value is a text."""

    beside: ClassVar = ("file", "purpose", "expires_after", _ANCHOR, _SECONDS)
    own: ClassVar = (_ANCHOR, _SECONDS)  # as a form writes them


class PartFields(ClientModel):
    """The names of the fields of a form with a part of a file."""

    beside: ClassVar = ("data",)


@dataclass(frozen=True, slots=True)
class NewFile:
    """What is asked of an upload."""

    purpose: str  # one of `PURPOSES`
    seconds: int | None  # how long the file stays; None: until somebody deletes it


def parse_upload(fields: Mapping[str, str]) -> NewFile:
    """Read the fields of a form beside the file. Raises `ApiError` that names the one that is wrong."""
    check_fields(UploadFields, fields)
    purpose = fields.get("purpose")
    if purpose is None:
        raise missing("purpose")
    check_purpose(purpose)
    return NewFile(purpose, _seconds(fields, BATCH_SECONDS if purpose == BATCH_PURPOSE else None))


def check_purpose(purpose: str, purposes: Sequence[str] = PURPOSES) -> None:
    """Raise `ApiError` for a purpose that is none of these."""
    if purpose not in purposes:
        raise _invalid("purpose", purpose, f"Supported values are: {', '.join(map(repr, purposes))}.")


def file_not_found(file_id: str, *, param: str = "file_id") -> ApiError:
    """There is no such file, or it has expired (404)."""
    message = f"File with id '{file_id[:80]}' not found. It may have expired."
    return not_found(message, param=param)


def file_too_large(limit: int, *, setting: str = "FILE_MAX_BYTES", param: str | None = None) -> ApiError:
    """More than a file may have (413); `setting` says where that is set."""
    message = f"The file is larger than {limit} bytes ({setting}). Send a smaller one, or several."
    return ApiError(message, status=413, code="request_too_large", param=param)


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


def files_full(message: str, *, param: str = "file") -> ApiError:
    """The project keeps as much as it may (400)."""
    return invalid_request(f"{message}. Delete files that are not needed any more.", param=param, code="files_full")


def plain_name(sent: str) -> str:
    """Return a file's name as it is kept: without a path and characters that do not show, at most `MAX_FILENAME`.

    Spaces of any kind and what joins letters stay: macOS has a narrow space in the names of screenshots.
    """
    name = sent.replace("\\", "/").rpartition("/")[2]
    name = "".join(each for each in name if each.isprintable() or each in _JOINERS or category(each) == "Zs")
    return "file" if name in ("", ".", "..") else _cut(name, MAX_FILENAME)


def name_on_disk(name: str, max_bytes: int = MAX_FILENAME) -> str:
    """Return a name that file systems take: they count bytes, not characters."""
    most = len(name)
    while len(name.encode()) > max_bytes:
        most -= 1
        name = _cut(name, most)
    return name


def _cut(name: str, most: int) -> str:
    """Return a name of at most so many characters, with its suffix where that is none too long."""
    stem, dot, suffix = name.rpartition(".")
    if not stem or len(suffix) > _MAX_SUFFIX:
        return name[:most]
    return f"{stem[: most - len(suffix) - 1]}{dot}{suffix}"


def name_in_container(filename: str, taken: Container[str]) -> str:
    """Return a name for a file among others of a container: its own, or with a number before the suffix."""
    # No dot at either end: `..` would leave the folder, and `.x` would be hidden.
    name = _NOT_IN_NAMES.sub("_", filename).strip(". ") or "file"
    stem, dot, suffix = name.rpartition(".")
    # What is behind the last dot of a long name may be a sentence, not a suffix.
    if not dot or len(suffix) > _MAX_SUFFIX:
        stem, dot, suffix = name, "", ""
    # Short enough in bytes, too, with the number of one of many.
    stem = name_on_disk(f"{stem[:_MAX_STEM]}{dot}{suffix}", MAX_FILENAME - 16).removesuffix(f"{dot}{suffix}")
    candidate, number = f"{stem}{dot}{suffix}", 1
    while candidate in taken:
        number += 1
        candidate = f"{stem}_{number}{dot}{suffix}"
    return candidate


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


UPLOAD_SECONDS = 3600  # that an upload is open for, as at OpenAI
MAX_PART_BYTES = 64 * 1024 * 1024  # of one part, as at OpenAI; SDKs send parts of that size
MAX_PARTS = 10_000  # of one upload, those that are sent again too
_MD5 = re.compile(r"[0-9a-fA-F]{32}")


class FileExpiry(ClientModel):
    """How long the file stays once the upload is completed."""

    anchor: Literal["created_at"]
    seconds: int = Field(ge=MIN_SECONDS, le=MAX_SECONDS)


class NewUpload(ClientModel):
    """The body of a create."""

    idle: ClassVar = {"mime_type": "What is in a file says what it is, whoever reads it."}

    bytes: int = Field(ge=0, lt=2**63)
    filename: str = Field(min_length=1, max_length=MAX_FILENAME)
    mime_type: str = Field(max_length=256)
    purpose: str
    expires_after: FileExpiry | None = None

    @property
    def name(self) -> str:
        """The name of the file, without a path and characters that do not show."""
        return plain_name(self.filename)

    @property
    def seconds(self) -> int | None:
        """How long the file stays, in seconds; None for as long as nobody deletes it."""
        if self.expires_after is not None:
            return self.expires_after.seconds
        return BATCH_SECONDS if self.purpose == BATCH_PURPOSE else None


class CompletedUpload(ClientModel):
    """The body that completes an upload: its parts in the order of the file, and what MD5 makes of them, in hex."""

    part_ids: list[Annotated[str, StringConstraints(max_length=256)]] = Field(max_length=MAX_PARTS)
    md5: str | None = None


def parse_new_upload(data: Mapping[str, object], *, bounds: FileBounds) -> NewUpload:
    """Read the body of a create. Raises `ApiError`: 413 for a file that is too large."""
    upload = validate(NewUpload, data)
    check_purpose(upload.purpose)
    bounds.check(upload.bytes, upload.purpose, param="bytes")
    return upload


def parse_completed(data: Mapping[str, object]) -> CompletedUpload:
    """Read the body that completes an upload. Raises `ApiError`."""
    completion = validate(CompletedUpload, data)
    if len(set(completion.part_ids)) < len(completion.part_ids):
        raise invalid_value("part_ids", "a part is named twice.")
    if completion.md5 is not None and not _MD5.fullmatch(completion.md5):
        raise invalid_value("md5", "it takes the 32 hexadecimal digits of an MD5 checksum.")
    return completion


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
