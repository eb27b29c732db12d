"""`/v1/responses`: create (JSON, server-sent events, background), and what is asked of a response by its id.

`read_to_end` and `event_stream` read a response to its end: as one object, or as events as they come. A stream's status
is open until the engine's first word, or until that has taken too long: STREAM_FIRST_WORD_MS says how long. So what the
engine refuses at once is an error with a status of its own, which SDKs try again.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from functools import partial
from typing import Literal

from django.http import HttpResponse
from django.http.response import HttpResponseBase
from typing_extensions import TypedDict

from engine import orjson
from responses_app.auth.scopes import check_named, named_in_parts
from responses_app.protocol import ids
from responses_app.protocol.api_keys import Area
from responses_app.protocol.errors import ApiError, invalid_value
from responses_app.protocol.events.dialects import DIALECT_HEADER, OPENAI, RATE_LIMITS, Dialect
from responses_app.protocol.events.events import EventType, ping
from responses_app.protocol.items.offers import BETA_HEADER
from responses_app.protocol.items.resources import input_item_resource, with_included
from responses_app.protocol.requests.pages import ItemList, Query, page_behind, parse_include_query, parse_list_query
from responses_app.protocol.requests.requests import CreateRequest, check_beta, parse_compact
from responses_app.protocol.requests.resources import RUNNING, CompactedResponse, ResponseObject, compacted_response
from responses_app.protocol.session.tool_outputs import COMPLETE, TOOL_MODE_HEADER, WAIT, ToolOutput, parse_tool_output
from responses_app.resources.batches.handlers import LineAnswer, LineHandler, LineRequest, begun, tokens_of
from responses_app.runs.log.journal import Gathering, JournalEntry, ReaderTooSlow, ResponseReader, Waiter
from responses_app.runs.plan.failures import store_errors, without_answer
from responses_app.runs.plan.plan import Origin
from responses_app.web.endpoint import DIALECT, EVENTS, INCLUDE, JSON, PAGED, SEALS, Endpoint, Parameter, text
from responses_app.web.http import (
    DONE,
    GONE,
    PING,
    ApiRequest,
    Cut,
    include_of,
    json_response,
    read_json,
    read_line,
    server_sent,
)
from responses_app.wiring.site import Site, get_site

_BEFORE_THE_ENGINE = frozenset((EventType.CREATED, EventType.IN_PROGRESS, RATE_LIMITS))  # said of any response


async def read_to_end(reader: ResponseReader) -> ResponseObject:
    """Wait for the terminal event and return its response; leaving early cancels the run.

    Raises `ApiError` where it failed before anything was said: SDKs raise and retry an error, never a body that says
    `failed`. So it does where the response ended without an end, since the server broke.
    """
    news = Waiter()
    reader.listen(news)
    try:
        while not reader.ended:
            # What is taken is thrown away: only the end counts, and a journal that is not read would drop the reader.
            if not reader.take():
                await news.wait()
    finally:
        reader.leave(GONE)
    problem = _unsaid(reader)
    if problem is not None:
        raise problem
    return reader.source.response()


def _unsaid(reader: ResponseReader) -> ApiError | None:
    """Return why a response that has ended failed with nothing said, or without an end; else None."""
    return None if reader.source.has_spoken and reader.is_whole else reader.source.problem


async def event_stream(
    reader: ResponseReader,
    *,
    ping_seconds: float,
    first_word_seconds: float = 0.0,
    dialect: Dialect = OPENAI,
    cut: Cut | None = None,
) -> HttpResponseBase:
    """Return a response as server-sent events, with a heartbeat after each `ping_seconds` of silence (0: never).

    It begins with the engine's first word, or after `first_word_seconds`. Raises `ApiError` where the response failed
    by then, with nothing said. A stream that stops before the response has ended is `cut` off: clients take the clean
    end of one for its whole.
    """
    news = Waiter()
    reader.listen(news)
    try:
        first = await _first(reader, news, first_word_seconds) if first_word_seconds else ()
    except BaseException:  # its client may leave, too
        reader.leave(GONE)
        raise
    return await server_sent(_events(reader, news, first, ping_seconds, dialect, cut))


async def _first(reader: ResponseReader, news: Waiter, seconds: float) -> Sequence[JournalEntry]:
    """Return the events up to the engine's first word; those there are, where it is not to be had in that time.

    A response that has to wait for the engine says so, and that is not waited behind.
    """
    clock = asyncio.get_running_loop().time
    until = clock() + seconds
    first: list[JournalEntry] = []
    # `all` of nothing is true: it waits for the first event, too.
    while not reader.ended and all(entry.type in _BEFORE_THE_ENGINE for entry in first):
        taken = reader.take()
        first += taken
        if not (taken or await news.wait(max(0.0, until - clock()))):
            break
    if reader.ended and (problem := _unsaid(reader)) is not None:
        raise problem
    return first


async def _events(
    reader: ResponseReader,
    news: Waiter,
    first: Sequence[JournalEntry],
    ping_seconds: float,
    dialect: Dialect,
    cut: Cut | None,
) -> AsyncGenerator[bytes, None]:
    gathering = Gathering(lambda: reader.has_little)
    try:
        yield b""
        yield _as_events(first)  # may be empty: daphne sends the headers with the first part of the body
        while not reader.ended:
            entries = reader.take()
            if entries:
                yield _as_events(entries)
                await gathering.pause(is_behind=reader.behind)
            elif not await news.wait(ping_seconds or None):
                # A comment, which no client reads; or an event, though never before `response.created`.
                is_event = dialect.pings_are_events and reader.last_number >= 0
                yield (
                    b"event: response.ping\ndata: %b\n\n" % ping(reader.last_number, time.time()) if is_event else PING
                )
        # Only a whole stream has `[DONE]`.
        if reader.is_whole:
            yield DONE
            return
    except ReaderTooSlow:
        pass  # the registry has logged it
    finally:
        reader.leave(GONE)
    # It goes on after the next start, on another worker, or for a faster reader; or it was deleted, or broke.
    if cut is not None:
        await cut()


def _as_events(entries: Sequence[JournalEntry]) -> bytes:
    return b"".join([b"event: %b\ndata: %b\n\n" % (entry.type.encode(), entry.json) for entry in entries])


_MAX_NUMBER = 999_999_999  # that `starting_after` takes


class DeletedResponse(TypedDict):
    """A response is gone."""

    id: str
    object: Literal["response"]
    deleted: Literal[True]


class InputTokens(TypedDict):
    """How long the prompt would be."""

    object: Literal["response.input_tokens"]
    input_tokens: int


class ResponseGoesOn(TypedDict):
    """The output of a tool was taken."""

    id: str  # of the response that goes on
    status: Literal["in_progress"]


async def _create(request: ApiRequest) -> HttpResponseBase:
    """Create a response; `stream: true` streams it, `background: true` answers before it runs."""
    site = get_site()
    dialect = site.dialect(request.headers.get(DIALECT_HEADER))
    awaits_tools = site.awaits_tools(request.headers.get(TOOL_MODE_HEADER), dialect)
    create = await read_json(request, site.parse_create, site.reader)
    if create.with_agents:
        check_beta(request.headers.get(BETA_HEADER))
    reader = await site.service.create(create, _origin(request, create, awaits_tools=awaits_tools), dialect=dialect)
    if create.stream:
        return await _stream(site, request, reader, dialect, _first_word_seconds(site))
    if create.background:
        # A background response runs on without a reader.
        reader.leave()
        return json_response(dialect.response(reader.source.response()))
    return json_response(dialect.response(await read_to_end(reader)))


async def _decide(request: ApiRequest) -> str:
    """Return the id of the response that a request is to make; "" where that is not stored."""
    site = get_site()
    fields = await read_json(request, dict, site.reader)
    stored = await site.service.is_stored(
        request.caller.project, fields.get("store"), background=fields.get("background") is True
    )
    return site.new_id(ids.RESPONSE) if stored else ""


async def _replay(request: ApiRequest, response_id: str, is_new: bool) -> HttpResponseBase | None:
    """Answer a request whose response is there already, from its first event on; None where it is not there.

    `is_new`: the first request has not been answered yet, so what fails with nothing said is an error for both.
    """
    site = get_site()
    with store_errors():
        if not await site.store.knows(request.caller.project, response_id):
            return None
    dialect = site.dialect(request.headers.get(DIALECT_HEADER))
    create = await read_json(request, site.parse_create, site.reader)
    if create.stream:
        dialect = dialect.hiding if create.hides_sizes else dialect
        reader = await site.responses.follow(
            request.caller.project, response_id, dialect=dialect, include=create.include or ()
        )
        return await _stream(site, request, reader, dialect, _first_word_seconds(site) if is_new else 0.0)
    response = await site.responses.response(request.caller.project, response_id)
    if response["status"] in RUNNING and not create.background:
        response = await read_to_end(await site.responses.follow(request.caller.project, response_id))
    return json_response(dialect.response(response))


async def _line(line: LineRequest) -> LineAnswer:
    """Answer a line of a batch. A response that failed is an error, as clients look for those in the error file."""
    site = get_site()
    create = await read_line(line, site.parse_create, site.reader)
    dialect = site.dialect(None)
    reader = await site.service.create(create, line.origin_of("responses"), dialect=dialect)
    with begun():
        response = await read_to_end(reader)
        if response["status"] == "failed":
            raise without_answer(reader.source.problem, deleted=reader.source.deleted)
    return LineAnswer(orjson.dumps(dialect.response(response)), tokens_of(response["usage"]))


async def _delete(request: ApiRequest, response_id: str) -> DeletedResponse:
    await get_site().responses.delete(request.caller.project, response_id)
    return {"id": response_id, "object": "response", "deleted": True}


async def _get(request: ApiRequest, response_id: str) -> HttpResponseBase:
    """Return a response, or pick up its stream (`stream=true&starting_after=N`)."""
    site, project = get_site(), request.caller.project
    dialect = site.dialect(request.headers.get(DIALECT_HEADER))
    if request.META["QUERY_STRING"]:
        query = request.query
        # Parsed even where it is not used, so that a wrong value is told in any case.
        include = parse_include_query(query)  # of its input: its own output keeps what it was created with
        starting_after = _starting_after(query)
        if _flag(query, "stream"):
            dialect = dialect.hiding if _flag(query, "include_obfuscation") else dialect
            reader = await site.responses.follow(
                project, response_id, starting_after=starting_after, dialect=dialect, include=include
            )
            return await _stream(site, request, reader, dialect)
    return json_response(dialect.response(await site.responses.response(project, response_id)))


async def _cancel(request: ApiRequest, response_id: str) -> HttpResponse:
    site = get_site()
    dialect = site.dialect(request.headers.get(DIALECT_HEADER))
    return json_response(dialect.response(await site.responses.cancel(request.caller.project, response_id)))


async def _give_output(request: ApiRequest, response_id: str) -> ResponseGoesOn:
    site = get_site()
    parse = partial(parse_tool_output, max_bytes=site.settings.responses_max_tool_output_bytes)
    output = await read_json(request, parse, site.reader)
    check_named(request.caller.scopes, named_in_parts(output.output, at="output"))
    await site.outputs.give(request.caller.project, response_id, output)
    return {"id": response_id, "status": "in_progress"}


async def _input_items(request: ApiRequest, response_id: str) -> ItemList:
    query = request.query
    page_query = parse_list_query(query)
    include = include_of(query, screenshots=get_site().settings.enable_computer_call)
    page = page_behind(await get_site().responses.input_items(request.caller.project, response_id), page_query)
    page["data"] = [with_included(input_item_resource(item), include) for item in page["data"]]
    return page


async def _input_tokens(request: ApiRequest) -> InputTokens:
    site = get_site()
    dialect = site.dialect(request.headers.get(DIALECT_HEADER))
    create = await read_json(request, site.parse_create, site.reader)
    if create.with_agents:
        check_beta(request.headers.get(BETA_HEADER))
    count = await site.service.count_input_tokens(create, _origin(request, create), dialect=dialect)
    return {"object": "response.input_tokens", "input_tokens": count}


async def _compact(request: ApiRequest) -> HttpResponse:
    """Sum a conversation up; the client goes on from what it gets: the user's messages and the summary."""
    site = get_site()
    dialect = site.dialect(request.headers.get(DIALECT_HEADER))
    create = await read_json(request, parse_compact, site.reader)
    reader, messages = await site.service.compact(create, _origin(request, create))
    response = await read_to_end(reader)
    if response["status"] != "completed":
        raise without_answer(reader.source.problem, deleted=reader.source.deleted)
    return json_response(dialect.response(compacted_response(response, messages)))


