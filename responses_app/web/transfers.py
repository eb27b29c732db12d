"""Files that clients upload, as forms of several parts (RFC 7578). Django reads them, and keeps long ones on disk."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from django.core.exceptions import RequestDataTooBig, SuspiciousOperation
from django.core.files.uploadedfile import UploadedFile
from django.http import HttpRequest
from django.http.multipartparser import MultiPartParser, MultiPartParserError
from django.http.request import UnreadablePostError

from responses_app.protocol.errors import JsonObject, invalid_request
from responses_app.protocol.fields import missing
from responses_app.protocol.transport import FORM_TYPE
from responses_app.web.http import Cut

_UNKNOWN = str(1 << 40)  # what Django is told of a body that came in chunks: of one without a length it reads nothing
NO_FIELDS: Mapping[str, JsonObject] = {}
_TAIL = 1024  # bytes in which a form's last boundary is looked for


@dataclass(frozen=True, slots=True)
class Upload:
    """A file and the fields beside it. `name` has no path, no control characters and at most 255 characters.

    `size` is in bytes. The content is on disk where it is long; to read it blocks.
    """

    name: str
    size: int
    fields: Mapping[str, str]
    file: "UploadedFile[Any]" = field(repr=False)

    def pieces(self, size: int) -> Iterator[bytes]:
        """Yield what is in it, `size` bytes at a time."""
        self.file.seek(0)
        while piece := self.file.read(size):
            yield piece

    async def arriving(self, size: int) -> AsyncIterator[bytes]:
        """Yield the same, read on a thread."""
        pieces = self.pieces(size)
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


async def read_upload(request: HttpRequest, *, name: str = "file") -> Upload:
    """Return the file of this name of a form; to be closed.

    Raises `ApiError` for a form that cannot be read, or has none.
    """
    return await asyncio.to_thread(_read, request, name)


def _read(request: HttpRequest, name: str) -> Upload:
    meta = {**request.META, "CONTENT_LENGTH": request.META.get("CONTENT_LENGTH") or _UNKNOWN}
    body = _FormBody(request)
    try:
        fields, files = MultiPartParser(meta, body, request.upload_handlers, request.encoding).parse()  # type: ignore[arg-type]
    except (MultiPartParserError, RequestDataTooBig, SuspiciousOperation, UnreadablePostError, LookupError):
        raise invalid_request(
            f"The form could not be read. Send it as multipart/form-data, with a '{name}' whose part has headers of at "
            "most 1024 bytes, its name among them."
        ) from None
    file = files.get(name)
    whole = body.ends_with((request.content_params or {}).get("boundary", ""))
    if not whole or not isinstance(file, UploadedFile):
        for each in files.values():
            each.close()  # type: ignore[union-attr]
        raise missing(name) if whole else invalid_request("The form has no end: its last boundary is missing.")
    return Upload(file.name or "file", file.size or 0, {name: str(value) for name, value in fields.items()}, file)


class _FormBody:
    """A request's body, whose end is remembered: Django takes a form that was cut for a whole one."""

    def __init__(self, request: HttpRequest) -> None:
        self._request = request
        self._tail = b""

    def read(self, size: int | None = None) -> bytes:
        """Return the next bytes."""
        data = self._request.read(size)
        self._tail = (self._tail + data[-_TAIL:])[-_TAIL:] if data else self._tail
        return data

    def ends_with(self, boundary: str) -> bool:
        """Whether the form's last boundary has come."""
        return f"--{boundary}--".encode() in self._tail


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
        await cut()
