"""`image_generation` as requests declare it, and the images that a conversation has for it to edit."""

import re
from collections.abc import Iterator, Sequence
from typing import Annotated, ClassVar, Literal, NamedTuple

from pydantic import Field, StringConstraints

from responses_app.protocol.errors import JsonObject, invalid_request, unsupported_parameter
from responses_app.protocol.fields import ClientModel, Refused, ToolModel
from responses_app.protocol.validation import validate

MAX_PARTIAL_IMAGES = 3
_SIZE = r"^(auto|[1-9][0-9]{1,4}x[1-9][0-9]{1,4})$"
_DATA_URL = re.compile(r"data:image/[a-z0-9.+-]+;base64,", re.IGNORECASE)
_NO_URLS = "Give it as a data URL (data:image/png;base64,…) in 'image_url', or as a 'file_id'."


class SentImage(NamedTuple):
    """An image that a client has sent: its base64, or the id of a file."""

    data: str = ""
    file_id: str = ""


class _Mask(ClientModel):
    """Which part of an image is edited."""

    image_url: str | None = None
    file_id: str | None = None


class ImageGeneration(ToolModel):
    """The tool; fields that only other versions have are accepted and echoed."""

    action: Literal["generate", "edit", "auto"] | None = None
    background: Literal["transparent", "opaque", "auto"] | None = None
    input_fidelity: Literal["high", "low"] | None = None
    input_image_mask: _Mask | None = None
    model: Annotated[str, StringConstraints(min_length=1, max_length=256)] | None = None
    moderation: Literal["auto", "low"] | None = None
    output_compression: int | None = Field(default=None, ge=0, le=100)
    output_format: Literal["png", "webp", "jpeg", "gif", "svg"] | None = None
    partial_images: int | None = Field(default=None, ge=0, le=MAX_PARTIAL_IMAGES)
    quality: Literal["low", "medium", "high", "xhigh", "max", "auto"] | None = None
    size: Annotated[str, StringConstraints(pattern=_SIZE)] | None = None

    refused: ClassVar = dict.fromkeys(  # what only OpenAI's own models have
        ("complexity", "frame_count", "frame_duration_ms", "svg"),
        Refused("The image service of this server does not have it."),
    )


def echoed_image_tool(tool: JsonObject, at: str) -> JsonObject:
    """Validate image generation as a tool of a request; return it as it is echoed. Raises `ApiError`."""
    declared = validate(ImageGeneration, tool, at=at)
    if declared.output_format in ("gif", "svg"):
        raise unsupported_parameter(f"{at}.output_format", "Images are 'png', 'jpeg' or 'webp' here.")
    if declared.input_image_mask is not None:
        _check_mask(declared.input_image_mask, f"{at}.input_image_mask")
    return tool


def sent_image(part: JsonObject) -> SentImage | None:
    """Return the image of a part, or of a mask; None where it is at a URL, which nobody opens."""
    url, file_id = part.get("image_url"), part.get("file_id")
    found = _DATA_URL.match(url) if isinstance(url, str) else None
    if found is not None and isinstance(url, str):
        return SentImage(data=url[found.end() :])
    return SentImage(file_id=file_id) if isinstance(file_id, str) and file_id else None


def newest_images(items: Sequence[JsonObject]) -> Iterator[JsonObject]:
    """Yield what has images that can be edited, the newest first: calls that made one, and messages of the user.

    Of a call there may be its id alone: `chain.kept_items` keeps no more.
    """
    for item in reversed(items):
        if item.get("type") == "image_generation_call":
            if item.get("status") != "failed" and (item.get("result") or item.get("id")):
                yield item
        elif item.get("role") == "user" and sent_images(item):
            yield item


def is_image_by_id(item: JsonObject) -> bool:
    """Whether an item is a call that stands for the image it made by its id alone."""
    return item.get("type") == "image_generation_call" and bool(item.get("id")) and not item.get("result")


def sent_images(message: JsonObject) -> list[SentImage]:
    """Return the images of a message, without those at a URL."""
    content = message.get("content")
    parts = [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []
    found = (sent_image(part) for part in parts if part.get("type") == "input_image")
    return [image for image in found if image is not None]


def _check_mask(mask: _Mask, at: str) -> None:
    if sent_image(mask.model_dump()) is None:
        raise invalid_request(
            f"Invalid value for '{at}.image_url': {_NO_URLS}", param=f"{at}.image_url", code="invalid_value"
        )
