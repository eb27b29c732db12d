"""`GET /v1/rollouts/export`: many roll-outs in one file, in the format of a trainer."""

from collections.abc import Sequence
from contextlib import aclosing

from django.http import HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase

from responses_app.extensions.training.exporting import exported
from responses_app.extensions.training.exports import FILE_TYPES, MAX_TIME, STATUSES, ParquetMissing, parse_export
from responses_app.extensions.training.training_rows import FORMATS
from responses_app.kit.errors import StoreError
from responses_app.protocol.api_keys import Area
from responses_app.protocol.errors import JsonObject, invalid_value
from responses_app.web.endpoint import Endpoint, Parameter, text
from responses_app.web.http import ApiRequest
from responses_app.web.transfers import streamed
from responses_app.wiring.site import get_site

JSON_LINES, PARQUET = "application/x-jsonl", "application/vnd.apache.parquet"


async def _export(request: ApiRequest) -> HttpResponseBase:
    query = parse_export(request.query)
    kind = PARQUET if query.file_type == "parquet" else JSON_LINES
    headers = {"x-content-type-options": "nosniff", "cache-control": "no-store"}
    pieces = exported(get_site().rollouts, request.project, query, get_site().service.models.format_of)
    try:
        first = await anext(pieces)  # what fails by then is answered as an error
    except ParquetMissing as error:
        raise invalid_value("file_type", f"{error}. It is for the one who runs this server.") from None
    if request.method == "HEAD":
        async with aclosing(pieces):
            return HttpResponse(content_type=kind, headers=headers)
    return StreamingHttpResponse(
        streamed(first, pieces, request.cut, (StoreError,)), content_type=kind, headers=headers
    )


_TIME: JsonObject = {"type": "integer", "minimum": 0, "maximum": MAX_TIME}
_REWARD: JsonObject = {"type": "number"}
_TAKES = (
    Parameter("format", "What a row is, and whose.", text(enum=list(FORMATS), default="tree")),
    Parameter(
        "file_type", "JSON Lines, or Parquet where the server has it.", text(enum=list(FILE_TYPES), default="jsonl")
    ),
    Parameter("after", "The id of the roll-out after which it begins; the oldest come first.", text()),
    Parameter("group", "Only roll-outs of this group.", text()),
    Parameter("status", "Only roll-outs that are open, or that have ended.", text(enum=list(STATUSES))),
    Parameter("version", "Only roll-outs with a token that was sampled by these weights.", text()),
    Parameter("min_reward", "Only roll-outs with this reward or more; parts of one are summed.", _REWARD),
    Parameter("max_reward", "Only roll-outs with this reward or less.", _REWARD),
    Parameter("created_after", "Only roll-outs that were created at this Unix time or later.", _TIME),
    Parameter("created_before", "Only roll-outs that were created before this Unix time.", _TIME),
)

ENDPOINTS: Sequence[Endpoint] = (
    Endpoint(
        "GET",
        "/v1/rollouts/export",
        _export,
        "exportRollouts",
        "Export roll-outs for a trainer",
        tag="Rollouts",
        scope=Area.ROLLOUTS,
        takes=_TAKES,
        answers={JSON_LINES: "", PARQUET: ""},
        errors=(429,),
    ),
)
