"""Pictures as a server keeps them for its engines."""

from collections.abc import Iterable
from functools import partial
from hashlib import sha256

from engine.errors import PictureGone
from engine.formats.base import PicturePart
from engine.types import PictureSource


class Gallery:
    """Pictures by their digests. `loaded` are those that an engine has asked for, again if it did so again."""

    def __init__(self) -> None:
        self._kept: dict[str, bytes] = {}
        self.loaded: list[str] = []

    def add(self, content: bytes) -> PicturePart:
        """Keep a picture, and return its place in a message."""
        digest = sha256(content).hexdigest()
        self._kept[digest] = content
        return PicturePart(digest)

    def sources(self, digests: Iterable[str]) -> tuple[PictureSource, ...]:
        """Return what a request has for pictures; those that are not kept are gone when they are loaded."""
        return tuple(PictureSource(digest, partial(self._load, digest)) for digest in digests)

    async def _load(self, digest: str) -> bytes:
        self.loaded.append(digest)
        if digest not in self._kept:
            raise PictureGone(f"The picture {digest} is not there any more.")
        return self._kept[digest]
