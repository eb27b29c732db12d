"""What handlers of HTTP need: a request's JSON, query and caller; JSON answers, errors, server-sent events.

What the events are is for who makes them: responses, chats and completions have their own.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import IO, Any, TypeVar

from django.core.exceptions import SuspiciousOperation
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpResponse, QueryDict, StreamingHttpResponse
from django.http.request import UnreadablePostError

from responses_app.kit.retention import Retentions
from responses_app.observing.traces import NO_SPAN, SPAN, Span
from responses_app.protocol.api_keys import NOBODY_ASKED, Caller
from responses_app.protocol.errors import (
    FOREIGN_SEALS,
    ApiError,
    ErrorAnswer,
    JsonObject,
    invalid_request,
    invalid_value,
)
from responses_app.protocol.fields import IgnoredFields
from responses_app.protocol.items.resources import SCREENSHOTS
from responses_app.protocol.json_text import dumps
from responses_app.protocol.messages.errors import error_answer, messages_status, speaks_messages
from responses_app.protocol.requests.pages import Query, parse_include_query
from responses_app.protocol.rollouts.requests import Api, ref_of
from responses_app.protocol.transport import ANTHROPIC_REQUEST_ID, JSON_TYPE, unsupported_media_type
from responses_app.resources.batches.handlers import LineRequest
from responses_app.runs.idempotency import IdempotencyKeys
from responses_app.runs.plan.plan import DecidedResponse, Origin
from responses_app.stores.base import BaseResponseStore
from responses_app.wiring.reading import JsonReader

Parsed = TypeVar("Parsed")
Fields = TypeVar("Fields")
CUT = "respsite.cut"  # of a request's scope: what breaks its answer off
Cut = Callable[[], Awaitable[None]]  # ends an answer in its middle: clients take a clean end for its whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """The parts of a site that every request may need on its way to its handler."""

    refuse_unknown: bool  # names that have no effect
    retentions: Callable[[], Awaitable[Retentions]]  # raises `StoreError` where nobody knows them
    responses: BaseResponseStore
    keys: IdempotencyKeys
    is_draining: Callable[[], bool]  # the server stops
    ping_seconds: float  # until a silent stream says that it is alive; 0: never
    max_lag_bytes: int  # of a stream whose client falls behind


class ApiRequest(ASGIRequest):
    """A request with what the API's handlers read of it beside its body and path."""

    caller: Caller = NOBODY_ASKED  # who asks; what it sees and makes is of its project alone
    request_id: str = ""
    is_of_api = False  # its path is one of the API's
    ignored_fields: IgnoredFields | None = None  # names that have no effect, which the answer tells
    decided_response: DecidedResponse | None = None  # of the response that it makes, where it has an idempotency key

    def __init__(self, scope: MutableMapping[str, Any], body_file: IO[bytes], serving: Serving) -> None:
        super().__init__(scope, body_file)
        self.serving = serving
        self.sent_headers = {name.decode("latin1"): value.decode("latin1") for name, value in scope["headers"]}
        self.span: Span = scope.get(SPAN, NO_SPAN)
        self.cut: Cut | None = scope.get(CUT)  # breaks its answer off, where its server can do so

    @property
    def project(self) -> str:
        """The project of who asks."""
        return self.caller.project

    @cached_property
    def query(self) -> Mapping[str, Sequence[str]]:
        """All values of each name in its query. Raises `ApiError` for one that has too many."""
        return read_query(self.META["QUERY_STRING"])

    @property
    def ignored(self) -> IgnoredFields:
        """The names in it that have no effect, which can be added to: the answer will have them."""
        if self.ignored_fields is None:
            self.ignored_fields = IgnoredFields(refuse=self.serving.refuse_unknown)
        return self.ignored_fields

    def origin(self, transport: str, api: Api | None = None, *, awaits_tools: bool = False) -> Origin:
        """Return where what it asks for comes from; a roll-out of its headers counts where it speaks an `api`.

        Raises `ApiError` for a roll-out's id that is none.
        """
        return Origin.of(
            self.caller,
            transport,
            request_id=self.request_id,
            awaits_tools=awaits_tools,
            span=self.span,
            decided=self.decided_response,
            rollout=None if api is None else ref_of(self.headers, api),
        )


def json_response(body: object, *, status: int = 200, headers: dict[str, str] | None = None) -> HttpResponse:
    """Return a JSON answer."""
    return json_bytes(dumps(body), status=status, headers=headers)


def json_bytes(content: bytes, *, status: int = 200, headers: dict[str, str] | None = None) -> HttpResponse:
    """Return an answer whose JSON is written already."""
    known = {"content-length": str(len(content)), **(headers or {})}  # daphne would send it in chunks
    return HttpResponse(content, status=status, content_type="application/json", headers=known)


def error_response(
    error: ApiError, *, path: str = "", headers: Mapping[str, str] | None = None, request_id: str = ""
) -> HttpResponse:
    """Return an error in OpenAI's shape, or in Anthropic's to a client of its API.

    `path` and `headers`, whose names are in lower case, are those of the request.
    """
    if speaks_messages(path, headers or {}):
        own = {**error.headers, ANTHROPIC_REQUEST_ID: request_id}
        return json_response(error_answer(error, request_id), status=messages_status(error.status), headers=own)
    answer: ErrorAnswer = {"error": error.body()}
    return json_response(answer, status=error.status, headers=error.headers)


