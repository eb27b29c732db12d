"""`/v1/chat/completions/{id}`, and lists of what is stored: chat completions that were created with `store: true`."""

from functools import partial
from typing import Literal

from django.http import HttpRequest
from typing_extensions import TypedDict

from responses_app.protocol.api_keys import Area
from responses_app.protocol.chat.completion import ChatCompletion
from responses_app.protocol.chat.stored import (
    ChatCompletionChanges,
    StoredChatMessage,
    parse_chat_changes,
    parse_chat_query,
)
from responses_app.protocol.metadata import MAX_PAIRS
from responses_app.protocol.requests.pages import (
    list_page,
    page_behind,
    parse_list_query,
    unknown_cursor,
)
from responses_app.web.endpoint import Endpoint
from responses_app.web.http import project_of, read_json
from responses_app.web.parameters import AFTER, LIMIT, Parameter, text
from responses_app.web.queries import query_of
from responses_app.wiring.wiring import get_site


class DeletedChatCompletion(TypedDict):
    """A stored completion is gone."""

    id: str
    object: Literal["chat.completion.deleted"]
    deleted: Literal[True]


class ChatCompletionList(TypedDict):
    """A part of a list of stored completions. The ids of an empty one are empty texts."""

    object: Literal["list"]
    data: list[ChatCompletion]
    first_id: str
    last_id: str
    has_more: bool


class ChatMessageList(TypedDict):
    """A part of a list of messages. The ids of an empty one are empty texts."""

    object: Literal["list"]
    data: list[StoredChatMessage]
    first_id: str
    last_id: str
    has_more: bool


async def _list(request: HttpRequest) -> ChatCompletionList:
    query = parse_chat_query(query_of(request))
    found = await get_site().chats.listed(project_of(request), query)
    if found is None:
        raise unknown_cursor(str(query.page.after))
    return list_page(found[: query.page.limit], has_more=len(found) > query.page.limit)


async def _get(request: HttpRequest, completion_id: str) -> ChatCompletion:
    return await get_site().chats.get(project_of(request), completion_id)


async def _update(request: HttpRequest, completion_id: str) -> ChatCompletion:
    site = get_site()
    metadata = await read_json(request, parse_chat_changes, site.reader)
    return await site.chats.change(project_of(request), completion_id, metadata)


async def _delete(request: HttpRequest, completion_id: str) -> DeletedChatCompletion:
    await get_site().chats.delete(project_of(request), completion_id)
    return {"id": completion_id, "object": "chat.completion.deleted", "deleted": True}


async def _messages(request: HttpRequest, completion_id: str) -> ChatMessageList:
    wanted = parse_list_query(query_of(request), descending=False)
    found = await get_site().chats.messages(project_of(request), completion_id)
    return page_behind(found, wanted)


_CHATS = "/v1/chat/completions"
_CHAT = f"{_CHATS}/{{completion_id}}"
_ORDER = Parameter("order", "Whether the oldest or the newest come first.", text(enum=["asc", "desc"], default="asc"))
_PAGED = (LIMIT, _ORDER, AFTER)
_MODEL = Parameter("model", "Only completions of this model.", text())
_METADATA = Parameter(
    "metadata",
    "Only completions with these pairs of metadata, as `metadata[key]=value`.",
    {"type": "object", "additionalProperties": {"type": "string"}, "maxProperties": MAX_PAIRS},
)
_endpoint = partial(Endpoint, tag="Chat", scope=Area.RESPONSES)

ENDPOINTS = (
    _endpoint(
        *("GET", _CHATS, _list, "listChatCompletions", "List the stored chat completions"),
        takes=(_MODEL, _METADATA, *_PAGED),
    ),
    _endpoint("GET", _CHAT, _get, "getChatCompletion", "Return a stored chat completion"),
    _endpoint(
        *("POST", _CHAT, _update, "updateChatCompletion", "Change the metadata of a stored chat completion"),
        body=ChatCompletionChanges,
    ),
    _endpoint("DELETE", _CHAT, _delete, "deleteChatCompletion", "Delete a stored chat completion"),
    _endpoint(
        *("GET", f"{_CHAT}/messages", _messages),
        *("getChatCompletionMessages", "List the messages of a stored chat completion"),
        takes=_PAGED,
    ),
)
