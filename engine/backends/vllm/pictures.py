"""Pictures on their way to vLLM: by name alone where it has them, with their data where it has not.

vLLM keeps what it has made of a picture under a name that its sender chooses (`uuid`): the digest, so that the same
name never means two pictures. It answers an unknown name with an error before it generates, and then gets the data.
"""

from base64 import b64encode
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Sequence
from contextlib import aclosing
from functools import partial
from hashlib import sha256

from engine.backends.threads import in_thread
from engine.backends.vllm.wire import Refusal
from engine.types import GenerationRequest, PictureSource, TokenChunk

MAX_KEPT = 16_384  # names of pictures that one server has, of some 150 bytes each; the least recently used goes first
MISS = "Cache miss for"  # vllm/multimodal/processing/processor.py
# What vLLM says of pictures that it does not take (multimodal/processing/context.py, multimodal/media/image.py).
TOO_MANY = "(s) may be provided in one prompt"
NOT_LOADED = "Failed to load image"

Part = dict[str, object]  # of `content_parts`


def name_of(picture: PictureSource, salt: str | None) -> str:
    """Return a picture's name: two salts share no picture, as they share no block of a prefix cache."""
    return sha256(f"{salt} {picture.digest}".encode()).hexdigest() if salt else picture.digest


class KeptPictures:
    """The names of the pictures that one server has, as far as we know."""

    def __init__(self) -> None:
        self._names: OrderedDict[str, None] = OrderedDict()

    async def streamed(
        self,
        request: GenerationRequest,
        make_body: Callable[..., bytes],
        answer: Callable[[bytes], AsyncGenerator[TokenChunk, None]],
    ) -> AsyncGenerator[TokenChunk, None]:
        """Yield what a server answers that is sent its pictures by name alone, and all data where it lacks any.

        `make_body` takes `content_parts`. Raises as `answer` does, and `PictureGone`.
        """
        names = [name_of(each, request.cache_salt) for each in request.pictures]
        for kept in (self._names, ()):
            data = await _loaded(request.pictures, names, kept)
            # On a thread: it may be a hundred megabytes.
            body = await in_thread(partial(_written, make_body, names, data))
            try:
                async with aclosing(answer(body)) as chunks:
                    begun = False
                    async for chunk in chunks:
                        # With its first chunk it has seen them all.
                        if not begun:
                            self._keep(names)
                            begun = True
                        yield chunk
                return
            except Refusal as refusal:
                if MISS not in refusal.text or None not in data:
                    raise

    def _keep(self, names: Iterable[str]) -> None:
        for name in names:
            self._names[name] = None
            self._names.move_to_end(name)
        while len(self._names) > MAX_KEPT:
            self._names.popitem(last=False)


async def _loaded(pictures: Sequence[PictureSource], names: Sequence[str], kept: Collection[str]) -> list[bytes | None]:
    """Return the data of pictures, None for those that are kept."""
    loaded: dict[str, bytes] = {}  # a picture that is there twice is loaded once
    for picture, name in zip(pictures, names, strict=True):
        if name not in kept and name not in loaded:
            loaded[name] = await picture.load()
    return [loaded.get(name) for name in names]


def _written(make_body: Callable[..., bytes], names: Sequence[str], data: Sequence[bytes | None]) -> bytes:
    return make_body(content_parts=content_parts(names, data))


def content_parts(names: Sequence[str], data: Sequence[bytes | None]) -> list[Part]:
    """Return what `/inference/v1/generate` is told of pictures."""
    return [
        {"type": "image_url", "url": None if content is None else _data_url(content), "uuid": name}
        for name, content in zip(names, data, strict=True)
    ]


def _data_url(content: bytes) -> str:
    kinds = {b"\x89PNG": "png", b"RIFF": "webp"}
    return f"data:image/{kinds.get(content[:4], 'jpeg')};base64,{b64encode(content).decode()}"
