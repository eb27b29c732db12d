"""Forms with files (RFC 7578): one reader for all uploads.

A name of a file may be in any encoding, since curl and older programs on Windows send theirs, and is no reason to lose
the file. All files of a form lie in one temporary file, one behind the other: five hundred of them cost one descriptor.
"""

import asyncio
import binascii
import re
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import IO
from urllib.parse import unquote_to_bytes

from django.core.exceptions import SuspiciousOperation
from django.http import HttpRequest
from django.http.multipartparser import ChunkIter, InterBoundaryIter, LazyStream
from django.http.request import UnreadablePostError

from responses_app.protocol.errors import ApiError, invalid_request, invalid_value
from responses_app.protocol.fields import ClientModel, known_names, missing
from responses_app.protocol.files.files import plain_name
from responses_app.protocol.transport import FORM_TYPE, unsupported_media_type

MEMORY_BYTES = 2 * 1024 * 1024  # of a form's files; what is longer lies on disk
MAX_FILES = 500  # of one form, as many as a skill may have
MAX_PARTS = 1000  # files and fields together
MAX_FIELD_BYTES = 64 * 1024  # of all fields together, with their names
MAX_HEAD_BYTES = 16 * 1024  # of one part
_PIECE = 256 * 1024
_TAIL = 1024  # bytes in which a form's last boundary is looked for
_BOUNDARY = re.compile(r"[ -~]{0,200}[!-~]")
# A parameter of a header: in quotes, where `\"` and `\\` are escapes, or, as in "C:\", are none; or bare.
_PARAMETER = re.compile(
    r';\s*([^\s=;"]+)\s*=\s*(?:"((?>\\["\\]|[^"])*+)"\s*(?=;|$)|"([^"]*)"\s*(?=;|$)|([^;]*))', re.DOTALL
)
_ESCAPE = re.compile(r'\\(["\\])')
_JAPANESE = re.compile("[\u3040-\u30ff\u3400-\u9fff]{2}")


@dataclass(frozen=True, slots=True)
class FormFile:
    """A file of a form."""

    path: str  # as it was sent, unchecked; "" where there is none
    size: int  # bytes
    _begin: int  # where it lies in `_content`
    _content: IO[bytes] = field(repr=False)  # of all files

    @property
    def name(self) -> str:
        """Its name, without a path and characters that do not show."""
        return plain_name(self.path)

    def pieces(self, size: int = _PIECE) -> Iterator[bytes]:
        """Yield what is in it, `size` bytes at a time; to read it blocks."""
        place, left = self._begin, self.size
        while left > 0:
            # Sought anew: several may be read in turns.
            self._content.seek(place)
            piece = self._content.read(min(size, left))
            place, left = place + len(piece), left - len(piece)
            yield piece

    async def arriving(self, size: int) -> AsyncIterator[bytes]:
        """Yield the same, read on a thread."""
        pieces = self.pieces(size)
        # `b""` in place of `StopIteration`, which no task can raise.
        while piece := await asyncio.to_thread(next, pieces, b""):
            yield piece


@dataclass(frozen=True, slots=True)
class SentForm:
    """The files of a form, and the fields beside them."""

    files: Sequence[FormFile]  # at least one, in the order in which they came
    fields: Mapping[str, str]  # by their names; files that nobody reads have an empty text

    @property
    def file(self) -> FormFile:
        """The file of a form that has one."""
        return self.files[0]


class _BadForm(Exception):
    """A form cannot be read; the text is a sentence that says why."""


def is_form(request: HttpRequest) -> bool:
    """Whether a request's body is a form with files."""
    return request.content_type == FORM_TYPE


@asynccontextmanager
async def sent_form(
    request: HttpRequest, model: type[ClientModel], *, name: str = "file", several: bool = False
) -> AsyncIterator[SentForm]:
    """Yield the file of this name of a form, or `several` of it or of `name[]`, and the fields that `model` has.

    Raises `ApiError` for a body that is no form, or one that cannot be read, has no such file, or two of what may come
    once. What the fields say is not looked at.
    """
    if not is_form(request):
        raise unsupported_media_type(request.content_type, FORM_TYPE)
    with tempfile.SpooledTemporaryFile(MEMORY_BYTES) as content:
        reader = _FormParser((name, f"{name}[]") if several else (name,), known_names(model), content)
        yield await asyncio.to_thread(_read, request, reader, several=several)


