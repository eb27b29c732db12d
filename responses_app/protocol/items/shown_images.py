"""The images in items, as the model sees them: in their places stand pictures, by their digests.

    {"type": "input_image", "image_url": "https://…"}   ->   SeenImage(digest="9f86…")

They stand in messages, in outputs of all kinds of calls, in what code has drawn, and may be a message's file. Items of
other tools than functions are kept as JSON (`PassedThrough`): there a `PicturePart` stands in the place of the part,
which no client can send.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from engine.formats.base import PicturePart
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.items.items import (
    FunctionCall,
    FunctionCallOutput,
    InputItem,
    MediaPart,
    Message,
    Part,
    PassedThrough,
    SeenImage,
)
from responses_app.protocol.items.shown_files import decoded

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
    """Yield the images of items, in their order; files are not among them (`shown_files`)."""
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
