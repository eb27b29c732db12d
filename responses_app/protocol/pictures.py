"""Pictures as models are shown them: the one form in which images are kept, in memory and in stores."""

from dataclasses import dataclass, field
from typing import ClassVar


@dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True)
class StoredPicture:
    """A picture as models are shown it."""

    digest: str  # SHA-256 in lower-case hexadecimal
    media_type: str  # image/png, image/jpeg or image/webp
    width: int  # pixels
    height: int  # pixels
    content: bytes = field(repr=False)  # the file


@dataclass(frozen=True, slots=True)
class ReadPicture:
    """An image, read, before it has a digest; fields as those of `StoredPicture`."""

    media_type: str
    width: int
    height: int
    content: bytes = field(repr=False)


class PictureUnreadable(Exception):
    """An image cannot be shown to a model; the message says why, to its owner."""

    is_away: ClassVar = False  # it is on the web, and cannot be had from there
