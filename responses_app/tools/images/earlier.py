"""`EarlierImages`: the images that an edit begins with: of the input, of the response itself, of what was made before.

The newest that the conversation has are meant: those that the user has sent in one message, or the one that was made.
What was made is found by its item's id: in this process while it is fresh, which is all there is of what is not stored,
else in the store.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

from responses_app.protocol.errors import JsonObject
from responses_app.protocol.requests.image_tools import SentImage, newest_images, sent_images
from responses_app.stores.base import StoreError
from responses_app.stores.files import BaseFileStore, FileGone
from responses_app.tools.images.answers import Image, ImageFailed, image_in, image_of, too_large
from responses_app.tools.images.settings import ImageSettings

MAX_BEGIN_WITH = 4  # images of one message that an edit begins with
MAX_KEPT_BYTES = 64 * 1024 * 1024  # of the images of a process, the newest
KEPT_SECONDS = 3600.0

FindItems = Callable[[str, Collection[str]], Awaitable[Mapping[str, JsonObject]]]  # of a project, by their ids


class EarlierImages:
    """Of a process. `stored` finds stored items, `files` are those of clients, `settings` bound an image."""

    def __init__(self, stored: FindItems, files: BaseFileStore, settings: ImageSettings) -> None:
        self._stored = stored
        self._files = files
        self._max_bytes = settings.image_max_bytes
        self._kept: OrderedDict[tuple[str, str], tuple[float, Image]] = OrderedDict()  # by project and item
        self._size = 0

    def keep(self, project: str, item_id: str, image: Image) -> None:
        """Keep what was made, for a while."""
        now = time.monotonic()
        _, before = self._kept.pop((project, item_id), (now, None))  # a call that was made again
        self._size -= len(before.content) if before is not None else 0
        self._kept[project, item_id] = now, image
        self._size += len(image.content)
        while self._kept:
            made_at, oldest = next(iter(self._kept.values()))
            if self._size <= MAX_KEPT_BYTES and now - made_at <= KEPT_SECONDS:
                break
            self._kept.popitem(last=False)
            self._size -= len(oldest.content)

    async def newest(self, project: str, items: Sequence[JsonObject]) -> list[Image]:
        """Return the newest images of items, none where there are none. Raises `ImageFailed` where one is broken."""
        for item in newest_images(items):
            if item.get("type") == "image_generation_call":
                made = await self._made(project, item)
                if made is not None:
                    return [made]
                continue
            return [await self.read(project, sent) for sent in sent_images(item)[-MAX_BEGIN_WITH:]]
        return []

    async def read(self, project: str, sent: SentImage) -> Image:
        """Return an image that a client has sent. Raises `ImageFailed`."""
        return await self._of_file(project, sent.file_id) if sent.file_id else await self._of_data(sent.data)

    async def _of_file(self, project: str, file_id: str) -> Image:
        try:
            content = await self._files.content(project, file_id, max_bytes=self._max_bytes)
        except FileGone:
            raise ImageFailed(
                "The file of an image of the input is gone, or never was.", code="file_not_found"
            ) from None
        except StoreError:
            raise _away() from None
        if content is None:
            raise too_large(self._max_bytes)
        image = image_in(content)
        if image is None:
            raise ImageFailed(_NO_IMAGE, code="invalid_image")
        return image

    async def _of_data(self, data: str) -> Image:
        try:
            return await asyncio.to_thread(image_of, data, max_bytes=self._max_bytes)
        except ImageFailed as broken:
            is_large = broken.code == "image_too_large"
            message = str(broken) if is_large else _NO_IMAGE
            raise ImageFailed(message, code=broken.code if is_large else "invalid_image") from None

    async def _made(self, project: str, item: JsonObject) -> Image | None:
        if isinstance(item.get("result"), str):
            return await self._of_data(str(item["result"]))
        item_id = str(item["id"])
        _, image = self._kept.get((project, item_id), (0.0, None))
        if image is not None:
            return image
        try:
            stored = (await self._stored(project, [item_id])).get(item_id, {})
        except StoreError:
            raise _away() from None
        return await self._of_data(str(stored["result"])) if isinstance(stored.get("result"), str) else None


_NO_IMAGE = "An image of the input is neither PNG, nor JPEG, nor WebP."


def _away() -> ImageFailed:
    return ImageFailed("The image to begin with cannot be read now: the store is away.", code="store_unavailable")
