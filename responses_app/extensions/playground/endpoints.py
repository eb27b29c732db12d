"""`/v1/playground`: the chats that are kept, as the playground lists them, and setups that a project has named."""

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any, Literal, cast

from typing_extensions import TypedDict

from responses_app.extensions.playground.chat_store import MAX_PINNED, ChatsQuery, KeptChat, KeptTurn, TooManyPinned
from responses_app.extensions.playground.chats import KeptChats, WholeChat
from responses_app.extensions.playground.setups import (
    MAX_SETUPS,
    MAX_TOGETHER,
    DeletedPlaygroundPrompt,
    NewPlaygroundPrompt,
    PlaygroundPrompt,
    PlaygroundPromptList,
    Setups,
    TooManySetups,
    parse_prompt,
    prompt_not_found,
    shown,
)
from responses_app.protocol import ids
from responses_app.protocol.api_keys import Area
from responses_app.protocol.errors import JsonObject, ResponseError, invalid_request, invalid_value
from responses_app.protocol.events.dialects import DIALECT_HEADER, Dialect
from responses_app.protocol.fields import ClientModel, Text, missing, validate
from responses_app.protocol.items.resources import ItemJson, OutputJson, input_item_resource
from responses_app.protocol.requests.create_fields import GenerationFields
from responses_app.protocol.requests.pages import list_page, page_of, parse_list_query
from responses_app.protocol.requests.resources import IncompleteDetails, ResponseObject, StatusText
from responses_app.protocol.usage import Usage
from responses_app.stores.database.responses.membership import MADE_IN, PLAYGROUND
from responses_app.web.endpoint import AFTER, DIALECT, LIMIT, Endpoint, Parameter, Refusals, text
from responses_app.web.http import ApiRequest, read_json
from responses_app.wiring.site import get_site

MAX_TITLE = 200  # characters
MAX_SEARCH = 200  # characters
# Fields of a response that say what it was asked for, as `request` repeats them of the newest one.
REQUEST_FIELDS = (
    *"model instructions reasoning text tools tool_choice parallel_tool_calls".split(),
    *GenerationFields.model_fields,
    *"max_output_tokens max_tool_calls truncation service_tier background include metadata top_logprobs".split(),
)

TitleFrom = Literal["words", "model", "person"]


class PlaygroundChat(TypedDict):
    """A chat: the tree of stored responses that has one root, or a conversation's responses."""

    id: str
    object: Literal["playground.chat"]
    title: str
    title_from: TitleFrom
    pinned: bool
    model: str
    created_at: int
    updated_at: int
    response_id: str
    responses: int
    read_only: bool


class PlaygroundTurn(TypedDict):
    """A response of a chat."""

    id: str
    previous_response_id: str | None
    status: StatusText
    created_at: int
    model: str
    input: list[ItemJson]
    output: list[OutputJson]
    usage: Usage | None
    error: ResponseError | None
    incomplete_details: IncompleteDetails | None
    metadata: dict[str, str] | None
    conversation: JsonObject | None


class WholePlaygroundChat(PlaygroundChat):
    """A chat with its turns, the oldest first; `more`: older ones are left out."""

    turns: list[PlaygroundTurn]
    more: bool
    request: JsonObject


class DeletedPlaygroundChat(TypedDict):
    """A chat is gone, with so many responses."""

    id: str
    object: Literal["playground.chat.deleted"]
    deleted: Literal[True]
    responses: int


class PlaygroundChatList(TypedDict):
    """A part of a list of chats. The ids of an empty one are empty texts."""

    object: Literal["list"]
    data: list[PlaygroundChat]
    first_id: str
    last_id: str
    has_more: bool


class PlaygroundChatChanges(ClientModel):
    """What is to be set of a chat; what is left out stays. An empty title is its first words again."""

    title: Text | None = None
    title_from: TitleFrom | None = None
    pinned: bool | None = None


def _chats() -> KeptChats:
    return get_site().made(KeptChats.of)


def _setups() -> Setups:
    return get_site().made(Setups.of)


REFUSALS: Refusals = {
    TooManySetups: lambda *_: invalid_request(
        f"A project keeps at most {MAX_SETUPS} setups of the playground, and {MAX_TOGETHER >> 20} MiB of them. "
        "Delete one first.",
        code="too_many_prompts",
    ),
    TooManyPinned: lambda *_: invalid_value(
        "pinned", f"true. A project has at most {MAX_PINNED} pinned chats; unpin another one first."
    ),
}


def parse_chat_changes(data: Mapping[str, object]) -> Mapping[str, object]:
    """Return what is to be set of a chat. Raises `ApiError`."""
    fields = validate(PlaygroundChatChanges, data)
    changes: dict[str, object] = {}
    if fields.title is not None:
        title = " ".join(fields.title.split())
        if len(title) > MAX_TITLE:
            raise invalid_value("title", f"a text of {len(title)} characters. A title has at most {MAX_TITLE}.")
        changes |= {"title": title, "title_from": (fields.title_from or "person") if title else ""}
    elif fields.title_from is not None:
        raise missing("title")
    if fields.pinned is not None:
        changes["pinned"] = fields.pinned
    return changes


async def _list(request: ApiRequest) -> PlaygroundChatList:
    # The list has one order: an `order` is named as ignored, whatever it is.
    query = {name: values for name, values in request.query.items() if name != "order"}
    page = parse_list_query(query, ids.RESPONSE, ids.CONVERSATION)
    search = query.get("search", ("",))[-1].strip()
    if len(search) > MAX_SEARCH:
        raise invalid_value("search", f"a text of {len(search)} characters. It has at most {MAX_SEARCH}.")
    caller = request.caller
    # One more than is shown tells whether there are more.
    only_playground = _made_in(query.get(MADE_IN, ("",))[-1])
    wanted = ChatsQuery(
        key_id=caller.key_id,
        only_playground=only_playground,
        search=search,
        after=page.after,
        limit=page.limit + 1,
    )
    return page_of(await _chats().listed(caller, wanted), page, _shown)


