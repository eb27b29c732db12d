"""Files and images in items, as the model reads and sees them.

    {"type": "input_file", "file_id": "file-…"}   ->   [file: notes.txt]
                                                       what is in it
                                                       [end of the file: notes.txt]

A file that cannot be shown becomes a note: it stays in an agent's history, and is not an error there (a file that has
been deleted, say).

    {"type": "input_image", "image_url": "https://…"}   ->   SeenImage(digest="9f86…")

An image may stand in a message, in the output of any kind of call and among what code has drawn, and may be a message's
file. The model sees a picture in its place, by its digest. Items of other tools than functions are kept as JSON
(`PassedThrough`): there a `PicturePart` stands in the place of the part, which no client can send.
"""

import base64
import binascii
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeGuard

from engine.formats.base import PicturePart
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.items.items import (
    FunctionCall,
    FunctionCallOutput,
    InputItem,
    MediaPart,
    Message,
    OmittedFile,
    Part,
    PassedThrough,
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
        match item:
            case Message(content=parts) | FunctionCallOutput(output=parts):
                yield from filter(is_file, parts)


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


def _name(filename: str | None) -> str:
    """Return a name in one line, without what could end the line that has it."""
    return "".join(each for each in (filename or "file")[:255] if each.isprintable() and each not in "[]") or "file"


IMAGE_PARTS = ("input_image", "computer_screenshot", "image")
_BEGINNINGS = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF87a", b"GIF89a")


@dataclass(frozen=True, slots=True)
class ImageSource:
    """An image in an item, and where its bytes are: one of the three is there, or its client has forgotten it."""

    path: str  # where it stands among the items, as errors name it: `[2].content[0]`
    key: int  # the identity of its part, which nobody changes while a request is read
    url: str | None = field(default=None, repr=False)  # of the web, or a data URL
    file_id: str | None = None
    data: str | None = field(default=None, repr=False)  # base64
    low: bool = False  # a small picture is enough (`detail`)
    is_misplaced: bool = False  # it stands where models are shown none: in what the developer or the model has said
    is_history: bool = False  # a server made it, and its client sends it back: a note will do where it cannot be shown

    @property
    def is_of_the_web(self) -> bool:
        """Whether its bytes are to be fetched."""
        return self.url is not None and self.url[:5].lower() != "data:"


Seen = Mapping[int, str]  # the digests of images, by the identities of their parts


def is_image(content: bytes) -> bool:
    """Whether a file is an image, as far as its first bytes tell."""
    return content.startswith(_BEGINNINGS) or (content[:4] == b"RIFF" and content[8:12] == b"WEBP")


def images_in(items: Sequence[InputItem], raw: Sequence[JsonObject]) -> Iterator[ImageSource]:
    """Yield the images of items, in their order, without those that are files."""
    for place, (item, kept) in enumerate(zip(items, raw, strict=True)):
        match item:
            case Message(role=role, content=parts):
                for source in _of_parts(parts, f"[{place}].content"):
                    yield source if role == "user" else replace(source, is_misplaced=True)
            case FunctionCallOutput(output=parts):
                yield from _of_parts(parts, f"[{place}].output")
            case FunctionCall(output=list() as output):
                yield from _of_list(output, f"[{place}].output")
            case PassedThrough():
                yield from _of_item(kept, f"[{place}]")


def with_images(items: Sequence[InputItem], raw: Sequence[JsonObject], seen: Seen) -> list[InputItem]:
    """Return items with the images that are `seen` in their places."""
    return [_seen(item, kept, seen) for item, kept in zip(items, raw, strict=True)]


def images_in_output(output: Sequence[JsonObject]) -> Iterator[ImageSource]:
    """Yield the images of one output, whose paths begin in it."""
    return _of_list(output, "")


def decoded_url(url: str) -> bytes | None:
    """Return what a data URL holds, None where that is not base64."""
    return decoded(url[url.find(",") + 1 :])


def _of_parts(parts: Sequence[Part], at: str) -> Iterator[ImageSource]:
    for place, part in enumerate(parts):
        # A file that is an image is seen already.
        if isinstance(part, MediaPart) and part.type in IMAGE_PARTS and not isinstance(part, SeenImage):
            found = list(_source(part, f"{at}[{place}]", part.image_url, part.file_id, part.detail))
            # One that says nowhere what it is, is told of, too.
            yield from found or [ImageSource(f"{at}[{place}]", id(part))]


def _of_item(item: JsonObject, at: str) -> Iterator[ImageSource]:
    kind, output = item.get("type"), item.get("output")
    if kind == "image_generation_call":
        if isinstance(item.get("result"), str) and item.get("error") is None:
            yield ImageSource(f"{at}.result", id(item), data=str(item["result"]), is_history=True)
    elif kind == "code_interpreter_call":
        for source in _of_list(item.get("outputs"), f"{at}.outputs"):
            # A file would be read for whoever names it: the scopes of keys are about other places.
            if source.file_id is None:
                yield replace(source, is_history=True)
    elif isinstance(output, dict):
        yield from _of_dict(output, f"{at}.output")
    else:
        yield from _of_list(output, f"{at}.output")


def _of_list(parts: object, at: str) -> Iterator[ImageSource]:
    for place, part in enumerate(parts if isinstance(parts, list) else ()):
        if isinstance(part, dict):
            yield from _of_dict(part, f"{at}[{place}]")


def _of_dict(part: JsonObject, at: str) -> Iterator[ImageSource]:
    if part.get("type") in IMAGE_PARTS:
        url = part.get("image_url", part.get("url"))
        # What requests may name a file by, keys have scopes for: an `image` of another API is none of that.
        file_id = part.get("file_id") if part["type"] != "image" else None
        yield from _source(part, at, url, file_id, part.get("detail"))


def _source(part: object, at: str, url: Any, file_id: object, detail: object) -> Iterator[ImageSource]:
    # As chats have it, and some clients here too: `{"image_url": {"url": …}}`.
    url = url.get("url") if isinstance(url, dict) else url
    low = detail == "low"
    if isinstance(url, str) and url:
        yield ImageSource(at, id(part), url=url, low=low)
    elif isinstance(file_id, str) and file_id:
        yield ImageSource(at, id(part), file_id=file_id, low=low)


def _seen(item: InputItem, raw: JsonObject, seen: Seen) -> InputItem:
    match item:
        case Message(content=parts) if _has(parts, seen):
            return item.model_copy(update={"content": [_seen_part(part, seen) for part in parts]})
        case FunctionCallOutput(output=parts) if _has(parts, seen):
            return item.model_copy(update={"output": [_seen_part(part, seen) for part in parts]})
        case FunctionCall(output=list() as output) if _has(output, seen):
            return item.model_copy(update={"output": _seen_list(output, seen)})
        case PassedThrough():
            changed = _seen_item(raw, seen)
            return item if changed is raw else item.with_seen(changed)
    return item


def _seen_part(part: Part, seen: Seen) -> Part:
    digest = seen.get(id(part))
    return part if digest is None else SeenImage(type="input_image", digest=digest)


def _seen_item(item: JsonObject, seen: Seen) -> JsonObject:
    if id(item) in seen:
        return {**item, "result": PicturePart(seen[id(item)])}
    changed = {
        name: _seen_list(value, seen)
        for name in ("output", "outputs")
        if isinstance(value := item.get(name), list) and _has(value, seen)
    }
    if id(item.get("output")) in seen:
        changed["output"] = PicturePart(seen[id(item["output"])])
    return {**item, **changed} if changed else item


def _seen_list(parts: Sequence[object], seen: Seen) -> object:
    return [PicturePart(seen[id(part)]) if id(part) in seen else part for part in parts]


def _has(parts: Sequence[object], seen: Seen) -> bool:
    return any(id(part) in seen for part in parts)
