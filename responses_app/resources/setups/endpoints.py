"""`/v1/playground/prompts`: setups of the playground that a project has named."""

from functools import partial

from responses_app.protocol import ids
from responses_app.protocol.api_keys import Area
from responses_app.protocol.errors import invalid_request
from responses_app.protocol.requests.pages import list_page
from responses_app.resources.setups.fields import (
    MAX_SETUPS,
    MAX_TOGETHER,
    DeletedPlaygroundPrompt,
    NewPlaygroundPrompt,
    PlaygroundPrompt,
    PlaygroundPromptList,
    parse_prompt,
    prompt_not_found,
    shown,
)
from responses_app.resources.setups.store import TooManySetups
from responses_app.web.endpoint import Endpoint, Refusals
from responses_app.web.http import ApiRequest, read_json
from responses_app.wiring.site import get_site

REFUSALS: Refusals = {
    TooManySetups: lambda *_: invalid_request(
        f"A project keeps at most {MAX_SETUPS} setups of the playground, and {MAX_TOGETHER >> 20} MiB of them. "
        "Delete one first.",
        code="too_many_prompts",
    )
}


async def _list(request: ApiRequest) -> PlaygroundPromptList:
    rows = await get_site().setups.all_of(request.project)
    return list_page([shown(row) for row in rows], has_more=False)


async def _put(request: ApiRequest) -> PlaygroundPrompt:
    site = get_site()
    name, setup = await read_json(request, parse_prompt, site.reader)
    at = int(site.service.now())
    return shown(await site.setups.put(request.project, name, setup, new_id=site.new_id(ids.PROMPT), at=at))


async def _delete(request: ApiRequest, prompt_id: str) -> DeletedPlaygroundPrompt:
    if not await get_site().setups.delete(request.project, prompt_id):
        raise prompt_not_found(prompt_id)
    return {"id": prompt_id, "object": "playground.prompt.deleted", "deleted": True}


_PROMPTS = "/v1/playground/prompts"
_endpoint = partial(Endpoint, tag="Playground", scope=Area.RESPONSES, refusals=REFUSALS)

_KEPT = ("A setup is kept under its name", "Keep it in a file of your own.")

ENDPOINTS = (
    _endpoint("GET", _PROMPTS, _list, "listPlaygroundPrompts", "List the named setups of the project"),
    _endpoint(
        "POST",
        _PROMPTS,
        _put,
        "putPlaygroundPrompt",
        "Keep a setup under a name, or replace the one that has it",
        body=NewPlaygroundPrompt,
        keeps=_KEPT,
    ),
    _endpoint(
        "DELETE",
        f"{_PROMPTS}/{{prompt_id}}",
        _delete,
        "deletePlaygroundPrompt",
        "Delete a named setup",
    ),
)
