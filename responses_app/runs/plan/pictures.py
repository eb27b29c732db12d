"""Pictures as prompts show them: found by their digests, in memory or in the store.

`PictureCache` has what one process knows of: the pictures of a bounded memory, those that anything here still holds
(the chain of a connection, a run), and behind them the store's. `ShownPictures` are those of one response's prompts.

`PictureReading`: the images of requests and of tools' outputs, as pictures that a model is shown.

An image is a data URL, a URL, which is fetched by the rules of `tools.network`, or a file. What was read once for a
project is known by a digest of its bytes, and not decoded again; what was fetched, for a while, by its URL.

An image of the request itself that cannot be shown is an error which names its place. One of a conversation's earlier
items becomes a note: nobody could send it anew.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from time import monotonic
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary, finalize

from engine.errors import PictureGone
from engine.types import PictureSource
from responses_app.kit.errors import StoreError
from responses_app.protocol.errors import ApiError, JsonObject, invalid_request, overloaded
from responses_app.protocol.items.media import (
    ImageSource,
    Seen,
    Shown,
    as_reason,
    data_of,
    decoded_url,
    images_in,
    omitted_file,
    with_images,
)
from responses_app.protocol.pictures import PictureUnreadable, ReadPicture, StoredPicture
from responses_app.protocol.prompt.rendering import Items
from responses_app.resources.files.fields import FileGone
from responses_app.runs.plan.failures import invalid_image, too_many_images
from responses_app.stores.base import BasePictureStore
from responses_app.tools.network import NetworkError
from responses_app.tools.places import SharedPlaces
from responses_app.tools.settings import PictureSettings

if TYPE_CHECKING:
    from responses_app.resources.files.store import Files

logger = logging.getLogger("respsite.runs")

ReadFor = Callable[[str, bytes | ImageSource], Awaitable[StoredPicture]]  # a project and an image → its picture
NAMED_PICTURES = "named_pictures"  # what has `ShownPictures.named` in a request that is kept
OVERHEAD = 1024  # bytes of memory that a picture takes beside its file, about
_Key = tuple[str, str]  # a project and a digest


def named_in(request: JsonObject | None) -> Mapping[str, str]:
    """Return the `ShownPictures.named` of a request that was kept."""
    named = (request or {}).get(NAMED_PICTURES)
    return {name: str(digest) for name, digest in named.items()} if isinstance(named, dict) else {}


class PictureCache:
    """The pictures that a process finds; `max_bytes` bounds those that it keeps in memory beside what others hold.

    `held_bytes` is what all of them take that are in memory.
    """

    def __init__(self, store: BasePictureStore, *, max_bytes: int) -> None:
        self.store = store
        self._max_bytes = max_bytes
        self._latest: OrderedDict[_Key, StoredPicture] = OrderedDict()  # the one that was asked for last is the last
        self._bytes = 0  # of `_latest`
        self._held: WeakValueDictionary[_Key, StoredPicture] = WeakValueDictionary()  # as long as anybody holds them
        self.held_bytes = 0

    def get(self, project: str, digest: str) -> StoredPicture | None:
        """Return a picture that is in memory."""
        picture = self._held.get((project, digest))
        if picture is not None:
            self.put(project, picture)
        return picture

    def put(self, project: str, picture: StoredPicture) -> StoredPicture:
        """Have a picture in memory, before others; return the one that is there."""
        key = (project, picture.digest)
        held = self._held.get(key)
        if held is None:
            held = self._held[key] = picture
            self.held_bytes += _size(held)
            finalize(held, self._gone, _size(held)).atexit = False
        if self._latest.pop(key, None) is None:
            self._bytes += _size(held)
        self._latest[key] = held
        while self._bytes > self._max_bytes:
            _, oldest = self._latest.popitem(last=False)
            self._bytes -= _size(oldest)
        return held

    def _gone(self, size: int) -> None:
        self.held_bytes -= size

    async def find(self, project: str, digest: str) -> StoredPicture | None:
        """Return a picture, of the store where memory has it no more. Raises `StoreError`."""
        picture = self.get(project, digest)
        if picture is not None:
            return picture
        stored = await self.store.read(project, digest)
        return None if stored is None else self.put(project, stored)

    async def has(self, project: str, digest: str) -> bool:
        """Whether a picture is here. Raises `StoreError`."""
        return self.get(project, digest) is not None or bool(await self.store.known(project, [digest]))


def _size(picture: StoredPicture) -> int:
    return len(picture.content) + OVERHEAD


class ShownPictures:
    """The pictures of one response's prompts, of its `project`."""

    def __init__(self, cache: PictureCache, project: str, read: ReadFor) -> None:
        self._cache = cache
        self._project = project
        self._read = read
        self._own: dict[str, StoredPicture] = {}  # those that came with it, by their digests: they stay in memory
        # The digests of images that the request only names (a URL, a file), "" for one that could not be shown: who
        # goes on with the response shows it the same, whatever there is by then.
        self.named: dict[str, str] = {}

    def held(self, digests: Iterable[str]) -> Sequence[StoredPicture]:
        """Return those of these that it holds in memory."""
        return [self._own[digest] for digest in dict.fromkeys(digests) if digest in self._own]

    def hold(self, pictures: Iterable[StoredPicture]) -> None:
        """Hold pictures for as long as this lives."""
        self._own |= {each.digest: each for each in pictures}

    def release(self) -> None:
        """Hold none any more."""
        self._own.clear()

    def sources(self, digests: Iterable[str]) -> Sequence[PictureSource]:
        """Return what gives an engine these pictures."""
        return [PictureSource(digest, partial(self._load, digest)) for digest in digests]

    async def keep(self, owner: str, digests: Collection[str], *, stored: bool, shown: Iterable[str] = ()) -> None:
        """Look that these pictures are there, and with `stored` keep them for a response that is about to be accepted.

        It keeps others that it has `shown` as well, as far as they are there: what it continues may be deleted while it
        runs. Raises `ApiError` where one is gone, and `StoreError`.
        """
        wanted, others = set(digests), set(shown) if stored else set()
        if not (wanted or others):
            return
        there = set(await self._cache.store.use(self._project, owner, wanted | others)) if stored else set()
        found = {digest: self._own.get(digest) or self._cache.get(self._project, digest) for digest in wanted - there}
        in_memory = {digest: picture for digest, picture in found.items() if picture is not None}
        missing = wanted - there - in_memory.keys()
        if missing and not stored:
            missing -= set(await self._cache.store.known(self._project, missing))
        if missing:
            raise invalid_request(
                "An image of what this request continues is not there any more. Send the conversation as items of "
                "'input', with its images.",
                param="input",
                code="invalid_image",
            )
        self.hold(in_memory.values())
        if stored:
            await self._cache.store.keep(self._project, owner, list(in_memory.values()))
            # From now on they can be read again: many responses may wait in a queue.
            self.release()

    async def show(self, image: bytes | ImageSource, *, owner: str, stored: bool) -> str:
        """Have an image that came while its response runs; return its digest.

        Raises `PictureUnreadable` for what cannot be shown, and `StoreError`.
        """
        picture = await self._read(self._project, image)
        if stored:
            await self._cache.store.keep(self._project, owner, [picture])
        else:
            self.hold([picture])
        return picture.digest

    async def _load(self, digest: str) -> bytes:
        picture = self._own.get(digest)
        if picture is None:
            try:
                picture = await self._cache.find(self._project, digest)
            except StoreError as problem:
                raise PictureGone(f"The image {digest} cannot be read now: the store is away.") from problem
        if picture is None:
            raise PictureGone(f"The image {digest} is not there any more.")
        return picture.content


