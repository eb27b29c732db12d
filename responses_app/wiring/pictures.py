"""What reads the images of requests: a process that decodes, and what fetches by the rules of the network."""

from typing import TYPE_CHECKING

from responses_app.protocol.pictures import ReadPicture
from responses_app.runs.plan.pictures import PictureCache, PictureReading
from responses_app.runs.plan.stores import Stores
from responses_app.settings.conf import Settings
from responses_app.tools.network import Network, NetworkError
from responses_app.tools.reading.processes import PictureReader

if TYPE_CHECKING:
    from responses_app.tools.browser.fetching import Fetcher

FETCH_SECONDS = 20.0  # for one image of the web, redirects included


class Pictures:
    """The reading of images, and what it holds open; nothing is started before an image comes."""

    def __init__(self, settings: Settings, stores: Stores) -> None:
        self._reader = PictureReader(max_pixels=settings.input_image_max_pixels)
        self._network = Network("INPUT_IMAGES_ALLOWED_HOSTS", settings.input_images_allowed_hosts)
        self._fetcher: Fetcher | None = None  # made for the first image of the web
        self.reading = PictureReading(
            PictureCache(stores.pictures, max_bytes=settings.input_images_memory_bytes),
            stores.files,
            read=self._read,
            fetch=self._fetch,
            settings=settings,
        )

    async def aclose(self) -> None:
        """End its processes and connections."""
        await self._reader.aclose()
        if self._fetcher is not None:
            await self._fetcher.aclose()

    async def _read(self, content: bytes, low: bool) -> ReadPicture:
        return await self._reader.read(content, low=low)

    async def _fetch(self, url: str, max_bytes: int) -> bytes:
        # Late: the import takes a while, and most servers fetch nothing.
        from responses_app.tools.browser.fetching import Fetcher, FetchLimits

        if self._fetcher is None:
            self._fetcher = Fetcher(self._network)
        limits = FetchLimits(seconds=FETCH_SECONDS, max_bytes=max_bytes, whole=True)
        fetched = await self._fetcher.get(url, limits, accept="image/png, image/jpeg, image/webp, image/gif")
        if fetched.status != 200:
            raise NetworkError(f"Its server answered with status {fetched.status}.")
        return fetched.body
