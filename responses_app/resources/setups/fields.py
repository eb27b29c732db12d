"""The fields of requests and answers of `/v1/playground/prompts`, and the error that is theirs alone."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from typing_extensions import TypedDict

from engine import orjson
from responses_app.kit.clock import unix
from responses_app.protocol.errors import ApiError, JsonObject, invalid_value, not_found
from responses_app.protocol.fields import ClientModel, Text, validate
from responses_app.protocol.json_text import json_size

if TYPE_CHECKING:
    from responses_app.resources.setups.model import NamedSetup

MAX_SETUPS = 200  # of a project
MAX_TOGETHER = 4 << 20  # characters of JSON of all of a project's, since they are read in one list
MAX_NAME = 100  # characters
MAX_SETUP_BYTES = 256 << 10  # of a setup, as JSON


class PlaygroundPrompt(TypedDict):
    """A setup of the playground under a name."""

    id: str
    object: Literal["playground.prompt"]
    name: str
    setup: JsonObject
    created_at: int
    updated_at: int


class PlaygroundPromptList(TypedDict):
    """All setups of a project, by their names. The ids of an empty list are empty texts."""

    object: Literal["list"]
    data: list[PlaygroundPrompt]
    first_id: str
    last_id: str
    has_more: bool


class DeletedPlaygroundPrompt(TypedDict):
    """A setup is gone."""

    id: str
    object: Literal["playground.prompt.deleted"]
    deleted: Literal[True]


class NewPlaygroundPrompt(ClientModel):
    """A setup to keep under a name; one of the same name is replaced."""

    name: Text
    setup: JsonObject


def parse_prompt(data: Mapping[str, object]) -> tuple[str, JsonObject]:
    """Return a setup with its name. Raises `ApiError`."""
    fields = validate(NewPlaygroundPrompt, data)
    name = " ".join(fields.name.split())
    if not 0 < len(name) <= MAX_NAME:
        raise invalid_value("name", f"a text of {len(name)} characters. A name has 1 to {MAX_NAME}.")
    json_size({"setup": fields.setup})  # raises for what no answer could say again
    size = len(orjson.text_kept(fields.setup).encode())
    if size > MAX_SETUP_BYTES:
        raise invalid_value("setup", f"an object of {size} bytes as JSON. A setup has at most {MAX_SETUP_BYTES}.")
    return name, fields.setup


def prompt_not_found(prompt_id: str) -> ApiError:
    """The project has no such setup (404)."""
    return not_found(f"No prompt found with id '{prompt_id[:80]}'.", code="prompt_not_found")


def shown(row: "NamedSetup") -> PlaygroundPrompt:
    """Return a setup as clients see it."""
    return {
        "id": row.pk,
        "object": "playground.prompt",
        "name": row.name,
        "setup": row.setup,
        "created_at": unix(row.created_at),
        "updated_at": unix(row.updated_at),
    }
