"""`/v1/conversations`: conversations and their items."""

from collections.abc import Sequence
from functools import partial

from responses_app.auth.scopes import check_named, named_by_conversation
from responses_app.kit.errors import UnknownCursor
from responses_app.protocol import ids
from responses_app.protocol.api_keys import Area, Caller
from responses_app.protocol.errors import JsonObject, conversation_not_found
from responses_app.protocol.fields import missing
from responses_app.protocol.items.resources import Item, identified, with_included
from responses_app.protocol.requests.pages import ItemList, list_page, parse_list_query, unknown_cursor
from responses_app.resources.conversations.fields import (
    Conversation,
    ConversationEntry,
    ConversationRecord,
    DeletedConversation,
    conversation_object,
    item_not_found,
    item_object,
    parse_added_items,
    parse_changes,
    parse_conversation,
    references,
    resolved,
    too_many_conversations,
)
from responses_app.resources.conversations.store import ConversationFull
from responses_app.runs.plan.sessions import session_of_conversation
from responses_app.web.endpoint import INCLUDE, JSON, PAGED, Endpoint, Parameter, Refusals, text
from responses_app.web.http import ApiRequest, include_of, or_raise, read_json
from responses_app.wiring.site import get_site

REFUSALS: Refusals = {
    ConversationFull: lambda *_: too_many_conversations(get_site().settings.conversations_max_entries),
    UnknownCursor: lambda problem, *_: unknown_cursor(str(problem)),
}


async def _create(request: ApiRequest) -> Conversation:
    site = get_site()
    fields = await read_json(request, parse_conversation, site.reader)
    record = ConversationRecord(
        id=site.new_id(ids.CONVERSATION),
        created_at=int(site.service.now()),
        metadata=fields.metadata,
        title=fields.title,
        status=fields.status,
    )
    await site.conversations.create(request.project, record, await _whole(request.caller, fields.items))
    return conversation_object(record)


async def _get(request: ApiRequest, conversation_id: str) -> Conversation:
    record = await get_site().conversations.get(request.project, conversation_id)
    return conversation_object(or_raise(record, conversation_not_found(conversation_id)))


async def _update(request: ApiRequest, conversation_id: str) -> Conversation:
    changes = await read_json(request, parse_changes, get_site().reader)
    record = await get_site().conversations.update(request.project, conversation_id, changes)
    return conversation_object(or_raise(record, conversation_not_found(conversation_id)))


async def _delete(request: ApiRequest, conversation_id: str) -> DeletedConversation:
    site, project = get_site(), request.project
    if not await site.conversations.delete(project, conversation_id):
        raise conversation_not_found(conversation_id)
    site.service.end_session(session_of_conversation(project, conversation_id))
    return {"id": conversation_id, "object": "conversation.deleted", "deleted": True}


async def _list_items(request: ApiRequest, conversation_id: str) -> ItemList:
    query = request.query
    page = parse_list_query(query)
    include = include_of(query, screenshots=get_site().settings.enable_computer_call)
    store = get_site().conversations
    # One more than is shown tells whether there are more.
    entries = await store.entries(
        request.project, conversation_id, after=page.after, descending=page.descending, limit=page.limit + 1
    )
    if entries is None:
        raise conversation_not_found(conversation_id)
    return _page(entries[: page.limit], include, has_more=len(entries) > page.limit)


async def _add_items(request: ApiRequest, conversation_id: str) -> ItemList:
    include = include_of(request.query, screenshots=get_site().settings.enable_computer_call)
    added = await _whole(request.caller, await read_json(request, parse_added_items, get_site().reader))
    entries = await get_site().conversations.append(request.project, conversation_id, added)
    return _page(or_raise(entries, conversation_not_found(conversation_id)), include, has_more=False)


async def _get_item(request: ApiRequest, conversation_id: str, item_id: str) -> JsonObject:
    include = include_of(request.query, screenshots=get_site().settings.enable_computer_call)
    store = get_site().conversations
    entry = await store.entry(request.project, conversation_id, item_id)
    if entry is None:
        if await store.get(request.project, conversation_id) is None:
            raise conversation_not_found(conversation_id)
        raise item_not_found(conversation_id, item_id)
    return _item(entry, include)


async def _remove_item(request: ApiRequest, conversation_id: str, item_id: str) -> Conversation:
    store = get_site().conversations
    # Which of the two is unknown is found out afterwards: the usual case costs no query for that.
    was_there = await store.remove(request.project, conversation_id, item_id)
    record = or_raise(await store.get(request.project, conversation_id), conversation_not_found(conversation_id))
    if not was_there:
        raise item_not_found(conversation_id, item_id)
    return conversation_object(record)


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


def _item(entry: ConversationEntry, include: Sequence[str]) -> JsonObject:
    return with_included(item_object(entry.item, created_at=entry.created_at), include)


def _page(entries: Sequence[ConversationEntry], include: Sequence[str], *, has_more: bool) -> ItemList:
    return list_page([_item(entry, include) for entry in entries], has_more=has_more)


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
        *("POST", _CONVERSATIONS, _create, "createConversation", "Create a conversation"),
        body="NewConversation",
        errors=(429,),
        keeps=_KEPT,
    ),
    _endpoint("GET", _CONVERSATION, _get, "getConversation", "Return a conversation"),
    _endpoint(
        *("POST", _CONVERSATION, _update, "updateConversation", "Change a conversation"), body="ConversationChanges"
    ),
    _endpoint("DELETE", _CONVERSATION, _delete, "deleteConversation", "Delete a conversation"),
    _endpoint(
        *("GET", _ITEMS, _list_items, "listConversationItems", "List a conversation's items"),
        takes=(*PAGED, INCLUDE),
    ),
    _endpoint(
        *("POST", _ITEMS, _add_items, "createConversationItems", "Add items to a conversation"),
        body="NewItems",
        takes=(INCLUDE,),
    ),
    _endpoint(
        *("DELETE", _ITEMS, _remove_named_item),
        *("deleteNamedConversationItem", "Delete the item that the query names"),
        takes=(_ITEM_ID,),
    ),
    _endpoint(
        *("GET", _ITEM, _get_item, "getConversationItem", "Return an item of a conversation"),
        takes=(INCLUDE,),
        answers={JSON: Item},
    ),
    _endpoint("DELETE", _ITEM, _remove_item, "deleteConversationItem", "Delete an item of a conversation"),
)
