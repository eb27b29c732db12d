"""`/v1/rollouts`: roll-outs, their trees, rewards, and exports in the formats of trainers.

Times are Unix seconds, those of generations milliseconds. The rows of an export are made on a thread, a piece at a
time, while the client reads, from the oldest roll-out to the newest: what is held of it is one roll-out and one piece.
A roll-out that is deleted meanwhile is left out, or ends with the last row that was made.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import aclosing
from functools import partial
from typing import Literal

from django.http import HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from typing_extensions import TypedDict

from engine import orjson
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
from responses_app.protocol.requests.pages import page_of, parse_list_query
from responses_app.protocol.rollouts.generations import Generation
from responses_app.protocol.rollouts.requests import (
    NewReward,
    NewRollout,
    RolloutObject,
    RolloutTreeObject,
    parse_reward,
    parse_rollout,
    rollout_too_large,
)
from responses_app.protocol.rollouts.tree import MAX_NUMBERS, FormatOf, Masks, tree_of, unknown
from responses_app.resources.rollouts.fields import RolloutRecord
from responses_app.runs.rollouts import Rollouts
from responses_app.web.endpoint import JSON, PAGED, Endpoint, Parameter, text
from responses_app.web.http import ApiRequest, json_bytes, read_json
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


class RolloutList(TypedDict):
    """A part of a list of roll-outs. The ids of an empty one are empty texts."""

    object: Literal["list"]
    data: list[RolloutObject]
    first_id: str
    last_id: str
    has_more: bool


class DeletedRollout(TypedDict):
    """A roll-out is gone, with all its tokens."""

    id: str
    object: Literal["rollout.deleted"]
    deleted: Literal[True]


_making = asyncio.Semaphore(2)  # trees that one worker makes at once: each may be large


async def _create(request: ApiRequest) -> RolloutObject:
    new = await read_json(request, parse_rollout, get_site().reader)
    rollouts = get_site().rollouts
    return rollouts.shown(await rollouts.create(request.project, new))


async def _list(request: ApiRequest) -> RolloutList:
    query = request.query
    page = parse_list_query(query)
    group, rollouts = query.get("group"), get_site().rollouts
    rows = await rollouts.listed(
        request.project,
        after=page.after,
        limit=page.limit + 1,
        descending=page.descending,
        group=group[-1] if group else None,
    )
    return page_of(rows, page, rollouts.shown)


async def _get(request: ApiRequest, rollout_id: str) -> HttpResponse:
    """Return a roll-out: with its tree, or its head alone."""
    query, rollouts, project = request.query, get_site().rollouts, request.project
    with_tree = _choice(query.get("tree"), "tree", ("true", "false"))
    sequences = _choice(query.get("sequences"), "sequences", ("true", "false")) == "true"
    masks = _choice(query.get("masks"), "masks", ("first", "all"))
    record = await rollouts.get(project, rollout_id)
    head = rollouts.shown(record)
    if with_tree == "false":
        return json_bytes(orjson.dumps(head))
    if record.prompt_tokens + record.sampled_tokens > MAX_NUMBERS:  # before they are read
        raise rollout_too_large(MAX_NUMBERS, sequences=False)
    async with _making:
        generations = await rollouts.generations(record)
        made = await asyncio.to_thread(_tree, head, generations, "all" if masks == "all" else "first", sequences)
    return json_bytes(made)


def _tree(head: RolloutObject, generations: Sequence[Generation], masks: Masks, sequences: bool) -> bytes:
    """Return the tree as JSON. Raises `ApiError` where that would be too large."""
    tree = tree_of(head, generations, masks=masks, format_of=get_site().service.models.format_of)
    if tree.numbers(sequences=sequences) > MAX_NUMBERS:
        raise rollout_too_large(MAX_NUMBERS, sequences=sequences)
    return orjson.dumps(tree.as_json(sequences=sequences))


def _choice(values: Sequence[str] | None, name: str, choices: tuple[str, str]) -> str:
    value = values[-1] if values else choices[0]
    if value not in choices:
        raise invalid_value(name, f"{value[:80]!r}. Supported values are: '{choices[0]}' and '{choices[1]}'.")
    return value


async def _reward(request: ApiRequest, rollout_id: str) -> RolloutObject:
    rollouts, project = get_site().rollouts, request.project
    await rollouts.get(project, rollout_id)  # before the body is judged: what is another project's does not exist
    reward = await read_json(request, parse_reward, get_site().reader)
    return rollouts.shown(await rollouts.reward(project, rollout_id, reward))


async def _end(request: ApiRequest, rollout_id: str) -> RolloutObject:
    rollouts = get_site().rollouts
    return rollouts.shown(await rollouts.end(request.project, rollout_id))


async def _delete(request: ApiRequest, rollout_id: str) -> DeletedRollout:
    await get_site().rollouts.delete(request.project, rollout_id)
    return {"id": rollout_id, "object": "rollout.deleted", "deleted": True}


_ROLLOUTS = "/v1/rollouts"
_ROLLOUT = f"{_ROLLOUTS}/{{rollout_id}}"
_GROUP = Parameter("group", "The group of the roll-outs; all, where it is left out.", text())
_WITH_TREE = Parameter("tree", "Whether the answer has the tree.", text(enum=["true", "false"], default="true"))
_SEQUENCES = Parameter(
    "sequences",
    "Whether the tree has the sequences; many forks of a long prompt are shorter without.",
    text(enum=["true", "false"], default="true"),
)
_MASKS = Parameter(
    "masks",
    "Where a sampled token has the mask 1: in the first sequence that has it, or in all.",
    text(enum=["first", "all"], default="first"),
)
_endpoint = partial(Endpoint, tag="Rollouts", scope=Area.ROLLOUTS)

_KEPT = ("A roll-out keeps the tokens of all that runs in it", "Use another project.")

ENDPOINTS: Sequence[Endpoint] = (
    # Before `{rollout_id}`.
    _endpoint(
        "GET",
        "/v1/rollouts/export",
        _export,
        "exportRollouts",
        "Export roll-outs for a trainer",
        takes=_TAKES,
        answers={JSON_LINES: "", PARQUET: ""},
        errors=(429,),
    ),
    _endpoint(
        "POST",
        _ROLLOUTS,
        _create,
        "createRollout",
        "Create a roll-out",
        body=NewRollout,
        errors=(409, 429),
        keeps=_KEPT,
    ),
    _endpoint("GET", _ROLLOUTS, _list, "listRollouts", "List the roll-outs", takes=(*PAGED, _GROUP)),
    _endpoint(
        "GET",
        _ROLLOUT,
        _get,
        "getRollout",
        "Return a roll-out, with the tree of its tokens",
        takes=(_WITH_TREE, _SEQUENCES, _MASKS),
        answers={JSON: RolloutTreeObject},
    ),
    _endpoint("DELETE", _ROLLOUT, _delete, "deleteRollout", "Delete a roll-out, with all its tokens"),
    _endpoint("POST", f"{_ROLLOUT}/reward", _reward, "rewardRollout", "Add a reward", body=NewReward, errors=(409,)),
    _endpoint("POST", f"{_ROLLOUT}/end", _end, "endRollout", "End a roll-out: it takes no more requests"),
)
