"""`/v1/playground/prompts`: setups of the playground that a project has named."""

from collections.abc import Mapping
from functools import partial
from typing import Literal

from django.http import HttpRequest
from typing_extensions import TypedDict

from responses_app.kit.columns import json_text
from responses_app.protocol import ids
from responses_app.protocol.api_keys import Area
from responses_app.protocol.errors import ApiError, JsonObject, invalid_request, invalid_value, not_found
from responses_app.protocol.fields import ClientModel, Text, validate
from responses_app.protocol.json_text import json_size
from responses_app.protocol.requests.pages import list_page
from responses_app.stores.setups import MAX_SETUPS, MAX_TOGETHER, SetupRecord, TooManySetups
from responses_app.web.endpoint import Endpoint, Refusals
from responses_app.web.http import project_of, read_json
from responses_app.wiring.site import get_site

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


REFUSALS: Refusals = {
    TooManySetups: lambda *_: invalid_request(
        f"A project keeps at most {MAX_SETUPS} setups of the playground, and {MAX_TOGETHER >> 20} MiB of them. "
        "Delete one first.",
        code="too_many_prompts",
    )
}


def parse_prompt(data: Mapping[str, object]) -> tuple[str, JsonObject]:
    """Return a setup with its name. Raises `ApiError`."""
    fields = validate(NewPlaygroundPrompt, data)
    name = " ".join(fields.name.split())
    if not 0 < len(name) <= MAX_NAME:
        raise invalid_value("name", f"a text of {len(name)} characters. A name has 1 to {MAX_NAME}.")
    json_size({"setup": fields.setup})  # raises for what no answer could say again
    size = len(json_text(fields.setup).encode("utf-8", "surrogatepass"))
    if size > MAX_SETUP_BYTES:
        raise invalid_value("setup", f"an object of {size} bytes as JSON. A setup has at most {MAX_SETUP_BYTES}.")
    return name, fields.setup


def prompt_not_found(prompt_id: str) -> ApiError:
    """The project has no such setup (404)."""
    return not_found(f"No prompt found with id '{prompt_id[:80]}'.", code="prompt_not_found")


async def _list(request: HttpRequest) -> PlaygroundPromptList:
    records = await get_site().setups.listed(project_of(request))
    return list_page([_shown(each) for each in records], has_more=False)


async def _put(request: HttpRequest) -> PlaygroundPrompt:
    site = get_site()
    name, setup = await read_json(request, parse_prompt, site.reader)
    at = int(site.service.now())
    record = SetupRecord(id=site.new_id(ids.PROMPT), name=name, setup=setup, created_at=at, updated_at=at)
    return _shown(await site.setups.put(project_of(request), record))


async def _delete(request: HttpRequest, prompt_id: str) -> DeletedPlaygroundPrompt:
    if not await get_site().setups.delete(project_of(request), prompt_id):
        raise prompt_not_found(prompt_id)
    return {"id": prompt_id, "object": "playground.prompt.deleted", "deleted": True}


def _shown(record: SetupRecord) -> PlaygroundPrompt:
    return {
        "id": record.id,
        "object": "playground.prompt",
        "name": record.name,
        "setup": record.setup,
        "created_at": record.created_at,
        "updated_at": record.updated_at,
    }


_PROMPTS = "/v1/playground/prompts"
_endpoint = partial(Endpoint, tag="Playground", scope=Area.RESPONSES, refusals=REFUSALS)

_KEPT = ("A setup is kept under its name", "Keep it in a file of your own.")

ENDPOINTS = (
    _endpoint("GET", _PROMPTS, _list, "listPlaygroundPrompts", "List the named setups of the project"),
    _endpoint(
        *("POST", _PROMPTS, _put, "putPlaygroundPrompt", "Keep a setup under a name, or replace the one that has it"),
        body=NewPlaygroundPrompt,
        keeps=_KEPT,
    ),
    _endpoint(
        *("DELETE", f"{_PROMPTS}/{{prompt_id}}", _delete, "deletePlaygroundPrompt", "Delete a named setup"),
    ),
)
