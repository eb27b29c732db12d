"""`input_file` parts as the model reads them: what is in the file, between two lines that name it.

    {"type": "input_file", "file_id": "file-…"}   ->   [file: notes.txt]
                                                       what is in it
                                                       [end of the file: notes.txt]

A file that cannot be shown becomes a note: it stays in an agent's history, and is not an error there (a file that has
been deleted, say).
"""

import base64
import binascii
import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeGuard

from responses_app.protocol.items.items import (
    FunctionCallOutput,
    InputItem,
    MediaPart,
    Message,
    OmittedFile,
    Part,
    SeenImage,
    TextPart,
)

MAX_FILES = 20  # of one request, with what comes before it of its conversation
MAX_TEXT = 2_000_000  # characters of all files of a request that are shown: more fits no model
_UNSEEN = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")  # control characters but tab, line feed and carriage return
_PIECE = 2**18  # characters of base64 that are decoded at once, in a millisecond; four are three bytes
_WHITE = b" \t\r\n\f\v"
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")  # the byte order marks


ReadDocument = Callable[[str, bytes], Awaitable[str]]  # name and content → text; raises `DocumentUnreadable`


class DocumentUnreadable(Exception):
    """A file gives no text; the message says why, to its owner."""


@dataclass(frozen=True, slots=True)
class Shown:
    """What the model reads in the place of a file."""

    text: str
    omitted: bool = False  # it is a note, since the file cannot be shown
    digest: str = ""  # of the picture that it is, where the model sees it


def files_in(items: Sequence[InputItem]) -> Iterator[MediaPart]:
    """Yield the files of items, in their order."""
    for item in items:
        yield from (part for part in _parts(item) if is_file(part))


def is_file(part: Part) -> TypeGuard[MediaPart]:
    """Whether a part is a file that may be shown: one that says where its content is, here."""
    return isinstance(part, MediaPart) and part.type == "input_file" and bool(part.file_id or part.file_data)


def with_files(items: Sequence[InputItem], shown: Callable[[MediaPart], Shown | None]) -> list[InputItem]:
    """Return items with what is `shown` of each file in its place; None leaves it as it is."""

    def replaced(part: Part) -> Part:
        note = shown(part) if is_file(part) else None
        if note is None:
            return part
        if note.digest:
            return SeenImage(digest=note.digest)
        return OmittedFile(note=note.text) if note.omitted else TextPart(type="input_text", text=note.text)

    result: list[InputItem] = []
    for item in items:
        if isinstance(item, Message) and any(map(is_file, item.content)):
            item = item.model_copy(update={"content": [replaced(part) for part in item.content]})
        elif isinstance(item, FunctionCallOutput) and any(map(is_file, item.output)):
            item = item.model_copy(update={"output": [replaced(part) for part in item.output]})
        result.append(item)
    return result


def shown_file(filename: str, text: str, *, room: int = MAX_TEXT) -> Shown:
    """Return a file's text as the model reads it; of one that is longer than `room` characters the beginning."""
    name, cut = _name(filename), len(text) > room
    body = _UNSEEN.sub("", text[:room]).rstrip("\n")
    end = (
        f"[the file is longer: its rest is left out]\n[end of the file: {name}]"
        if cut
        else f"[end of the file: {name}]"
    )
    return Shown(f"[file: {name}]\n{body}\n{end}")


def omitted_file(filename: str | None, why: str) -> Shown:
    """Return the note for a file that cannot be shown."""
    return Shown(f"[file omitted: {_name(filename)}: {why}]" if filename else f"[file omitted: {why}]", omitted=True)


def as_reason(problem: Exception) -> str:
    """Return the sentence that a problem says as a part of a note: without a capital, and without a full stop."""
    said = str(problem)
    return f"{said[:1].lower()}{said[1:].rstrip('.')}"


def plain_text(content: bytes) -> str | None:
    """Return what is in a file of plain text, None for any other."""
    if content.startswith(_UTF_16):
        return content.decode("utf-16", errors="replace")
    # No text has a zero byte. The other two are PDF, and ZIP, which office documents are: their beginning may be text.
    if b"\x00" in content or content.startswith((b"%PDF-", b"PK\x03\x04")):
        return None
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return None


def data_of(file_data: str) -> bytes | None:
    """Return the content that a part carries, None where it is not base64."""
    # A data URL, or base64 alone: a comma in the first 1,000 characters tells them apart.
    head, comma, _ = file_data[:1000].partition(",")
    return decoded(file_data[len(head) + 1 :] if comma and head.startswith("data:") else file_data)


def decoded(encoded: str) -> bytes | None:
    """Return what base64 says, which may be broken into lines; None for what is none.

    A thread lets no other one run while it decodes a piece of it: so the pieces are short.
    """
    if not encoded.isascii():
        return None
    pieces = (encoded[start : start + _PIECE].encode() for start in range(0, len(encoded), _PIECE))
    plain = b"".join(piece.translate(None, _WHITE) for piece in pieces)
    # At the end of a piece it would be taken for the end of all.
    if -1 < plain.find(b"=") < len(plain) - 2:
        return None
    try:
        return b"".join(
            base64.b64decode(plain[start : start + _PIECE], validate=True) for start in range(0, len(plain), _PIECE)
        )
    except (binascii.Error, ValueError):
        return None


def _parts(item: InputItem) -> Sequence[Part]:
    match item:
        case Message(content=parts) | FunctionCallOutput(output=parts):
            return parts
    return ()


def _name(filename: str | None) -> str:
    """Return a name in one line, without what could end the line that has it."""
    return "".join(each for each in (filename or "file")[:255] if each.isprintable() and each not in "[]") or "file"
