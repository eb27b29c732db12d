"""What tests of `image_generation` share: a model that calls for images, and what comes of it."""

import json
from collections.abc import Callable

from engine.formats.harmony.encoding import decode_tokens
from responses_app.protocol.errors import JsonObject
from tests.kit.fakes import ANSWER, Site
from tests.kit.image_server import as_base64
from tests.kit.oracle import validate_event

DRAW: JsonObject = {"type": "image_generation"}
DRAWN = "[The image was made, and is shown to the user: png, 1024x1024.]"
OF_USER: JsonObject = {
    "role": "user",
    "content": [
        {"type": "input_text", "text": "hi"},
        {"type": "input_image", "image_url": f"data:image/png;base64,{as_base64('a photo')}"},
    ],
}
SiteOf = Callable[..., Site]


def call(action: str = "generate", prompt: str = "a cat") -> str:
    arguments = json.dumps({"prompt": prompt})
    return f"<|channel|>commentary to=image_generation.{action} <|constrain|>json<|message|>{arguments}<|call|>"


def play(site: Site, *turns: str) -> None:
    """Let the model of a site say other turns, from the first on."""
    site.engine.requests.clear()
    site.engine.turns[:] = [[turn] for turn in (*turns, ANSWER)]


def drawn(response: JsonObject) -> list[JsonObject]:
    return [item for item in response["output"] if item["type"] == "image_generation_call"]  # type: ignore[attr-defined,index]


async def events_of(site: Site, **fields: object) -> list[JsonObject]:
    """Return the events of a response, which are OpenAI's."""
    events = await site.events(**{"tools": [DRAW], **fields})
    for each in events:
        validate_event(each)
    return events


def told(site: Site, turn: int = 1) -> str:
    """Return what the model has read before a turn."""
    return decode_tokens(site.engine.prompts[turn])
