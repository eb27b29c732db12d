"""What a fake vLLM server does with pictures, as vLLM 0.32 was seen to do it."""

import io
import re
from base64 import b64decode
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, NoReturn

from PIL import Image


class NotSeen(Exception):
    """The server answers with an error before it generates."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


def blind(model: str) -> NoReturn:
    """Answer as a server whose model has no eyes."""
    raise NotSeen(f"{model} is not a multimodal model")


@dataclass(slots=True)
class Eyes:
    """How a model sees: `token` stands for a picture in a prompt, and becomes `tokens`."""

    token: int
    tokens: Sequence[int]
    has_cache: bool = True  # else every picture has to come with its data (--mm-processor-cache-gb 0)
    room: int = 10**6  # how many pictures it keeps; the least recently used goes first
    limit: int = 10**6  # --limit-mm-per-prompt
    kept: OrderedDict[str, bytes] = field(default_factory=OrderedDict)  # what was seen, by the names it came under
    sent: list[str] = field(default_factory=list)  # names of pictures that came with their data, in order
    hits: int = 0  # pictures that came by name alone, and were known

    def expanded(self, prompt: list[int], parts: list[dict[str, Any]]) -> list[int]:
        """Return a prompt with the pictures in it. Raises `NotSeen`."""
        if len(parts) > self.limit:
            raise NotSeen(f"At most {self.limit} image(s) may be provided in one prompt.")
        data = [_data(part) for part in parts]
        for index, (part, content) in enumerate(zip(parts, data, strict=True)):
            if content is None and not self.has_cache:
                raise NotSeen("'NoneType' object has no attribute 'size'", 500)
            if part["uuid"] not in self.kept and content is None:
                raise NotSeen(f"Cache miss for image at index {index} but data is not provided.")
        if len(parts) > prompt.count(self.token):
            raise NotSeen("Failed to apply prompt replacement for mm_items['image'][0]", 500)
        for part, content in zip(parts, data, strict=True):
            self._look(part["uuid"], content)
        seen = iter([self._seen(self.kept[part["uuid"]]) for part in parts])
        made: list[int] = []
        for token in prompt:
            # What is more than there are pictures stays as it is, and nothing is said of it.
            made += next(seen, [token]) if token == self.token else [token]
        self._forget()
        return made

    @property
    def size(self) -> int:
        """How many tokens a picture becomes."""
        return len(self._seen(b""))

    def _seen(self, content: bytes) -> list[int]:
        # Two bytes, so that what a model says of a prompt depends on what is to be seen.
        return [*self.tokens, *sha256(content).digest()[:2]]

    def _look(self, name: str, content: bytes | None) -> None:
        self.hits += content is None
        if content is not None:
            self.sent.append(name)
            # What is known by a name stays what it is, whatever comes under it.
            self.kept.setdefault(name, content)
        self.kept.move_to_end(name)

    def _forget(self) -> None:
        while len(self.kept) > self.room:
            self.kept.popitem(last=False)


def _data(part: dict[str, Any]) -> bytes | None:
    assert part.keys() == {"type", "url", "uuid"}, part
    assert part["type"] == "image_url"
    if part["url"] is None:
        return None
    media = re.fullmatch(r"data:image/(png|jpeg|webp);base64,(.*)", part["url"])
    assert media, part["url"][:40]
    content = b64decode(media[2], validate=True)
    try:
        with Image.open(io.BytesIO(content)) as image:
            image.load()
            assert str(image.format).lower() == media[1]
    except OSError as error:
        raise NotSeen(f"Failed to load image: {error}") from error
    return content
