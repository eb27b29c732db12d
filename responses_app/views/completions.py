"""`POST /v1/completions`: raw prompts, as JSON or as server-sent events."""

from collections.abc import AsyncGenerator
from functools import partial

import orjson
from django.http import HttpRequest, StreamingHttpResponse
from django.http.response import HttpResponseBase

from responses_app.http import MethodNotAllowed, caller_of, json_response, read_json, request_id_of, span_of
from responses_app.protocol.completions import ChoiceDelta, CompletionWanted, joined, parse_completion
from responses_app.protocol.errors import ApiError
from responses_app.runs.completing import Completing
from responses_app.runs.plan import Origin
from responses_app.wiring import get_site

FIRST_SECONDS = 5.0  # that a stream waits for its first token, so that a refusal can still be an HTTP status


async def create(request: HttpRequest) -> HttpResponseBase:
    """Complete prompts."""
    if request.method != "POST":
        raise MethodNotAllowed(str(request.method), ["POST"])
    site = get_site()
    parse = partial(parse_completion, engine_fields=not site.settings.responses_compatibility_mode)
    wanted = await read_json(request, parse, site.reader)
    transport = "sse" if wanted.fields.stream else "json"
    origin = Origin.of(caller_of(request), transport, request_id=request_id_of(request), span=span_of(request))
    completing = await site.completions.create(wanted, origin)
    if wanted.fields.stream:
        return await _stream(completing, wanted, site.settings.responses_ping_interval_seconds or None)
    try:
        choices = await _read(completing)
    finally:
        await completing.aclose()
    body = completing.head.body(choices, completing.usage)
    if completing.kv_transfer_params is not None:
        body["kv_transfer_params"] = dict(completing.kv_transfer_params)
    return json_response(body)


async def _read(completing: Completing) -> list[ChoiceDelta]:
    """Return the whole choices, in their order."""
    said: dict[int, list[ChoiceDelta]] = {}
    while not completing.is_over:
        for delta in await completing.take():
            said.setdefault(delta.index, []).append(delta)
    return [joined(said[index], index) for index in sorted(said)]


async def _stream(
    completing: Completing, wanted: CompletionWanted, ping_seconds: float | None
) -> StreamingHttpResponse:
    try:
        first = await completing.take(FIRST_SECONDS)
    except BaseException:
        await completing.aclose()
        raise
    events = _events(completing, wanted, first, ping_seconds)
    await anext(events)  # only a generator that has begun is closed, and so lets go, in any case
    response = StreamingHttpResponse(events, content_type="text/event-stream")
    response["cache-control"] = "no-cache"
    response["x-accel-buffering"] = "no"
    return response


async def _events(
    completing: Completing, wanted: CompletionWanted, first: list[ChoiceDelta], ping_seconds: float | None
) -> AsyncGenerator[bytes, None]:
    head, tells = completing.head, wanted.includes_usage
    try:
        yield b""
        yield b"".join(head.event([delta], tells=tells) for delta in first)
        while not completing.is_over:
            deltas = await completing.take(ping_seconds)
            yield b"".join(head.event([delta], tells=tells) for delta in deltas) or b": ping\n\n"
        if tells:
            yield head.event([], completing.usage, tells=tells)
        yield b"data: [DONE]\n\n"
    except ApiError as problem:
        yield b"data: %b\n\ndata: [DONE]\n\n" % orjson.dumps({"error": problem.body()})
    finally:
        await completing.aclose()
