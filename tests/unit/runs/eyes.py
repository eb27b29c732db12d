"""What tests of images share: what reads and fetches them, and what the model was shown."""

import asyncio

from responses_app.protocol.errors import JsonObject
from responses_app.protocol.pictures import PictureUnreadable, ReadPicture
from responses_app.tools.network import NetworkError
from responses_app.tools.reading.pictures import answer
from tests.kit.fakes import Site
from tests.kit.pictures import data_url, opened, picture

RED, BLUE = picture("#ff0000"), picture("#0000ff")


def image(content: bytes = RED, **fields: object) -> JsonObject:
    """Return an image as a message has it."""
    return {"type": "input_image", "image_url": data_url(content), **fields}


def message(*parts: JsonObject) -> JsonObject:
    """Return a message of the user's."""
    return {"role": "user", "content": [{"type": "input_text", "text": "See:"}, *parts]}


class Eyes:
    """Reads pictures in this process, and counts them; has a web of its own."""

    def __init__(self) -> None:
        self.read_count = 0
        self.fetched: list[str] = []
        self.web: dict[str, bytes] = {"https://here.example/red.png": RED}

    async def read(self, content: bytes, low: bool) -> ReadPicture:
        self.read_count += 1
        made = answer({"low": low, "max_pixels": 1_000_000}, content)
        if "message" in made:
            raise PictureUnreadable(made["message"])
        return ReadPicture(**made)

    async def fetch(self, url: str, max_bytes: int) -> bytes:
        self.fetched.append(url)
        if url not in self.web:
            raise NetworkError("The host is not on the public internet.")
        return self.web[url]


async def shown(site: Site, turn: int = -1) -> list[str]:
    """Return the colours of the pictures that the engine was given, as it finds them now."""
    contents = await asyncio.gather(*(source.load() for source in site.engine.requests[turn].pictures))
    return [f"#{opened(each).convert('RGB').crop((0, 0, 1, 1)).tobytes().hex()}" for each in contents]