def _made_in(name: str) -> bool:
    if name not in ("", PLAYGROUND):
        raise invalid_value(MADE_IN, f"'{name[:80]}'. Known is: '{PLAYGROUND}'.")
    return name == PLAYGROUND


async def _get(request: ApiRequest, chat_id: str) -> WholePlaygroundChat:
    site = get_site()
    dialect = site.dialect(request.headers.get(DIALECT_HEADER))
    whole = await _chats().whole(request.caller, chat_id)
    return await asyncio.to_thread(_whole, whole, dialect)  # a long one takes a second


async def _change(request: ApiRequest, chat_id: str) -> PlaygroundChat:
    changes = await read_json(request, parse_chat_changes, get_site().reader)
    return _shown(await _chats().change(request.caller, chat_id, changes))


async def _delete(request: ApiRequest, chat_id: str) -> DeletedPlaygroundChat:
    own_id, count = await _chats().delete(request.caller, chat_id)
    return {"id": own_id, "object": "playground.chat.deleted", "deleted": True, "responses": count}


def _shown(chat: KeptChat) -> PlaygroundChat:
    return {
        "id": chat.id,
        "object": "playground.chat",
        "title": chat.title,
        "title_from": cast(TitleFrom, chat.title_from),
        "pinned": chat.pinned,
        "model": chat.model,
        "created_at": chat.created_at,
        "updated_at": chat.updated_at,
        "response_id": chat.newest,
        "responses": chat.responses,
        "read_only": not chat.is_own,
    }


def _whole(whole: WholeChat, dialect: Dialect) -> WholePlaygroundChat:
    turns = whole.turns.turns
    newest: Mapping[str, Any] = turns[-1].response
    return {
        **_shown(whole.chat),
        "turns": [_turn(each, dialect) for each in turns],
        "more": whole.turns.more,
        "request": {name: newest[name] for name in REQUEST_FIELDS if name in newest},
    }


def _turn(turn: KeptTurn, dialect: Dialect) -> PlaygroundTurn:
    response = cast(ResponseObject, dialect.response(turn.response))
    return {
        "id": turn.response["id"],  # its own, also where clients call several legs of a turn alike
        "previous_response_id": turn.parent,
        "status": response["status"],
        "created_at": response["created_at"],
        "model": response["model"],
        "input": [input_item_resource(item) for item in turn.input_items],
        "output": response["output"],
        "usage": response.get("usage"),
        "error": response.get("error"),
        "incomplete_details": response.get("incomplete_details"),
        "metadata": response.get("metadata"),
        "conversation": response.get("conversation"),
    }


async def _prompts(request: ApiRequest) -> PlaygroundPromptList:
    rows = await _setups().all_of(request.project)
    return list_page([shown(row) for row in rows], has_more=False)


async def _put_prompt(request: ApiRequest) -> PlaygroundPrompt:
    site = get_site()
    name, setup = await read_json(request, parse_prompt, site.reader)
    at = int(site.service.now())
    return shown(await _setups().put(request.project, name, setup, new_id=site.new_id(ids.PROMPT), at=at))


async def _delete_prompt(request: ApiRequest, prompt_id: str) -> DeletedPlaygroundPrompt:
    if not await _setups().delete(request.project, prompt_id):
        raise prompt_not_found(prompt_id)
    return {"id": prompt_id, "object": "playground.prompt.deleted", "deleted": True}


_CHATS = "/v1/playground/chats"
_CHAT = f"{_CHATS}/{{chat_id}}"
_PROMPTS = "/v1/playground/prompts"
_SEARCH = Parameter("search", "Only chats in whose titles or texts this stands.", text(maxLength=MAX_SEARCH))
_MADE_IN = Parameter(
    MADE_IN, "`playground`: only pinned chats and those of the playground's page.", text(enum=[PLAYGROUND])
)
_endpoint = partial(Endpoint, tag="Playground", scope=Area.RESPONSES, refusals=REFUSALS)  # chats are responses

ENDPOINTS = (
    _endpoint(
        "GET",
        _CHATS,
        _list,
        "listPlaygroundChats",
        "List the caller's chats: pinned ones, then the newest",
        takes=(_SEARCH, _MADE_IN, LIMIT, AFTER),
    ),
    _endpoint("GET", _CHAT, _get, "getPlaygroundChat", "Return a chat with its turns", takes=(DIALECT,)),
    _endpoint(
        "POST",
        _CHAT,
        _change,
        "updatePlaygroundChat",
        "Rename a chat, pin or unpin it",
        body=PlaygroundChatChanges,
    ),
    _endpoint("DELETE", _CHAT, _delete, "deletePlaygroundChat", "Delete all responses of a chat"),
    _endpoint("GET", _PROMPTS, _prompts, "listPlaygroundPrompts", "List the named setups of the project"),
    _endpoint(
        "POST",
        _PROMPTS,
        _put_prompt,
        "putPlaygroundPrompt",
        "Keep a setup under a name, or replace the one that has it",
        body=NewPlaygroundPrompt,
        keeps=("A setup is kept under its name", "Keep it in a file of your own."),
    ),
    _endpoint("DELETE", f"{_PROMPTS}/{{prompt_id}}", _delete_prompt, "deletePlaygroundPrompt", "Delete a named setup"),
)
