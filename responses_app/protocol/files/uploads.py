"""Files that come in parts: the bodies of `/v1/uploads`, and its errors.

create {bytes, filename, …} → parts, each a form, in any order and beside each other → complete {part_ids} → a file
"""

import re
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field, StringConstraints

from responses_app.protocol.errors import ApiError, invalid_request, not_found
from responses_app.protocol.fields import ClientModel
from responses_app.protocol.files.files import BATCH_SECONDS, MAX_SECONDS, MIN_SECONDS, check_purpose, file_too_large
from responses_app.protocol.validation import validate

UPLOAD_SECONDS = 3600  # that an upload is open for, as at OpenAI
MAX_PART_BYTES = 64 * 1024 * 1024  # of one part, as at OpenAI; SDKs send parts of that size
MAX_PARTS = 10_000  # of one upload, those that are sent again too
MAX_FILENAME = 255
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
        """The name of the file, without a path and what does not print."""
        name = "".join(filter(str.isprintable, self.filename.replace("\\", "/").rpartition("/")[2]))
        return "file" if name in ("", ".", "..") else name

    @property
    def seconds(self) -> int | None:
        """How long the file stays, in seconds; None for as long as nobody deletes it."""
        if self.expires_after is not None:
            return self.expires_after.seconds
        return BATCH_SECONDS if self.purpose == "batch" else None


class CompletedUpload(ClientModel):
    """The body that completes an upload: its parts in the order of the file, and what MD5 makes of them, in hex."""

    part_ids: list[Annotated[str, StringConstraints(max_length=256)]] = Field(max_length=MAX_PARTS)
    md5: str | None = None


def parse_new_upload(data: Mapping[str, object], *, max_bytes: int) -> NewUpload:
    """Read the body of a create. Raises `ApiError`: 413 for a file of more than `max_bytes`."""
    wanted = validate(NewUpload, data)
    check_purpose(wanted.purpose)
    if wanted.bytes > max_bytes:
        raise file_too_large(max_bytes, param="bytes")
    return wanted


def parse_completed(data: Mapping[str, object]) -> CompletedUpload:
    """Read the body that completes an upload. Raises `ApiError`."""
    wanted = validate(CompletedUpload, data)
    if len(set(wanted.part_ids)) < len(wanted.part_ids):
        raise _wrong("part_ids", "a part is named twice.")
    if wanted.md5 is not None and not _MD5.fullmatch(wanted.md5):
        raise _wrong("md5", "it takes the 32 hexadecimal digits of an MD5 checksum.")
    return wanted


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


def _wrong(param: str, why: str) -> ApiError:
    return invalid_request(f"Invalid value for '{param}': {why}", param=param, code="invalid_value")