def _read(request: HttpRequest, reader: "_FormParser", *, several: bool) -> SentForm:
    boundary = (request.content_params or {}).get("boundary", "")
    body = _Body(request, f"--{boundary}--".encode("ascii", "replace"))
    try:
        if not _BOUNDARY.fullmatch(boundary):
            raise _BadForm("Its Content-Type has no boundary, which HTTP libraries set by themselves.")
        stream = LazyStream(ChunkIter(body, _PIECE))  # type: ignore[arg-type]  # all that it asks for is `read`
        for part in InterBoundaryIter(stream, f"--{boundary}".encode()):
            reader.take(part)
        while body.read(_PIECE):  # what is behind its last boundary
            pass
    except UnreadablePostError:
        raise invalid_request("The form could not be read to its end. Send it again.") from None
    except (_BadForm, SuspiciousOperation) as problem:
        why = problem if isinstance(problem, _BadForm) else "Its parts do not end."
        raise invalid_request(f"The form could not be read. {why}") from None
    if not body.is_whole:
        raise invalid_request("The form has no end: its last boundary is missing.")
    return reader.form(several=several)


class _FormParser:
    """Takes the parts of a form."""

    def __init__(self, names: Sequence[str], known: frozenset[str], content: IO[bytes]) -> None:
        self._names, self._known, self._content = names, known, content
        self._files: list[FormFile] = []
        self._fields: dict[str, str] = {}
        self._count = self._field_bytes = 0
        self._bare = False  # a field has the name of the file, and no name of a file

    def take(self, part: LazyStream) -> None:
        """Take a part to its end."""
        self._count += 1
        if self._count > MAX_PARTS:
            raise _BadForm(f"It has more than {MAX_PARTS} parts.")
        # What is before the first boundary, and behind the last one, has no end of a line there.
        if part.read(2) != b"\r\n" or (found := _disposition(_head(part))) is None:
            _pass_over(part)
            return
        parameters, coding = found
        name = decoded(parameters.get("name", b"")).strip()
        pieces = _unpacked(part) if coding == b"base64" else iter(part)
        if "filename" in parameters and name in self._names:
            self._file(decoded(parameters["filename"]), pieces)
        else:
            self._field(name, "filename" in parameters, pieces)

    def _file(self, path: str, pieces: Iterator[bytes]) -> None:
        begin = self._content.tell()
        for piece in pieces:
            self._content.write(piece)
        size = self._content.tell() - begin
        if not path and not size:  # a browser's form, in which no file was chosen
            return
        self._files.append(FormFile(path, size, begin, self._content))
        if len(self._files) > MAX_FILES:
            raise _BadForm(f"It has more than the {MAX_FILES} files that a form may have.")

    def _field(self, name: str, is_file: bool, pieces: Iterator[bytes]) -> None:
        if name not in self._known or is_file:  # it is named to its client, and not read
            _pass_over(pieces)
            if is_file and name in self._known:
                raise invalid_value(name, "it came as a file. Send it as a field without a file name.")
            self._fields.setdefault(name, "")
            return
        self._bare |= name in self._names
        if name in self._fields:
            raise _twice(name)
        value = bytearray(name.encode())
        for piece in pieces:
            value += piece
            if self._field_bytes + len(value) > MAX_FIELD_BYTES:
                raise _BadForm(f"Its fields have more than {MAX_FIELD_BYTES} bytes.")
        self._field_bytes += len(value)
        self._fields[name] = bytes(value[len(name.encode()) :]).decode(errors="replace")

    def form(self, *, several: bool) -> SentForm:
        """Return what was taken. Raises `ApiError` where no file is there, or too many."""
        name = self._names[0]
        if not self._files:
            absent = missing(name)
            hint = f" The field of that name has no file name: send it as a file, as curl does with -F {name}=@PATH."
            raise invalid_request(f"{absent.message}{hint if self._bare else ''}", param=name, code=absent.code)
        if self._bare or (len(self._files) > 1 and not several):
            raise _twice(name)
        return SentForm(self._files, {each: text for each, text in self._fields.items() if each not in self._names})


