"""Pictures in items: which of them a page shows, as thumbnails that a click makes large.

A page shows what an item holds itself, as a data URL of a known type; it never asks another server for a picture.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

# For example `data:image/png;base64,iVBORw0K…`. SVG is left out: it may hold scripts.
_PICTURE = re.compile("data:image/(?:png|jpeg|webp|gif);base64,[A-Za-z0-9+/]+={0,2}")
MOST = 4_000_000  # characters of data URLs that all pictures of a page may have

PictureOf = Callable[[Mapping[str, Any]], str | None]  # a part of an item → its picture as a data URL, if it has one


class Picture(NamedTuple):
    """A picture on a page."""

    url: str  # a data URL
    alt: str  # what stands for it where it is not seen
    number: int  # of its page's pictures; a page that grows keeps it


class PictureRoom:
    """What is left of a page for pictures."""

    def __init__(self, characters: int = MOST) -> None:
        self._left = characters
        self._hung = 0  # pictures so far: the last one's number

    def hang(self, url: str, alt: str) -> Picture | None:
        """Return a picture as the page shows it; None where there is no room, or where it is none of a known type."""
        if len(url) > self._left or not _PICTURE.fullmatch(url):
            return None
        self._left -= len(url)
        self._hung += 1
        return Picture(url, alt, self._hung)


def own_picture(part: Mapping[str, Any]) -> str | None:
    """Return what a part holds itself, as OpenAI's API and MCP have images; whether it is one, `hang` finds out."""
    match part:
        case {"type": "input_image" | "computer_screenshot", "image_url": str(url)}:
            pass
        case {"type": "input_file", "file_data": str(url)}:
            pass
        case {"type": "image", "url": str(url)}:  # of the code interpreter
            pass
        case {"type": "image", "mimeType": str(kind), "data": str(data)}:  # of MCP
            url = f"data:{kind};base64,{data}"
        case _:
            return None
    return url if url.startswith("data:") else None
