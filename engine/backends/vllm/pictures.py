"""Pictures on their way to vLLM: by name alone where it has them, with their data where it has not.

vLLM keeps what it has made of a picture under a name that its sender chooses (`uuid`): the digest, so that the same
name never means two pictures. It answers an unknown name with an error before it generates, and then gets the data.

`Expansions` learns how long prompts are once an engine has put a picture's own tokens in the place of the one that
stands for it.
"""

import logging
import re
from base64 import b64encode
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Sequence
from contextlib import aclosing
from functools import partial
from hashlib import sha256

from engine.backends.client import Refusal
from engine.errors import EngineError, PicturesRefused, PromptTooLong
from engine.threads import in_thread
from engine.types import GenerationRequest, PictureSource, TokenChunk

MAX_KEPT = 16_384  # names of pictures that one server has, of some 150 bytes each; the least recently used goes first
MAX_LOADED = 512 * 1024 * 1024  # bytes of the pictures of one prompt that are sent at once
MAX_REFUSALS = 3  # after which a server is taken to keep no pictures
MISS = "Cache miss for"  # vllm/multimodal/processing/processor.py
# What vLLM says of pictures that it does not take (multimodal/processing/context.py, multimodal/media/image.py).
TOO_MANY = "(s) may be provided in one prompt"
NOT_LOADED = "Failed to load image"
TOO_LONG = ("maximum model length", "maximum context length")  # vllm/v1/engine/input_processor.py, api_utils.py
_LENGTH = re.compile(r"\(length (\d{1,9})\)")

logger = logging.getLogger("respsite.engine")

Part = dict[str, object]  # of `content_parts`


def name_of(picture: PictureSource, salt: str | None) -> str:
    """Return a picture's name: two salts share no picture, as they share no block of a prefix cache."""
    return sha256(f"{salt} {picture.digest}".encode()).hexdigest() if salt else picture.digest


class KeptPictures:
    """The names of the pictures that one vLLM has, as far as we know."""

    def __init__(self) -> None:
        self._names: OrderedDict[str, None] = OrderedDict()
        self._keeps = True  # else it wants all data each time: it has no cache (--mm-processor-cache-gb 0)
        self._refusals = 0  # of names alone in a row, in other words than a cache's

    async def data_of(
        self, pictures: Sequence[PictureSource], names: Sequence[str], *, every: bool
    ) -> list[bytes | None]:
        """Return the data of pictures, None for those that it has, unless `every` is wanted.

        Raises `PictureGone`, and `PicturesRefused` where they are too many bytes.
        """
        kept: Collection[str] = () if every or not self._keeps else self._names
        loaded: dict[str, bytes] = {}  # a picture that is there twice is loaded once
        left = MAX_LOADED
        for picture, name in zip(pictures, names, strict=True):
            if name not in kept and name not in loaded:
                loaded[name] = await picture.load()
                left -= len(loaded[name])
                if left < 0:
                    raise PicturesRefused(
                        f"The images of this conversation have more than {MAX_LOADED // 2**20} MiB together. Begin a "
                        "new one with some of them."
                    )
        return [loaded.get(name) for name in names]

    def keep(self, names: Iterable[str]) -> None:
        """Note that it has seen these."""
        for name in names:
            self._names[name] = None
            self._names.move_to_end(name)
        while len(self._names) > MAX_KEPT:
            self._names.popitem(last=False)

    async def streamed(
        self,
        request: GenerationRequest,
        make_body: Callable[..., bytes],
        answer: Callable[[bytes], AsyncGenerator[TokenChunk, None]],
    ) -> AsyncGenerator[TokenChunk, None]:
        """Yield what a server answers that is sent its pictures by name alone, and all data where that does not do.

        `make_body` takes `content_parts`. Raises as `answer` does, and `PictureGone`.
        """
        names = [name_of(each, request.cache_salt) for each in request.pictures]
        before: Refusal | None = None
        for last in (False, True):
            data = await self.data_of(request.pictures, names, every=last)
            # On a thread: it may be a hundred megabytes.
            body = await in_thread(partial(_written, make_body, names, data))
            begun = False
            try:
                async with aclosing(answer(body)) as chunks:
                    async for chunk in chunks:
                        # With its first chunk it has seen them all.
                        if not begun:
                            begun = True
                            self._seen(names, by_name=None in data, behind=before)
                        yield chunk
                return
            except Refusal as refusal:
                # Said of the prompt as it is, it would be said again.
                is_meant = any(words in refusal.text for words in (*TOO_LONG, TOO_MANY))
                if begun or is_meant or None not in data or refusal.status not in (400, 500):
                    raise
                before = refusal

    def _seen(self, names: Iterable[str], *, by_name: bool, behind: Refusal | None) -> None:
        self.keep(names)
        if by_name:
            self._refusals = 0
        # Its renderer and its core each keep pictures, and can differ for a moment; always is something else.
        if behind is not None and MISS not in behind.text:
            self._refusals += 1
            if self._refusals == MAX_REFUSALS:
                logger.warning("every request is sent the data of its images: this vLLM keeps none (%s)", behind)
                self._keeps = False


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


def refused(text: str, *, prompt_tokens: int, max_model_len: int) -> EngineError | None:
    """Return what vLLM's words mean that may be about pictures; None where they are about something else."""
    if any(words in text for words in TOO_LONG):
        # It says how long the prompt is with its pictures.
        told = _LENGTH.search(text)
        longest = max(prompt_tokens, int(told[1]) if told else 0)
        return PromptTooLong(prompt_tokens=longest, max_model_len=max_model_len)
    if TOO_MANY in text or NOT_LOADED in text:
        return PicturesRefused(f"The engine does not take the images of this request: {text}")
    return None


MAX_KNOWN = 16_384  # pictures, of some 200 bytes each; the least recently used goes first


class Expansions:
    """Lengths that an engine has told: only that of a whole prompt, from which that of each picture follows.

    Pictures that come together share what they add. So the sum is right for every later prompt that has all of them,
    as every later turn of a conversation has.
    """

    def __init__(self) -> None:
        self._added: OrderedDict[str, float] = OrderedDict()  # tokens, by digests

    def of(self, pictures: Iterable[PictureSource]) -> int:
        """Return how many tokens these add to a prompt that has one for each; those that are not known add none."""
        return round(sum(self._added.get(each.digest, 0.0) for each in pictures))

    def learn(self, pictures: Sequence[PictureSource], added: int) -> None:
        """Note how many tokens these have added to a prompt."""
        unknown = [each.digest for each in pictures if each.digest not in self._added]
        rest = added - sum(self._added.get(each.digest, 0.0) for each in pictures)
        # Where all are known and it is not their sum, they were learned with others: each bears its part of that.
        for digest in unknown or [each.digest for each in pictures]:
            self._added[digest] = max(0.0, self._added.get(digest, 0.0) + rest / len(unknown or pictures))
        for each in pictures:
            self._added.move_to_end(each.digest)
        while len(self._added) > MAX_KNOWN:
            self._added.popitem(last=False)
