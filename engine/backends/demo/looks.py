"""How the demo engine looks at pictures: it says their format, their size and their mean colour."""

import asyncio
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from io import BytesIO

from engine.errors import GenerationFailed
from engine.formats.harmony.messages import pictures_in
from engine.types import PictureSource

MAX_KEPT = 4096  # descriptions, of some 30 characters each; the least recently used goes first
PICTURE_TOKENS = 64  # that a picture counts as in a prompt, whatever its size


class Looks:
    """What has been seen, so that a picture is loaded once however often it is in a prompt."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, str] = OrderedDict()

    async def at(self, pictures: Sequence[PictureSource]) -> Mapping[str, str]:
        """Return what pictures are, by their digests. Raises `GenerationFailed` for one that cannot be read."""
        seen: dict[str, str] = {}
        for picture in pictures:
            if picture.digest not in self._kept:
                self._kept[picture.digest] = await asyncio.to_thread(described, await picture.load())
            self._kept.move_to_end(picture.digest)
            seen[picture.digest] = self._kept[picture.digest]
            if len(self._kept) > MAX_KEPT:
                self._kept.popitem(last=False)
        return seen


def described(content: bytes) -> str:
    """Return what a picture is: `PNG, 8 × 8, mostly #ff0000`. Raises `GenerationFailed`."""
    from PIL import Image  # here: a server's start does not wait for it

    try:
        with Image.open(BytesIO(content)) as image:
            # One pixel that is the mean of all: transparent ones count as what they would be.
            red, green, blue = image.convert("RGB").resize((1, 1), Image.Resampling.BOX).tobytes()
            return f"{image.format}, {image.width} × {image.height}, mostly #{red:02x}{green:02x}{blue:02x}"
    # Pillow's own say for what is not a picture, is cut, or is far too large.
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise GenerationFailed(f"A picture cannot be read: {type(error).__name__}: {error}") from error


def expanded_length(prompt: Sequence[int]) -> int:
    """Return how long a prompt is with `PICTURE_TOKENS` for each picture."""
    return len(prompt) + sum(PICTURE_TOKENS - (end - begin) for begin, end, _ in pictures_in(prompt))
