"""Pictures as prompts show them: found by their digests, in memory or in the store.

`PictureCache` has what one process knows of: the pictures of a bounded memory, those that anything here still holds
(the chain of a connection, a run), and behind them the store's. `ShownPictures` are those of one response's prompts.
"""

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from weakref import WeakValueDictionary, finalize

from engine.errors import PictureGone
from engine.types import PictureSource
from responses_app.kit.errors import StoreError
from responses_app.protocol.errors import JsonObject, invalid_request
from responses_app.protocol.items.media import ImageSource
from responses_app.protocol.pictures import StoredPicture
from responses_app.stores.pictures import BasePictureStore

Read = Callable[[str, bytes | ImageSource], Awaitable[StoredPicture]]  # a project and an image → its picture
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

    def __init__(self, cache: PictureCache, project: str, read: Read) -> None:
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
        in_memory = {digest: picture for digest in wanted - there if (picture := self._in_memory(digest)) is not None}
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

    def _in_memory(self, digest: str) -> StoredPicture | None:
        return self._own.get(digest) or self._cache.get(self._project, digest)

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
