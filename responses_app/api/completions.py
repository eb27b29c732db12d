"""`POST /v1/completions`: raw prompts, as JSON or as server-sent events."""

from collections.abc import AsyncGenerator
from functools import partial

from django.http.response import HttpResponseBase

from engine import orjson
from responses_app.protocol.api_keys import Area
from responses_app.protocol.errors import ApiError
from responses_app.protocol.stateless.completions import (
    ChoiceDelta,
    Completion,
    CompletionServerSentEvent,
    CompletionWanted,
    joined,
    parse_completion,
)
from responses_app.resources.batches.handlers import LineAnswer, LineHandler, LineRequest, begun, tokens_of
from responses_app.runs.stateless.completing import Completing
from responses_app.web.endpoint import EVENTS, JSON, Endpoint
from responses_app.web.http import (
    DONE,
    PING,
    ApiRequest,
    error_event,
    json_response,
    read_json,
    read_line,
    seconds_to_head,
    server_sent,
)
from responses_app.wiring.site import get_site


async def _create(request: ApiRequest) -> HttpResponseBase:
    """Complete prompts."""
    site = get_site()
    parse = partial(parse_completion, engine_fields=site.takes_engine_fields)
    parsed = await read_json(request, parse, site.reader)
    transport = "sse" if parsed.fields.stream else "json"
    completing = await site.completions.create(parsed, request.origin(transport, "completions"))
    if parsed.fields.stream:
        return await _stream(completing, parsed, site.settings.responses_ping_interval_seconds)
    return json_response(await _whole(completing))


async def _line(line: LineRequest) -> LineAnswer:
    """Answer a line of a batch."""
    site = get_site()
    parse = partial(parse_completion, engine_fields=site.takes_engine_fields)
    completing = await site.completions.create(await read_line(line, parse, site.reader), line.origin_of("completions"))
    with begun():
        body = await _whole(completing)
    return LineAnswer(orjson.dumps(body), tokens_of(body.get("usage")))


async def _whole(completing: Completing) -> Completion:
    """Return a whole completion, with its choices in their order."""
    deltas: dict[int, list[ChoiceDelta]] = {}
    try:
        while not completing.is_over:
            for delta in await completing.take():
                deltas.setdefault(delta.index, []).append(delta)
    finally:
        await completing.aclose()
    body = completing.head.body([joined(deltas[index], index) for index in sorted(deltas)], completing.usage)
    if completing.kv_transfer_params is not None:
        body["kv_transfer_params"] = dict(completing.kv_transfer_params)
    return body


async def _stream(completing: Completing, parsed: CompletionWanted, ping_seconds: float) -> HttpResponseBase:
    try:
        first = await completing.take(seconds_to_head(ping_seconds))
    except BaseException:
        await completing.aclose()
        raise
    return await server_sent(_events(completing, parsed, first, ping_seconds))


async def _events(
    completing: Completing, parsed: CompletionWanted, deltas: list[ChoiceDelta], ping_seconds: float
) -> AsyncGenerator[bytes, None]:
    """Yield a completion whose first `deltas` are known, a heartbeat where there are none after `ping_seconds`."""
    head, tells = completing.head, parsed.includes_usage
    try:
        # `server_sent` takes this one: a generator that has begun is closed in any case.
        yield b""
        yield b"".join(head.event([delta], delta.counted, tells=tells) for delta in deltas) or PING
        while not completing.is_over:
            deltas = await completing.take(ping_seconds or None)
            yield b"".join(head.event([delta], delta.counted, tells=tells) for delta in deltas) or PING
        yield (head.event([], completing.usage, tells=tells) if tells else b"") + DONE
    except ApiError as problem:
        yield error_event(problem) + DONE
    finally:
        await completing.aclose()


ENDPOINTS = (
    Endpoint(
        "POST",
        "/v1/completions",
        _create,
        "createCompletion",
        "Complete raw prompts, at once or as a stream",
        tag="Completions",
        scope=Area.RESPONSES,  # a model generates, as for a response
        body="CreateCompletion",
        answers={JSON: Completion, EVENTS: CompletionServerSentEvent},
        errors=(404, 429),
        line=LineHandler(_line),
    ),
)
