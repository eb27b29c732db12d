"""`/v1/responses`: create (JSON, server-sent events, background), and what is asked of a response by its id."""

from collections.abc import Mapping
from functools import partial

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase

from responses_app.auth.scopes import check_named
from responses_app.http import (
    MethodNotAllowed,
    caller_of,
    cut_of,
    json_response,
    project_of,
    read_json,
    request_id_of,
    span_of,
)
from responses_app.protocol.compact_requests import compacted_response, parse_compact
from responses_app.protocol.dialects import DIALECT_HEADER, Dialect
from responses_app.protocol.errors import JsonObject, invalid_request
from responses_app.protocol.item_resources import input_item_resource, with_included
from responses_app.protocol.named import named_in_parts
from responses_app.protocol.pages import Query, page_behind, parse_include_query, parse_list_query
from responses_app.protocol.requests import CreateRequest
from responses_app.protocol.resources import Status
from responses_app.protocol.tool_outputs import TOOL_MODE_HEADER, parse_tool_output
from responses_app.runs.plan import Origin
from responses_app.runs.reader import ResponseReader
from responses_app.site import Site
from responses_app.views.queries import include_of, query_of
from responses_app.views.response_streams import event_stream, read_to_end
from responses_app.wiring import get_site


async def create(request: HttpRequest) -> HttpResponseBase:
    """Create a response; `stream: true` streams it, `background: true` answers before it runs."""
    if request.method != "POST":
        raise MethodNotAllowed(str(request.method), ["POST"], " A WebSocket needs an upgrade request to this path.")
    site = get_site()
    dialect = _dialect(site, request)
    waits = site.awaits_tools(request.headers.get(TOOL_MODE_HEADER), dialect)
    wanted = await read_json(request, site.parse_create, site.reader)
    reader = await site.service.create(wanted, _origin(request, wanted, waits=waits), dialect=dialect)
    if wanted.stream:
        return await _stream(site, request, reader, dialect, site.settings.stream_first_word_ms / 1000)
    if wanted.background:
        reader.leave()
        return _answer(dialect, reader.response())
    return _answer(dialect, await read_to_end(reader))


async def detail(request: HttpRequest, response_id: str) -> HttpResponseBase:
    """Return a response, pick up its stream (`stream=true&starting_after=N`), or delete it."""
    site = get_site()
    if request.method == "DELETE":
        await site.responses.delete(project_of(request), response_id)
        return json_response({"id": response_id, "object": "response", "deleted": True})
    if request.method != "GET":
        raise MethodNotAllowed(str(request.method), ["GET", "DELETE"])
    dialect = _dialect(site, request)
    query = query_of(request)
    include = parse_include_query(query)  # of its input: its own output keeps what it was created with
    starting_after = _starting_after(query)
    if _flag(query, "stream"):
        project = project_of(request)
        reader = await site.responses.follow(
            project, response_id, starting_after=starting_after, dialect=dialect, include=include
        )
        return await _stream(site, request, reader, dialect)
    return _answer(dialect, await site.responses.response(project_of(request), response_id))


async def cancel(request: HttpRequest, response_id: str) -> HttpResponse:
    """Cancel a background response."""
    _only(request, "POST")
    site = get_site()
    dialect = _dialect(site, request)
    return _answer(dialect, await site.responses.cancel(project_of(request), response_id))


async def tool_outputs(request: HttpRequest, response_id: str) -> HttpResponse:
    """Give a response that waits what came of a call."""
    _only(request, "POST")
    site = get_site()
    parse = partial(parse_tool_output, max_bytes=site.settings.responses_max_tool_output_bytes)
    given = await read_json(request, parse, site.reader)
    check_named(caller_of(request).scopes, named_in_parts(given.output, at="output"))
    await site.outputs.give(project_of(request), response_id, given)
    return json_response({"id": response_id, "status": Status.IN_PROGRESS.value})


async def input_items(request: HttpRequest, response_id: str) -> HttpResponse:
    """List what a response was asked."""
    _only(request, "GET")
    query = query_of(request)
    wanted = parse_list_query(query)
    include = include_of(query)
    page = page_behind(await get_site().responses.input_items(project_of(request), response_id), wanted)
    page["data"] = [with_included(input_item_resource(item), include) for item in page["data"]]
    return json_response(page)


async def input_tokens(request: HttpRequest) -> HttpResponse:
    """Count the tokens of the prompt that a request would have."""
    _only(request, "POST")
    site = get_site()
    dialect = _dialect(site, request)
    wanted = await read_json(request, site.parse_create, site.reader)
    count = await site.service.count_input_tokens(wanted, _origin(request, wanted), dialect=dialect)
    counted: JsonObject = {"object": "response.input_tokens", "input_tokens": count}
    return json_response(counted)


async def compact(request: HttpRequest) -> HttpResponse:
    """Sum a conversation up; the client goes on from what it gets: the user's messages and the summary."""
    _only(request, "POST")
    site = get_site()
    dialect = _dialect(site, request)
    wanted = await read_json(request, parse_compact, site.reader)
    reader, said = await site.service.compact(wanted, _origin(request, wanted))
    return _answer(dialect, compacted_response(await read_to_end(reader), said))


def _dialect(site: Site, request: HttpRequest) -> Dialect:
    return site.dialect(request.headers.get(DIALECT_HEADER))


def _answer(dialect: Dialect, response: Mapping[str, object]) -> HttpResponse:
    return json_response(dialect.response(response))


def _origin(request: HttpRequest, wanted: CreateRequest, *, waits: bool = False) -> Origin:
    """Return where a request came from; one whose client hears nothing before the end does not wait for it."""
    transport = "background" if wanted.background else "sse" if wanted.stream else "json"
    waits = waits and transport != "json"
    return Origin.of(
        caller_of(request), transport, request_id=request_id_of(request), awaits_tools=waits, span=span_of(request)
    )


async def _stream(
    site: Site, request: HttpRequest, reader: ResponseReader, dialect: Dialect, first_word_seconds: float = 0.0
) -> HttpResponseBase:
    return await event_stream(
        reader,
        ping_seconds=site.settings.responses_ping_interval_seconds,
        first_word_seconds=first_word_seconds,
        dialect=dialect,
        cut=cut_of(request),
    )


def _only(request: HttpRequest, method: str) -> None:
    if request.method != method:
        raise MethodNotAllowed(str(request.method), [method])


def _flag(query: Query, name: str) -> bool:
    value = (query.get(name) or ["false"])[-1].lower()
    if value not in ("true", "false", "1", "0"):
        raise invalid_request(
            f"Invalid value for '{name}': {value[:80]!r}. Supported values are: 'true' and 'false'.",
            param=name,
            code="invalid_value",
        )
    return value in ("true", "1")


def _starting_after(query: Query) -> int | None:
    values = query.get("starting_after")
    if not values:
        return None
    value = values[-1]
    if not (value.isascii() and value.isdecimal() and len(value) < 10):
        raise invalid_request(
            f"Invalid value for 'starting_after': {value[:80]!r}. It takes the sequence number of an event.",
            param="starting_after",
            code="invalid_value",
        )
    return int(value)