# Images that are fetched and read at once, each with INPUT_IMAGE_MAX_BYTES at most: of one request, of one project, and
# in this process.
OF_REQUEST, OF_PROJECT, AT_ONCE = 4, 12, 16
READ_SECONDS = 60.0  # for the images of one request, together
MAX_READ_BYTES = 256 * 1024 * 1024  # of the pictures of one request, as models are shown them
MAX_HELD_BYTES = 1024 * 1024 * 1024  # of all pictures in memory, those that responses and connections hold included
URL_SECONDS = 600.0  # that an image is known by its URL
MAX_URLS = 1000  # that are known
_VERSION = b"respsite picture 1"  # of what is made of an image: another one needs another number

Read = Callable[[bytes, bool], Awaitable[ReadPicture]]  # an image, and whether a small one is enough
Fetch = Callable[[str, int], Awaitable[bytes]]  # a URL, and how many bytes at most; raises `NetworkError`


async def no_pictures(content: bytes, low: bool) -> ReadPicture:
    """Read nothing: for a server without a model that sees."""
    raise PictureUnreadable("This server reads no images.")


async def no_fetch(url: str, max_bytes: int) -> bytes:
    """Fetch nothing: for a server that reaches no network."""
    raise NetworkError("This server fetches no images.")


class ImageProblem(PictureUnreadable):
    """An image of a request cannot be shown."""