def _twice(name: str) -> ApiError:
    return invalid_value(name, "it comes more than once in the form. Send it once.")


class _Body:
    """A form's body, whose end is remembered: a form that was cut is no whole one."""

    def __init__(self, request: HttpRequest, end: bytes) -> None:
        self._request, self._end = request, end
        self._tail = b""

    def read(self, size: int | None = None) -> bytes:
        """Return the next bytes."""
        data = self._request.read(size)
        # Only the last bytes are kept, across reads.
        self._tail = (self._tail + data[-_TAIL:])[-_TAIL:] if data else self._tail
        return data

    @property
    def is_whole(self) -> bool:
        """Whether the form's last boundary has come."""
        return self._end in self._tail


def _pass_over(pieces: Iterator[bytes]) -> None:
    for _ in pieces:
        pass


def _head(part: LazyStream) -> bytes:
    """Return the headers of a part, and leave its content."""
    read = part.read(MAX_HEAD_BYTES)
    # A part without headers has an empty line at once.
    end = 0 if read.startswith(b"\r\n") else read.find(b"\r\n\r\n")
    if end < 0:
        if len(read) < MAX_HEAD_BYTES:
            return b""
        raise _BadForm(f"A part has more than {MAX_HEAD_BYTES} bytes of headers.")
    part.unget(read[end + (4 if end else 2) :])
    return read[:end]


def _disposition(head: bytes) -> tuple[Mapping[str, bytes], bytes] | None:
    """Return the parameters of a part's Content-Disposition, and how it is packed; None where it has no name."""
    headers = {}
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        headers[name.strip().lower()] = value.strip()
    parameters: dict[str, bytes] = {}
    for found in _PARAMETER.finditer(headers.get(b"content-disposition", b"").decode("latin-1")):
        key, escaped, quoted, bare = found.groups()
        text = _ESCAPE.sub(r"\1", escaped) if escaped is not None else quoted if quoted is not None else bare.strip()
        parameters[key.lower()] = text.encode("latin-1")
    if "filename*" in parameters:
        parameters["filename"] = _extended(parameters["filename*"])
    return (parameters, headers.get(b"content-transfer-encoding", b"").lower()) if "name" in parameters else None


def _extended(value: bytes) -> bytes:
    """Return the UTF-8 of a parameter that names its encoding (RFC 5987), or its bytes where nobody knows that."""
    charset, quote, rest = value.partition(b"'")
    sent = unquote_to_bytes(rest.partition(b"'")[2] if quote else value)
    try:
        return sent.decode(charset.decode("ascii")).encode()
    except (LookupError, ValueError):
        return sent


def _unpacked(pieces: LazyStream) -> Iterator[bytes]:
    """Yield what base64 stands for."""
    rest = b""
    for piece in pieces:
        text = rest + b"".join(piece.split())
        whole = len(text) // 4 * 4
        rest = text[whole:]
        try:
            yield binascii.a2b_base64(text[:whole], strict_mode=True)
        except binascii.Error:
            rest = text
            break
    if rest:
        raise _BadForm("A part is not the base64 that its Content-Transfer-Encoding says.")


def decoded(sent: bytes) -> str:
    """Return a name as a text: of UTF-8, else of Shift-JIS where it reads as Japanese, else of Windows-1252."""
    text = sent.decode(errors="replace")
    broken = text.count("\ufffd")
    # A name that is cut in a character, say, has more that is whole.
    if not broken or sum(not each.isascii() for each in text) > 2 * broken:
        return text
    # Its kana and kanji begin with bytes that are seldom in texts of Windows-1252, and stand beside each other.
    if any(0x81 <= each <= 0x9F for each in sent):
        japanese = sent.decode("cp932", errors="ignore")
        if _JAPANESE.search(japanese):
            return japanese
    try:
        return sent.decode("cp1252")
    except UnicodeDecodeError:
        return sent.decode("latin-1")
