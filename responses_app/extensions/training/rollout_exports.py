"""`GET /v1/rollouts/export`: many roll-outs in one file, in the format of a trainer, from the oldest to the newest.

The rows of a roll-out are made on a thread, a piece at a time, while the client reads: what is held of an export is one
roll-out and one piece. A roll-out that is deleted meanwhile is left out, or ends with the last row that was made.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import aclosing

from django.http import HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase

from responses_app.extensions.training.exports import (
    FILE_TYPES,
    MAX_TIME,
    STATUSES,
    ExportQuery,
    ParquetMissing,
    RowWriter,
    parse_export,
    too_many_exports,
    writer_of,
)
from responses_app.extensions.training.training_rows import FORMATS
from responses_app.kit.errors import StoreError
from responses_app.protocol.api_keys import Area
from responses_app.protocol.errors import ApiError, JsonObject, invalid_value
from responses_app.protocol.rollouts.generations import Generation
from responses_app.protocol.rollouts.requests import RolloutObject
from responses_app.protocol.rollouts.tree import FormatOf, tree_of, unknown
from responses_app.resources.rollouts.fields import RolloutRecord
from responses_app.runs.rollouts import Rollouts
from responses_app.web.endpoint import Endpoint, Parameter, text
from responses_app.web.http import ApiRequest
from responses_app.web.transfers import streamed
from responses_app.wiring.site import get_site

PAGE = 100  # roll-outs that are looked up at once
AT_ONCE = 4  # exports of one process: each holds a roll-out, which may be large
PIECE = 256 * 1024  # bytes that are sent at once, where one row is not longer

_slots = asyncio.Semaphore(AT_ONCE)


async def exported(
    rollouts: Rollouts, project: str, query: ExportQuery, format_of: FormatOf = unknown
) -> AsyncGenerator[bytes, None]:
    """Yield the file of an export, at first an empty piece. `format_of` is asked on threads.

    Raises `ApiError` for an unknown `after` and where too many run, `ParquetMissing`, and `StoreError`.
    """
    writer = writer_of(query)
    after = None if query.after is None else await rollouts.place(project, query.after)
    if _slots.locked():
        raise too_many_exports()
    async with _slots:
        yield b""
        async for record, head in _chosen(rollouts, project, query, after):
            try:
                generations = await rollouts.generations(record)
            except ApiError:  # it is deleted
                continue
            pieces = _pieces(head, generations, query, writer, format_of)
            # `b""` in place of `StopIteration`, which no task can raise.
            while piece := await asyncio.to_thread(next, pieces, b""):
                yield piece
        yield writer.end()


async def _chosen(
    rollouts: Rollouts, project: str, query: ExportQuery, after: str | None
) -> AsyncIterator[tuple[RolloutRecord, RolloutObject]]:
    """Yield the roll-outs behind the one with the id `after` that are taken, as far as that shows without tokens.

    Each also as clients see it.

    It goes on by ids of the roll-outs' own: names may be given anew meanwhile, to roll-outs that come last.
    """
    while True:
        page = await rollouts.behind(project, after, limit=PAGE, group=query.selection.group)
        for record in page:
            head = rollouts.shown(record)
            if query.selection.takes(head):
                yield record, head
        if len(page) < PAGE:
            return
        after = page[-1].id


def _pieces(
    head: RolloutObject,
    generations: Sequence[Generation],
    query: ExportQuery,
    writer: RowWriter,
    format_of: FormatOf,
) -> Iterator[bytes]:
    tree = tree_of(head, generations, format_of=format_of)
    if not query.selection.takes_tree(tree):
        return
    piece = bytearray()
    for row in FORMATS[query.format](tree):
        piece += writer.add(row)
        if len(piece) >= PIECE:
            yield bytes(piece)
            piece.clear()
    if piece:
        yield bytes(piece)


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
