"""Files that clients upload and download.

Uploads are forms of several parts (RFC 7578): Django reads them, and keeps long ones on disk. Downloads go out part by
part: a slow reader costs one part, not the file.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from django.core.exceptions import RequestDataTooBig, SuspiciousOperation, TooManyFilesSent
from django.core.files.uploadedfile import UploadedFile
from django.core.files.uploadhandler import FileUploadHandler
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.multipartparser import MultiPartParser, MultiPartParserError
from django.http.request import UnreadablePostError
from django.http.response import HttpResponseBase
from django.utils.http import content_disposition_header

from responses_app.protocol.errors import JsonObject, invalid_request
from responses_app.protocol.fields import missing
from responses_app.protocol.transport import FORM_TYPE, unsupported_media_type
from responses_app.web.endpoint import BYTES
from responses_app.web.http import Cut

_UNKNOWN = str(1 << 40)  # what Django is told of a body that came in chunks: of one without a length it reads nothing
NO_FIELDS: Mapping[str, JsonObject] = {}
MAX_BESIDE = 100  # files of a form of which one is read
_TAIL = 1024  # bytes in which a form's last boundary is looked for


@dataclass(frozen=True, slots=True)
class UploadedForm:
    """A file of a form, and the fields beside it."""

    name: str  # without a path and control characters, at most 255 characters
    size: int  # in bytes
    fields: Mapping[str, str]  # those beside the file; of a name that comes twice the last
    file: "UploadedFile[Any]" = field(repr=False)  # on disk where it is long; to read it blocks

    def pieces(self, size: int) -> Iterator[bytes]:
        """Yield what is in it, `size` bytes at a time."""
        self.file.seek(0)
        while piece := self.file.read(size):
            yield piece

    async def arriving(self, size: int) -> AsyncIterator[bytes]:
        """Yield the same, read on a thread."""
        pieces = self.pieces(size)
        # `b""` in place of `StopIteration`, which no task can raise.
        while piece := await asyncio.to_thread(next, pieces, b""):
            yield piece

    def close(self) -> None:
        """Let go of what is on disk."""
        self.file.close()


def form_schema(description: str, fields: Mapping[str, JsonObject] = NO_FIELDS, *, name: str = "file") -> JsonObject:
    """Return the schema of a form with a file of this name, and other fields; `expires_after` may be missing."""
    content: JsonObject = {"type": "string", "contentMediaType": "application/octet-stream"}
    required = [name, *(each for each in fields if not each.startswith("expires_after"))]
    return {
        "type": "object",
        "description": description,
        "properties": {name: content, **fields},
        "required": required,
    }


def is_form(request: HttpRequest) -> bool:
    """Whether a request's body is a form with files."""
    return request.content_type == FORM_TYPE


@asynccontextmanager
async def uploaded(request: HttpRequest, *, name: str = "file") -> AsyncIterator[UploadedForm]:
    """Yield the file of this name of a form, and close it.

    Raises `ApiError` for a body that is no form, or one that cannot be read, or has no such file.
    """
    if not is_form(request):
        raise unsupported_media_type(request.content_type, FORM_TYPE)
    upload = await asyncio.to_thread(_read, request, name)
    try:
        yield upload
    finally:
        await asyncio.to_thread(upload.close)


def _read(request: HttpRequest, name: str) -> UploadedForm:
    body = FormBody(request)
    handlers = [_FewFiles(request), *request.upload_handlers]
    try:
        fields, files = MultiPartParser(body.meta, body, handlers, request.encoding).parse()  # type: ignore[arg-type]
    except (MultiPartParserError, RequestDataTooBig, SuspiciousOperation, UnreadablePostError, LookupError):
        raise invalid_request(
            f"The form could not be read. Send it as multipart/form-data, with a '{name}' whose part has headers of at "
            "most 1024 bytes, its name among them."
        ) from None
    file = files.get(name)
    whole = body.is_whole()
    if not whole or not isinstance(file, UploadedFile):
        for each in files.values():
            each.close()  # type: ignore[union-attr]
        raise missing(name) if whole else invalid_request("The form has no end: its last boundary is missing.")
    return UploadedForm(file.name or "file", file.size or 0, {name: str(value) for name, value in fields.items()}, file)


class _FewFiles(FileUploadHandler):
    """Refuses forms with many files, of which each would be one on disk: Django's bound is that of skills."""

    def __init__(self, request: HttpRequest) -> None:
        super().__init__(request)
        self._files = 0

    def new_file(self, *args: Any, **kwargs: Any) -> None:
        self._files += 1
        if self._files > MAX_BESIDE:
            raise TooManyFilesSent(f"A form has at most {MAX_BESIDE} files.")

    def receive_data_chunk(self, raw_data: bytes, start: int) -> bytes:
        return raw_data  # to the handlers behind this one

    def file_complete(self, file_size: int) -> None:
        return None


class FormBody:
    """A form's body, whose end is remembered: Django takes a form that was cut for a whole one."""

    def __init__(self, request: HttpRequest) -> None:
        self.meta = {**request.META, "CONTENT_LENGTH": request.META.get("CONTENT_LENGTH") or _UNKNOWN}
        self._boundary = (request.content_params or {}).get("boundary", "")
        self._request = request
        self._tail = b""

    def read(self, size: int | None = None) -> bytes:
        """Return the next bytes."""
        data = self._request.read(size)
        # Only the last bytes are kept, across the parser's reads.
        self._tail = (self._tail + data[-_TAIL:])[-_TAIL:] if data else self._tail
        return data

    def is_whole(self) -> bool:
        """Whether the form's last boundary has come."""
        return f"--{self._boundary}--".encode() in self._tail


def file_answer(name: str, size: int, body: bytes | AsyncIterator[bytes], *, kind: str = BYTES) -> HttpResponseBase:
    """Return a file's content, or nothing of it to a HEAD; `size` is in bytes either way."""
    headers = {
        "content-length": str(size),
        # Never shown by a browser: anybody may have written it, a model too.
        "content-disposition": str(content_disposition_header(True, name)),
        "x-content-type-options": "nosniff",
    }
    if isinstance(body, bytes):
        return HttpResponse(body, content_type=kind, headers=headers)
    return StreamingHttpResponse(body, content_type=kind, headers=headers)


async def streamed(
    first: bytes, rest: AsyncIterator[bytes], cut: Cut | None, broken: tuple[type[Exception], ...]
) -> AsyncIterator[bytes]:
    """Yield a file; where `rest` raises what is `broken`, the connection is cut, not ended."""
    yield first
    try:
        async for part in rest:
            yield part
    except broken:
        if cut is None:
            raise
        # The head has promised `size` bytes: a clean end would pass for the whole file to some clients.
        await cut()