def _origin(request: ApiRequest, create: CreateRequest, *, awaits_tools: bool = False) -> Origin:
    """Return where a request came from; one whose client hears nothing before the end does not wait for it."""
    transport = "background" if create.background else "sse" if create.stream else "json"
    # A client of JSON could never learn which call to answer.
    return request.origin(transport, "responses", awaits_tools=awaits_tools and transport != "json")


async def _stream(
    site: Site, request: ApiRequest, reader: ResponseReader, dialect: Dialect, first_word_seconds: float = 0.0
) -> HttpResponseBase:
    return await event_stream(
        reader,
        ping_seconds=site.settings.responses_ping_interval_seconds,
        first_word_seconds=first_word_seconds,
        dialect=dialect,
        cut=request.cut,
    )


def _first_word_seconds(site: Site) -> float:
    return site.settings.stream_first_word_ms / 1000


def _flag(query: Query, name: str) -> bool:
    value = (query.get(name) or ["false"])[-1].lower()
    if value not in ("true", "false", "1", "0"):
        raise invalid_value(name, f"{value[:80]!r}. Supported values are: 'true' and 'false'.")
    return value in ("true", "1")


def _starting_after(query: Query) -> int | None:
    values = query.get("starting_after")
    if not values:
        return None
    value = values[-1]
    # Up to `_MAX_NUMBER`; Python would read digits of other scripts, too.
    if not (value.isascii() and value.isdecimal() and len(value) < 10):
        raise invalid_value("starting_after", f"{value[:80]!r}. It takes the sequence number of an event.")
    return int(value)


