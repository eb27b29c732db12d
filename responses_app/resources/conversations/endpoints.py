"""`/v1/conversations`: conversations and their items."""

from collections.abc import Callable, Sequence
from functools import partial

from responses_app.auth.scopes import check_named, named_by_conversation
from responses_app.kit.clock import utc
from responses_app.kit.errors import UnknownCursor
from responses_app.protocol import ids
from responses_app.protocol.api_keys import Area, Caller
from responses_app.protocol.errors import JsonObject, conversation_not_found
from responses_app.protocol.fields import missing
from responses_app.protocol.items.items import identified
from responses_app.protocol.items.resources import Item, with_included
from responses_app.protocol.requests.pages import ItemList, list_page, page_of, parse_list_query, unknown_cursor
from responses_app.resources.conversations import model
from responses_app.resources.conversations.fields import (
    Conversation,
    DeletedConversation,
    item_not_found,
    parse_added_items,
    parse_changes,
    parse_conversation,
    references,
    resolved,
    shown,
    shown_item,
    too_many_conversations,
)
from responses_app.resources.conversations.store import ConversationsFull
from responses_app.runs.plan.plan import session_of_conversation
from responses_app.web.endpoint import INCLUDE, JSON, PAGED, Endpoint, Parameter, Refusals, text
from responses_app.web.http import ApiRequest, include_of, or_raise, read_json
from responses_app.wiring.site import get_site

REFUSALS: Refusals = {
    ConversationsFull: lambda *_: too_many_conversations(get_site().settings.conversations_max_entries),
    UnknownCursor: lambda problem, *_: unknown_cursor(str(problem)),
}


async def _create(request: ApiRequest) -> Conversation:
    site = get_site()
    columns, items = await read_json(request, parse_conversation, site.reader)
    row = model.Conversation(
        id=site.new_id(ids.CONVERSATION),
        project=request.project,
        created_at=utc(int(site.service.now())),
        **columns,
    )
    await site.conversations.create(row, await _whole(request.caller, items))
    return shown(row)


async def _get(request: ApiRequest, conversation_id: str) -> Conversation:
    row = await get_site().conversations.get(request.project, conversation_id)
    return shown(or_raise(row, conversation_not_found(conversation_id)))


async def _update(request: ApiRequest, conversation_id: str) -> Conversation:
    changes = await read_json(request, parse_changes, get_site().reader)
    row = await get_site().conversations.update(request.project, conversation_id, changes)
    return shown(or_raise(row, conversation_not_found(conversation_id)))


async def _delete(request: ApiRequest, conversation_id: str) -> DeletedConversation:
    site, project = get_site(), request.project
    if not await site.conversations.delete(project, conversation_id):
        raise conversation_not_found(conversation_id)
    site.service.end_session(session_of_conversation(project, conversation_id))
    return {"id": conversation_id, "object": "conversation.deleted", "deleted": True}


async def _list_items(request: ApiRequest, conversation_id: str) -> ItemList:
    page = parse_list_query(request.query)
    shows = _shows(request)
    rows = await get_site().conversations.items(request.project, conversation_id, page)
    return page_of(or_raise(rows, conversation_not_found(conversation_id)), page, shows)


async def _add_items(request: ApiRequest, conversation_id: str) -> ItemList:
    shows = _shows(request)
    added = await _whole(request.caller, await read_json(request, parse_added_items, get_site().reader))
    rows = await get_site().conversations.append(request.project, conversation_id, added)
    items = [shows(row) for row in or_raise(rows, conversation_not_found(conversation_id))]
    return list_page(items, has_more=False)


async def _get_item(request: ApiRequest, conversation_id: str, item_id: str) -> JsonObject:
    shows = _shows(request)
    store = get_site().conversations
    row = await store.item(request.project, conversation_id, item_id)
    if row is None:
        if await store.get(request.project, conversation_id) is None:
            raise conversation_not_found(conversation_id)
        raise item_not_found(conversation_id, item_id)
    return shows(row)


async def _remove_item(request: ApiRequest, conversation_id: str, item_id: str) -> Conversation:
    store = get_site().conversations
    # Which of the two is unknown is found out afterwards: the usual case costs no query for that.
    was_there = await store.remove_item(request.project, conversation_id, item_id)
    row = or_raise(await store.get(request.project, conversation_id), conversation_not_found(conversation_id))
    if not was_there:
        raise item_not_found(conversation_id, item_id)
    return shown(row)


async def _remove_named_item(request: ApiRequest, conversation_id: str) -> Conversation:
    named = request.query.get("item_id")
    if not named:
        raise missing("item_id")
    return await _remove_item(request, conversation_id, named[-1])


async def _whole(caller: Caller, items: Sequence[JsonObject]) -> Sequence[JsonObject]:
    """Return items to be kept: those that are named by their ids in full, and each with an id. Raises `ApiError`."""
    check_named(caller.scopes, named_by_conversation(items))
    site = get_site()
    # Nearly always none, and then no query is needed.
    named = references(items)
    known = await site.store.items(caller.project, named) if named else {}
    return identified(resolved(items, known), site.new_id)


def _shows(request: ApiRequest) -> Callable[[model.ConversationItem], JsonObject]:
    """Return how a request is shown items. Raises `ApiError` for what it cannot have included."""
    include = include_of(request.query, screenshots=get_site().settings.enable_computer_call)
    return lambda row: with_included(shown_item(row), include)


_CONVERSATIONS = "/v1/conversations"
_CONVERSATION = f"{_CONVERSATIONS}/{{conversation_id}}"
_ITEMS = f"{_CONVERSATION}/items"
_ITEM = f"{_ITEMS}/{{item_id:path}}"
_ITEM_ID = Parameter("item_id", "The item that is to go.", text(minLength=1), required=True)
_endpoint = partial(Endpoint, tag="Conversations", scope=Area.CONVERSATIONS, refusals=REFUSALS)

_KEPT = (
    "A conversation is kept",
    "Send its items in 'input', or continue a response on the WebSocket that made it.",
)

ENDPOINTS = (
    _endpoint(
        "POST",
        _CONVERSATIONS,
        _create,
        "createConversation",
        "Create a conversation",
        body="NewConversation",
        errors=(429,),
        keeps=_KEPT,
    ),
    _endpoint("GET", _CONVERSATION, _get, "getConversation", "Return a conversation"),
    _endpoint(
        "POST", _CONVERSATION, _update, "updateConversation", "Change a conversation", body="ConversationChanges"
    ),
    _endpoint("DELETE", _CONVERSATION, _delete, "deleteConversation", "Delete a conversation"),
    _endpoint(
        "GET",
        _ITEMS,
        _list_items,
        "listConversationItems",
        "List a conversation's items",
        takes=(*PAGED, INCLUDE),
    ),
    _endpoint(
        "POST",
        _ITEMS,
        _add_items,
        "createConversationItems",
        "Add items to a conversation",
        body="NewItems",
        takes=(INCLUDE,),
    ),
    _endpoint(
        "DELETE",
        _ITEMS,
        _remove_named_item,
        "deleteNamedConversationItem",
        "Delete the item that the query names",
        takes=(_ITEM_ID,),
    ),
    _endpoint(
        "GET",
        _ITEM,
        _get_item,
        "getConversationItem",
        "Return an item of a conversation",
        takes=(INCLUDE,),
        answers={JSON: Item},
    ),
    _endpoint("DELETE", _ITEM, _remove_item, "deleteConversationItem", "Delete an item of a conversation"),
)
