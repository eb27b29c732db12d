"""`/v1/chat/completions/{id}`, and lists of what is stored: chat completions that were created with `store: true`."""

from django.http import HttpRequest, HttpResponse

from responses_app.http import json_response, project_of, read_json
from responses_app.protocol.chat.stored import parse_chat_changes, parse_chat_query
from responses_app.protocol.pages import (
    deleted_object,
    list_page,
    page_behind,
    parse_list_query,
    unknown_cursor,
)
from responses_app.views.dispatching import dispatched
from responses_app.views.queries import query_of
from responses_app.wiring import get_site


async def detail(request: HttpRequest, completion_id: str) -> HttpResponse:
    """Return (GET) a stored completion, change its metadata (POST), or delete it (DELETE)."""
    return await dispatched(request, {"GET": _get, "POST": _update, "DELETE": _delete}, {}, completion_id)


async def messages(request: HttpRequest, completion_id: str) -> HttpResponse:
    """List (GET) what a stored completion was asked."""
    return await dispatched(request, {"GET": _messages}, {}, completion_id)


async def listed(request: HttpRequest) -> HttpResponse:
    """List stored completions, the oldest first."""
    query = parse_chat_query(query_of(request))
    found = await get_site().chats.listed(project_of(request), query)
    if found is None:
        raise unknown_cursor(str(query.page.after))
    return json_response(list_page(found[: query.page.limit], has_more=len(found) > query.page.limit))


async def _get(request: HttpRequest, completion_id: str) -> HttpResponse:
    return json_response(await get_site().chats.get(project_of(request), completion_id))


async def _update(request: HttpRequest, completion_id: str) -> HttpResponse:
    site = get_site()
    metadata = await read_json(request, parse_chat_changes, site.reader)
    return json_response(await site.chats.change(project_of(request), completion_id, metadata))


async def _delete(request: HttpRequest, completion_id: str) -> HttpResponse:
    await get_site().chats.delete(project_of(request), completion_id)
    return json_response(deleted_object(completion_id, "chat.completion"))


async def _messages(request: HttpRequest, completion_id: str) -> HttpResponse:
    wanted = parse_list_query(query_of(request), descending=False)
    found = await get_site().chats.messages(project_of(request), completion_id)
    return json_response(page_behind(found, wanted))