async def read_json(request: ApiRequest, parse: Callable[[JsonObject], Parsed], reader: JsonReader) -> Parsed:
    """Return what `parse` makes of a request's body; a long one is read on a thread.

    Raises `ApiError`: 415 for another content type, 400 for no JSON or more of it than this server takes. How large a
    body may be was decided before, in `bodies`.
    """
    assert isinstance(request, ApiRequest)
    if request.content_type != JSON_TYPE:
        raise unsupported_media_type(request.content_type)
    # Only which thread reads it depends on this. In chunks the length is unknown, and the longest is assumed.
    length = "" if "Transfer-Encoding" in request.headers else request.META.get("CONTENT_LENGTH") or ""
    size = int(length) if length.isdecimal() else reader.max_body_bytes
    read = partial(reader.parsed, parse, request.headers.get(FOREIGN_SEALS), request.ignored_fields)
    try:
        # `request.read`, not `request.body`: the request is not to keep what was read.
        parsed, request.ignored_fields = await reader.read(request.caller.project, size, request.read, read)
    except UnreadablePostError:
        raise invalid_request("The body could not be read to its end. Send it again.") from None
    return parsed


async def read_line(line: LineRequest, parse: Callable[[JsonObject], Parsed], reader: JsonReader) -> Parsed:
    """Return what `parse` makes of a line of a batch, as `read_json` does of a body. Raises `ApiError`."""

    def read(content: bytes) -> Parsed:
        data = reader.as_object(content)
        for name in ("stream", "background"):
            if data.get(name):
                raise invalid_value(name, "a line of a batch has no client to answer meanwhile. Leave it out.")
        with reader.noting():
            return parse(data)

    return await reader.read(line.caller.project, len(line.body), lambda: line.body, read)


def parse_noting(request: ApiRequest, parse: Callable[[Fields], Parsed], fields: Fields, reader: JsonReader) -> Parsed:
    """Return what `parse` makes of a form's fields; the answer will name those that are ignored. Raises `ApiError`."""
    assert isinstance(request, ApiRequest)
    seals, of_query = request.headers.get(FOREIGN_SEALS), request.ignored_fields
    parsed, request.ignored_fields = reader.parsed(parse, seals, of_query, fields)
    return parsed


def or_raise(row: Parsed | None, absent: ApiError) -> Parsed:
    """Return what a store has found. Raises `absent` where that is nothing."""
    if row is None:
        raise absent
    return row


class NotServed(Exception):
    """Nothing is served at this path."""


class MethodNotAllowed(ApiError):
    """The method is not one of this path's (405); its `allow` header says which are."""

    def __init__(self, method: str, allowed: list[str], hint: str = "") -> None:
        message = f"Method {method} is not allowed here; this path takes {' and '.join(allowed)}.{hint}"
        super().__init__(message, status=405, code="method_not_allowed")
        self._allowed = allowed

    @property
    def headers(self) -> dict[str, str]:
        """The HTTP headers that belong to this error."""
        return {"allow": ", ".join(self._allowed)}


def read_query(text: str | bytes) -> Mapping[str, Sequence[str]]:
    """Return all values of each name in a query as it came. Raises `ApiError` for one that has too many."""
    try:
        return dict(QueryDict(text).lists())
    except SuspiciousOperation:
        raise invalid_request("The query has too many parameters.") from None


def include_of(query: Query, *, screenshots: bool) -> Sequence[str]:
    """Return what a list of items is to include; screenshots only with ENABLE_COMPUTER_CALL. Raises `ApiError`."""
    include = parse_include_query(query)
    if screenshots:
        return include
    return [each for each in include if each != SCREENSHOTS]


PING = b": ping\n\n"  # the heartbeat of a silent stream: a comment, which no client reads
DONE = b"data: [DONE]\n\n"  # behind the last event of a stream that is whole
HEAD_SECONDS = 15.0  # at most, until a client hears that its request is taken
GONE = "its client disconnected"


def seconds_to_head(ping_seconds: float) -> float:
    """Return how long an answer waits for its first event before it begins with a heartbeat.

    Until then its status is open: what fails before anything was said is an error with a status of its own, as it is
    without a stream, since no SDK tries again what fails behind a 200. `ping_seconds` is as for heartbeats, 0: never.
    """
    return min(ping_seconds or HEAD_SECONDS, HEAD_SECONDS)


async def server_sent(events: AsyncGenerator[bytes, None]) -> StreamingHttpResponse:
    """Return an answer that is a stream of `events`.

    The first of them is empty, and is taken here: only a generator that has begun is closed, and so lets go of what it
    holds, in any case.
    """
    await anext(events)
    response = StreamingHttpResponse(events, content_type="text/event-stream")
    response["cache-control"] = "no-cache"
    # nginx would gather the events otherwise.
    response["x-accel-buffering"] = "no"
    return response


def error_event(error: ApiError) -> bytes:
    """Return what a chat or a completion says that breaks in its middle: SDKs raise it."""
    return b"data: %b\n\n" % dumps({"error": error.body()})
