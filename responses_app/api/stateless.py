"""Requests to models of which nothing is kept: raw prompts, embeddings of texts, and questions with probabilities."""

from collections.abc import AsyncGenerator
from functools import partial

from django.http import HttpResponse
from django.http.response import HttpResponseBase

from engine import orjson
from responses_app.protocol import ids
from responses_app.protocol.api_keys import Area
from responses_app.protocol.errors import ApiError, invalid_value
from responses_app.protocol.stateless.completions import (
    ChoiceDelta,
    Completion,
    CompletionServerSentEvent,
    CompletionWanted,
    joined,
    parse_completion,
)
from responses_app.protocol.stateless.decisions import Decision, parse_decisions
from responses_app.protocol.stateless.embeddings import (
    EmbeddingList,
    EmbeddingsHead,
    EmbeddingsWanted,
    EncodedAnswer,
    encode_answer,
    parse_embeddings,
)
from responses_app.resources.batches.handlers import LineAnswer, LineHandler, LineRequest, begun, tokens_of
from responses_app.resources.batches.lines import LineTokens
from responses_app.runs.plan.plan import Origin
from responses_app.runs.stateless.completing import Completing
from responses_app.web.endpoint import BYTES, EVENTS, JSON, Endpoint
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

BYTES_A_NUMBER = 20  # of a vector that is written as JSON, about


async def _complete(request: ApiRequest) -> HttpResponseBase:
    """Complete prompts."""
    site = get_site()
    parse = partial(parse_completion, engine_fields=site.takes_engine_fields)
    parsed = await read_json(request, parse, site.reader)
    transport = "sse" if parsed.fields.stream else "json"
    completing = await site.completions.create(parsed, request.origin(transport, "completions"))
    if not parsed.fields.stream:
        return json_response(await _whole(completing))
    ping_seconds = site.settings.responses_ping_interval_seconds
    try:
        first = await completing.take(seconds_to_head(ping_seconds))
    except BaseException:
        await completing.aclose()
        raise
    return await server_sent(_events(completing, parsed, first, ping_seconds))


async def _completion_line(line: LineRequest) -> LineAnswer:
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


async def _embed(request: ApiRequest) -> HttpResponse:
    """Embed texts, or tokens; each input is embedded by itself."""
    fields = await read_json(request, parse_embeddings, get_site().token_reader)
    written, _ = await _embedded(fields, request.origin("json"))
    headers = {"content-length": str(len(written.content))}
    if written.metadata is not None:
        headers["metadata"] = written.metadata
    return HttpResponse(written.content, content_type=written.media_type, headers=headers)


async def _embedding_line(line: LineRequest) -> LineAnswer:
    """Answer a line of a batch."""
    fields = await read_line(line, parse_embeddings, get_site().token_reader)
    if fields.encoding in ("bytes", "bytes_only"):
        raise invalid_value("encoding_format", "a line of a batch is JSON. Use 'base64' or 'float'.")
    written, tokens = await _embedded(fields, line.origin_of("responses"))
    return LineAnswer(written.content, LineTokens(input=tokens))


async def _embedded(fields: EmbeddingsWanted, origin: Origin) -> tuple[EncodedAnswer, int]:
    """Return the answer, and how many tokens it took. Raises `ApiError`."""
    site = get_site()
    model, embedded = await site.embeddings.service.embed(fields, origin)
    head = EmbeddingsHead(site.new_id(ids.EMBEDDING), int(site.service.now()), model)
    write = partial(encode_answer, embedded.vectors, head=head, tokens=embedded.tokens, encoding=fields.encoding)
    # On a thread where it is long: a thousand vectors of 1,000 numbers are 20 MB of text.
    size = BYTES_A_NUMBER * sum(map(len, embedded.vectors))
    return await site.token_reader.run(origin.project, size, write), embedded.tokens


async def _decide(request: ApiRequest) -> Decision:
    """Answer questions about an input with probabilities."""
    site = get_site()
    decisions = await read_json(request, parse_decisions, site.reader)
    return await site.decisions.decide(decisions, request.origin("json"))


ENDPOINTS = (
    Endpoint(
        "POST",
        "/v1/completions",
        _complete,
        "createCompletion",
        "Complete raw prompts, at once or as a stream",
        tag="Completions",
        scope=Area.RESPONSES,  # a model generates, as for a response
        body="CreateCompletion",
        answers={JSON: Completion, EVENTS: CompletionServerSentEvent},
        errors=(404, 429),
        line=LineHandler(_completion_line),
    ),
    Endpoint(
        "POST",
        "/v1/embeddings",
        _embed,
        "createEmbedding",
        "Make embeddings of texts, or of tokens",
        tag="Embeddings",
        scope=Area.EMBEDDINGS,
        body="CreateEmbedding",
        answers={JSON: EmbeddingList, BYTES: ""},
        errors=(404, 429),
        line=LineHandler(_embedding_line),
    ),
    Endpoint(
        "POST",
        "/v1/decisions",
        _decide,
        "createDecision",
        "Answer questions about an input with probabilities",
        tag="Decisions",
        scope=Area.RESPONSES,  # a model generates, as for a response
        body="CreateDecision",
        errors=(404, 429),
    ),
)
