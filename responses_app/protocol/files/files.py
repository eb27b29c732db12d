"""Files that clients upload: the fields of an upload's form, and the Files API's objects and errors."""

import re
from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import ClassVar

from responses_app.protocol.errors import ApiError, invalid_request, not_found
from responses_app.protocol.fields import ClientModel, check_fields
from responses_app.protocol.validation import missing, whole_number

PURPOSES = ("assistants", "batch", "fine-tune", "vision", "user_data", "evals")
MIN_SECONDS, MAX_SECONDS = 3600, 30 * 24 * 3600  # that `expires_after` may say: an hour to 30 days
BATCH_SECONDS = MAX_SECONDS  # OpenAI keeps files with the purpose `batch` so long, where nothing else is said
MAX_LISTED = 10_000  # of one list, which is also the default, as OpenAI has it
_MAX_STEM, _MAX_SUFFIX = 80, 16  # characters of a name in a container

_ANCHOR, _SECONDS = "expires_after[anchor]", "expires_after[seconds]"
_NOT_IN_NAMES = re.compile(r'[\\/:*?"<>|]')


class UploadFields(ClientModel):
    """The names of a form's fields beside the file; each value is a text."""

    beside: ClassVar = ("file", "purpose", "expires_after", _ANCHOR, _SECONDS)
    own: ClassVar = (_ANCHOR, _SECONDS)  # as a form writes them


@dataclass(frozen=True, slots=True)
class NewFile:
    """What is asked of an upload. `seconds` is how long the file stays; None for as long as nobody deletes it."""

    purpose: str
    seconds: int | None


def parse_upload(fields: Mapping[str, str]) -> NewFile:
    """Read the fields of a form beside the file. Raises `ApiError` that names the one that is wrong."""
    check_fields(UploadFields, fields)
    purpose = fields.get("purpose")
    if purpose is None:
        raise missing("purpose")
    check_purpose(purpose)
    return NewFile(purpose, _seconds(fields, BATCH_SECONDS if purpose == "batch" else None))


def check_purpose(purpose: str) -> None:
    """Raise `ApiError` for a purpose that OpenAI's API does not have."""
    if purpose not in PURPOSES:
        raise _invalid("purpose", purpose, f"Supported values are: {', '.join(map(repr, PURPOSES))}.")


def file_not_found(file_id: str, *, param: str = "file_id") -> ApiError:
    """There is no such file, or it has expired (404)."""
    message = f"File with id '{file_id[:80]}' not found. It may have expired."
    return not_found(message, param=param)


def file_too_large(limit: int, *, param: str | None = None) -> ApiError:
    """More than FILE_MAX_BYTES (413)."""
    message = f"The file is larger than {limit} bytes (FILE_MAX_BYTES). Send a smaller one, or several."
    return ApiError(message, status=413, code="request_too_large", param=param)


def files_full(message: str, *, param: str = "file") -> ApiError:
    """The project keeps as much as it may (400)."""
    return invalid_request(f"{message}. Delete files that are not needed any more.", param=param, code="files_full")


def name_in_container(filename: str, taken: Container[str]) -> str:
    """Return a name for a file among others of a container: its own, or with a number before the suffix."""
    name = _NOT_IN_NAMES.sub("_", filename).strip(". ") or "file"
    stem, dot, suffix = name.rpartition(".")
    if not dot or len(suffix) > _MAX_SUFFIX:
        stem, dot, suffix = name, "", ""
    stem = stem[:_MAX_STEM]
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
    wanted = whole_number(seconds, MIN_SECONDS, MAX_SECONDS)
    if wanted is None:
        hint = f"It takes a whole number from {MIN_SECONDS} to {MAX_SECONDS}."
        raise _invalid("expires_after.seconds", seconds, hint)
    return wanted


def _invalid(name: str, value: str, hint: str) -> ApiError:
    return invalid_request(f"Invalid value for '{name}': {value[:80]!r}. {hint}", param=name, code="invalid_value")
