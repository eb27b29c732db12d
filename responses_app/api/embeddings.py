"""`POST /v1/embeddings`: embeddings of texts."""

from functools import partial

from django.http import HttpResponse

from responses_app.protocol import ids
from responses_app.protocol.api_keys import Area
from responses_app.protocol.errors import invalid_value
from responses_app.protocol.stateless.embeddings import (
    EmbeddingList,
    EmbeddingsHead,
    EmbeddingsWanted,
    EncodedAnswer,
    encode_answer,
    parse_embeddings,
)
from responses_app.resources.batches.handlers import LineAnswer, LineHandler, LineRequest
from responses_app.resources.batches.lines import LineTokens
from responses_app.runs.plan.plan import Origin
from responses_app.web.endpoint import BYTES, JSON, Endpoint
from responses_app.web.http import ApiRequest, read_json, read_line
from responses_app.wiring.site import get_site

BYTES_A_NUMBER = 20  # of a vector that is written as JSON, about


async def _create(request: ApiRequest) -> HttpResponse:
    """Embed texts, or tokens; each input is embedded by itself."""
    site = get_site()
    fields = await read_json(request, parse_embeddings, site.token_reader)
    written, _ = await _embedded(fields, request.origin("json"))
    headers = {"content-length": str(len(written.content))}
    if written.metadata is not None:
        headers["metadata"] = written.metadata
    return HttpResponse(written.content, content_type=written.media_type, headers=headers)


async def _line(line: LineRequest) -> LineAnswer:
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


ENDPOINTS = (
    Endpoint(
        "POST",
        "/v1/embeddings",
        _create,
        "createEmbedding",
        "Make embeddings of texts, or of tokens",
        tag="Embeddings",
        scope=Area.EMBEDDINGS,
        body="CreateEmbedding",
        answers={JSON: EmbeddingList, BYTES: ""},
        errors=(404, 429),
        line=LineHandler(_line),
    ),
)