_RESPONSES = "/v1/responses"
_RESPONSE = f"{_RESPONSES}/{{response_id}}"
_RUNS = (404, 409, 429)  # what a request that is to be generated for can be answered, too
_STREAM = Parameter("stream", "Whether to stream the response, from its first event.", {"type": "boolean"})
_STARTING_AFTER = Parameter(
    "starting_after",
    "The sequence number after which the stream begins.",
    {"type": "integer", "minimum": 0, "maximum": _MAX_NUMBER},
)
_OBFUSCATION = Parameter(
    "include_obfuscation", "Whether the deltas of the stream are filled up with `obfuscation`.", {"type": "boolean"}
)
_TOOL_MODE = Parameter(
    TOOL_MODE_HEADER,
    "Whether a response ends with calls of its client's tools, or waits for their outputs.",
    text(enum=[COMPLETE, WAIT]),
    where="header",
)
_WHOLE = {JSON: "ResponseResource"}
_STREAMED = {**_WHOLE, EVENTS: "ServerSentEvent"}
_endpoint = partial(Endpoint, tag="Responses", scope=Area.RESPONSES)

ENDPOINTS = (
    _endpoint(
        "POST",
        _RESPONSES,
        _create,
        "createResponse",
        "Create a response: at once, as a stream, or in the background",
        body="CreateResponse",
        takes=(DIALECT, _TOOL_MODE, SEALS),
        answers=_STREAMED,
        errors=_RUNS,
        decide=_decide,
        replay=_replay,
        line=LineHandler(_line, effects=("conversation",)),
        websocket=True,
    ),
    _endpoint(
        "POST",
        f"{_RESPONSES}/input_tokens",
        _input_tokens,
        "getInputTokenCounts",
        "Count the tokens of the prompt that a request would have",
        body="CreateResponse",
        takes=(SEALS,),
        errors=_RUNS,
        only_asks=True,
    ),
    _endpoint(
        "POST",
        f"{_RESPONSES}/compact",
        _compact,
        "compactResponse",
        "Summarize a conversation",
        body="CompactResponse",
        takes=(DIALECT, SEALS),
        answers={JSON: CompactedResponse},
        errors=_RUNS,
    ),
    _endpoint(
        "GET",
        _RESPONSE,
        _get,
        "getResponse",
        "Return a response, or resume its stream",
        takes=(INCLUDE, _STREAM, _STARTING_AFTER, _OBFUSCATION, DIALECT),
        answers=_STREAMED,
    ),
    _endpoint("DELETE", _RESPONSE, _delete, "deleteResponse", "Delete a response"),
    _endpoint(
        "POST",
        f"{_RESPONSE}/cancel",
        _cancel,
        "cancelResponse",
        "Cancel a background response",
        takes=(DIALECT,),
        answers=_WHOLE,
    ),
    _endpoint(
        "GET",
        f"{_RESPONSE}/input_items",
        _input_items,
        "listInputItems",
        "List the input items of a response",
        takes=(*PAGED, INCLUDE),
    ),
    _endpoint(
        "POST",
        f"{_RESPONSE}/tool_outputs",
        _give_output,
        "submitToolOutput",
        "Send a tool's output to a waiting response",
        body=ToolOutput,
        errors=(409,),
    ),
)