class NotDownloaded(ImageProblem):
    """An image of the web cannot be had."""

    is_away = True


@dataclass(slots=True)
class _Reading:
    """The images of one request, while they are read."""

    project: str
    shown: ShownPictures  # holds them
    own: asyncio.Semaphore = field(default_factory=partial(asyncio.Semaphore, OF_REQUEST))
    waiting: int = 0  # of them, for images of other requests
    bytes: int = 0  # of all of them so far


class PictureReading:
    """Reads images: `read` decodes one in a process of its own, `fetch` gets one of the web."""

    def __init__(
        self,
        cache: PictureCache,
        files: "Files",
        *,
        read: Read = no_pictures,
        fetch: Fetch = no_fetch,
        settings: PictureSettings = PictureSettings(),  # noqa: B008 - it is frozen
    ) -> None:
        self.cache = cache
        self.settings = settings
        self._files = files
        self._read = read
        self._fetch = fetch
        self._places = SharedPlaces(most=AT_ONCE, share=OF_PROJECT)  # READ_SECONDS bounds how long they are waited for
        self._urls: OrderedDict[tuple[str, str, bool], tuple[str, float]] = OrderedDict()  # → digest, and until when

    def shown(self, project: str, named: Mapping[str, str]) -> ShownPictures:
        """Return what a response of a project is to show: nothing yet, but what it was shown by these names before."""
        shown = ShownPictures(self.cache, project, self.picture)
        shown.named |= named
        return shown

    async def read(self, project: str, before: Items, own: Items, shown: ShownPictures) -> tuple[Items, Items]:
        """Return items whose images are pictures, which `shown` holds. Raises `ApiError`, and `StoreError`."""
        sources = list(images_in(own.parsed, own.raw))
        earlier = [source for source in images_in(before.parsed, before.raw) if not source.is_misplaced]
        if not sources and not earlier:
            return before, own
        most = self.settings.input_images_max
        if len(sources) > most:
            raise too_many_images(f"input{sources[most].path}", len(sources), most)
        misplaced = next((source.path for source in sources if source.is_misplaced), None)
        if misplaced is not None:
            raise invalid_request(
                f"Invalid image at 'input{misplaced}': messages of the user and outputs of tools can have images, and "
                "messages of other roles cannot.",
                param=f"input{misplaced}",
                code="invalid_image",
            )
        reading = _Reading(project, shown)
        seen: dict[int, str] = {}
        try:
            async with asyncio.timeout(READ_SECONDS), asyncio.TaskGroup() as group:
                for source in sources:
                    group.create_task(self._note(reading, source, seen, is_own=True))
                # The latest count, where there are more than are read.
                for source in earlier[max(0, len(earlier) - (most - len(sources))) :]:
                    group.create_task(self._note(reading, source, seen, is_own=False))
        except TimeoutError:
            if reading.waiting:
                raise overloaded("Too many images of other requests are read. Try again.", retry_after=5) from None
            raise invalid_request(
                "The images of this request take too long to read.", param="input", code="invalid_image"
            ) from None
        # One problem is told, the client's first: the others were cancelled with it.
        except BaseExceptionGroup as problems:
            found: Sequence[BaseException] = problems.exceptions
            raise next((each for each in found if isinstance(each, ApiError)), found[0]) from None
        return _shown(before, seen), _shown(own, seen)

    async def of_file(self, project: str, shown: ShownPictures, name: str, content: bytes) -> Shown:
        """Return the picture that a file is, which `shown` holds, or a note. Raises `StoreError`."""
        try:
            picture = await self.of_bytes(project, content)
        except ImageProblem as problem:
            return omitted_file(name, as_reason(problem))
        shown.hold([picture])
        return Shown("", digest=picture.digest)

    async def of_bytes(self, project: str, content: bytes, *, low: bool = False) -> StoredPicture:
        """Return the picture that an image is, known or read. Raises `ImageProblem`, and `StoreError`."""
        if len(content) > self.settings.input_image_max_bytes:
            raise self._too_large()
        digest = await asyncio.to_thread(picture_digest, content, low=low)
        known = await self.cache.find(project, digest)
        if known is not None:
            return known
        try:
            made = await self._read(content, low)
        except PictureUnreadable as problem:
            logger.info("an image of %d bytes could not be read: %s", len(content), problem)
            raise ImageProblem(str(problem)) from None
        picture = StoredPicture(
            digest=digest, media_type=made.media_type, width=made.width, height=made.height, content=made.content
        )
        return self.cache.put(project, picture)

    async def _note(self, reading: _Reading, source: ImageSource, seen: dict[int, str], *, is_own: bool) -> None:
        """Read an image, and note which picture it is."""
        named, name = reading.shown.named, _name(source)
        known = named.get(name)
        if known == "":
            return
        async with self._place(reading):
            if self.cache.held_bytes > MAX_HELD_BYTES:
                raise overloaded("The images of other requests take all memory for images. Try again.", retry_after=5)
            try:
                picture = await self.cache.find(reading.project, known) if known else None
                picture = picture or await self.picture(reading.project, source)
            except ImageProblem as problem:
                if not is_own or source.is_history:
                    logger.info("an image of a conversation cannot be shown: %s", problem)
                    if name:
                        named[name] = ""
                    return
                raise invalid_image(f"input{source.path}", problem) from None
        reading.bytes += len(picture.content)
        if reading.bytes > MAX_READ_BYTES:
            raise invalid_request(
                f"The images of this request have more than {MAX_READ_BYTES // 2**20} MiB together.",
                param="input",
                code="invalid_image",
            )
        reading.shown.hold([picture])
        seen[source.key] = picture.digest
        if name:
            named[name] = picture.digest

    @asynccontextmanager
    async def _place(self, reading: _Reading) -> AsyncIterator[None]:
        """Wait until an image of a request may be read, and have its place for as long as this lasts."""
        async with reading.own:
            # Not given back where it does not come: then the time is over, and somebody looks who has waited.
            reading.waiting += 1
            async with self._places.taken(reading.project):
                reading.waiting -= 1
                yield

    async def picture(self, project: str, source: bytes | ImageSource) -> StoredPicture:
        """Return the picture that an image is. Raises `ImageProblem`, and `StoreError`."""
        if isinstance(source, bytes):
            return await self.of_bytes(project, source)
        if source.is_of_the_web:
            assert source.url is not None, "it is one"
            return await self._of_url(project, source.url, source.low)
        content = await self._content(project, source)
        return await self.of_bytes(project, content, low=source.low)

    async def _content(self, project: str, source: ImageSource) -> bytes:
        most = self.settings.input_image_max_bytes
        if source.file_id is not None:
            try:
                content = await self._files.content(project, source.file_id, max_bytes=most)
            except FileGone:
                raise ImageProblem(f"There is no file '{source.file_id[:80]}', or it has expired.") from None
            if content is None:
                raise self._too_large()
            return content
        text = source.data if source.url is None else source.url
        if text is None:
            raise ImageProblem("It has neither an 'image_url', which is a text, nor a 'file_id'.")
        # Base64 has 4 characters for 3 bytes, and the head of a data URL a few more.
        if len(text) > most * 4 // 3 + 1024:
            raise self._too_large()
        content = await asyncio.to_thread(data_of if source.url is None else decoded_url, text)
        if content is None:
            raise ImageProblem("Its data is not base64.")
        return content

    async def _of_url(self, project: str, url: str, low: bool) -> StoredPicture:
        key = (project, sha256(url.encode(errors="replace")).hexdigest(), low)
        digest, until = self._urls.pop(key, ("", 0.0))
        if until > monotonic() and (known := await self.cache.find(project, digest)) is not None:
            self._urls[key] = (digest, until)
            return known
        try:
            content = await self._fetch(url, self.settings.input_image_max_bytes)
        except NetworkError as problem:
            raise NotDownloaded(str(problem)) from None
        picture = await self.of_bytes(project, content, low=low)
        self._urls[key] = (picture.digest, monotonic() + URL_SECONDS)
        while len(self._urls) > MAX_URLS:
            self._urls.popitem(last=False)
        return picture

    def _too_large(self) -> ImageProblem:
        most = self.settings.input_image_max_bytes
        return ImageProblem(f"It has more than {most:,} bytes (INPUT_IMAGE_MAX_BYTES).")


def _name(source: ImageSource) -> str:
    """Return what stands for an image whose bytes are elsewhere, and may be others later; "" for any other one."""
    if not (source.file_id or source.is_of_the_web):
        return ""
    return sha256(f"{source.low} {source.file_id} {source.url}".encode(errors="replace")).hexdigest()


def picture_digest(content: bytes, *, low: bool = False) -> str:
    """Return what the picture of an image is known by: whoever has the image finds the picture."""
    hashed = sha256(_VERSION + (b" low\0" if low else b"\0"))
    hashed.update(content)
    return hashed.hexdigest()


def _shown(items: Items, seen: Seen) -> Items:
    return Items(with_images(items.parsed, items.raw, seen), items.raw)
