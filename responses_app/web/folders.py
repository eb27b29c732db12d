"""Forms with the files of a folder, each with its path: Django's own way to read forms drops the folders of a name.

All files of a form lie in one temporary file, one behind the other: five hundred of them cost one descriptor.
"""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import IO, Any

from django.core.exceptions import RequestDataTooBig, SuspiciousOperation
from django.core.files.uploadhandler import FileUploadHandler
from django.http import HttpRequest
from django.http.multipartparser import MultiPartParser, MultiPartParserError
from django.http.request import UnreadablePostError

from responses_app.protocol.errors import invalid_request
from responses_app.protocol.fields import missing
from responses_app.protocol.transport import FORM_TYPE, unsupported_media_type
from responses_app.web.transfers import FormBody, is_form

MEMORY_BYTES = 2 * 1024 * 1024  # of a form's files; what is longer lies on disk
_PIECE = 256 * 1024


@dataclass(frozen=True, slots=True)
class PlacedFile:
    """A file of a form."""

    path: str  # as it was sent, unchecked
    begin: int  # where it lies in the file of all
    size: int  # bytes


@dataclass(frozen=True, slots=True)
class FolderForm:
    """The files of a form, and the fields beside them."""

    files: Sequence[PlacedFile]  # in the order in which they came
    fields: Mapping[str, str]  # of a name that comes twice the last
    content: IO[bytes] = field(repr=False)  # of all files; to read it blocks

    def read(self, file: PlacedFile) -> Iterator[bytes]:
        """Yield what is in a file."""
        place, left = file.begin, file.size
        while left > 0:
            # Sought anew: several may be read in turns.
            self.content.seek(place)
            piece = self.content.read(min(_PIECE, left))
            place, left = place + len(piece), left - len(piece)
            yield piece


class _Together(FileUploadHandler):
    """Writes all files of the field `name`, or `name[]`, into one, and leaves out the others."""

    def __init__(self, name: str, content: IO[bytes]) -> None:
        super().__init__()
        self._names = (name, f"{name}[]")
        self._content = content
        self._begin = 0
        self.files: list[PlacedFile] = []

    def new_file(self, *args: Any, **kwargs: Any) -> None:
        super().new_file(*args, **kwargs)
        self._begin = self._content.tell()

    def receive_data_chunk(self, raw_data: bytes, start: int) -> None:
        if self.field_name in self._names:
            self._content.write(raw_data)

    def file_complete(self, file_size: int) -> None:
        if self.field_name in self._names:
            self.files.append(PlacedFile(str(self.file_name), self._begin, self._content.tell() - self._begin))


class _PathsParser(MultiPartParser):
    """Leaves the names of files as they are: they are paths, which whoever reads them checks."""

    def sanitize_file_name(self, file_name: str) -> str:
        return file_name


@asynccontextmanager
async def uploaded_folder(request: HttpRequest, *, name: str) -> AsyncIterator[FolderForm]:
    """Yield the files of this name of a form.

    Raises `ApiError` for a body that is no form, or one that cannot be read, or has no such file.
    """
    if not is_form(request):
        raise unsupported_media_type(request.content_type, FORM_TYPE)
    with tempfile.SpooledTemporaryFile(MEMORY_BYTES) as content:
        yield await asyncio.to_thread(_read, request, name, content)


def _read(request: HttpRequest, name: str, content: IO[bytes]) -> FolderForm:
    together, body = _Together(name, content), FormBody(request)
    try:
        fields, _ = _PathsParser(body.meta, body, [together], request.encoding).parse()  # type: ignore[arg-type]
    except (MultiPartParserError, RequestDataTooBig, SuspiciousOperation, UnreadablePostError, LookupError):
        raise invalid_request(
            f"The form could not be read. Send it as multipart/form-data, with at most 500 files in '{name}[]', or a "
            f"zip file in '{name}', each with a name and with headers of at most 1024 bytes."
        ) from None
    if not body.is_whole():
        raise invalid_request("The form has no end: its last boundary is missing.")
    if not together.files:
        raise missing(name)
    return FolderForm(together.files, {each: str(value) for each, value in fields.items()}, content)
