"""Files that clients upload, as forms of several parts."""

import asyncio
from dataclasses import dataclass

from django.core.exceptions import RequestDataTooBig, SuspiciousOperation
from django.core.files.uploadedfile import UploadedFile
from django.http import HttpRequest
from django.http.multipartparser import MultiPartParserError
from django.http.request import UnreadablePostError

from responses_app.protocol.body_errors import FORM_TYPE
from responses_app.protocol.errors import invalid_request
from responses_app.protocol.validation import missing


@dataclass(frozen=True, slots=True)
class Upload:
    """A file: its name without a path, and what is in it."""

    name: str
    content: bytes


def is_form(request: HttpRequest) -> bool:
    """Whether a request's body is a form with files."""
    return request.content_type == FORM_TYPE


async def read_upload(request: HttpRequest) -> Upload:
    """Return the `file` of a form. Raises `ApiError` for a form that cannot be read, or has none."""
    return await asyncio.to_thread(_read, request)


def _read(request: HttpRequest) -> Upload:
    try:
        file = request.FILES.get("file")
    except (MultiPartParserError, RequestDataTooBig, SuspiciousOperation, UnreadablePostError):
        raise invalid_request("The form could not be read. Send it as multipart/form-data, with a 'file'.") from None
    if not isinstance(file, UploadedFile):
        raise missing("file")
    return Upload(file.name or "file", file.read())
