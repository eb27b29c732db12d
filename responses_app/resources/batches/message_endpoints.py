"""`/v1/messages/batches`: batches of Anthropic's API, on the same machinery as those of `batches`.

Their requests come in the body of the create, and their results are read from the store, as JSON lines.
"""

from collections.abc import AsyncIterator
from functools import partial
from typing import Literal

from django.http import HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from typing_extensions import TypedDict

from responses_app.kit.errors import StoreError
from responses_app.protocol import ids
from responses_app.protocol.api_keys import Area
from responses_app.protocol.errors import invalid_value
from responses_app.protocol.fields import whole_number
from responses_app.protocol.messages.errors import MessagesErrorAnswer, check_version
from responses_app.protocol.requests.pages import Query, parse_cursor
from responses_app.protocol.transport import ANTHROPIC_VERSION as VERSION
from responses_app.resources.batches.checks import REFUSALS, check_can_run
from responses_app.resources.batches.lines import (
    CANCELLED,
    CANCELLING,
    EXPIRED,
    IN_PROGRESS,
    WINDOW_SECONDS,
    batch_not_found,
)
from responses_app.resources.batches.message_lines import (
    ENDPOINT,
    NewMessageBatch,
    batch_in_progress,
    not_run,
    parse_message_batch,
)
from responses_app.resources.batches.records import ERRORED, SUCCEEDED, BatchRecord, LineCounts
from responses_app.web.endpoint import Endpoint, Parameter, limit_of, text
from responses_app.web.http import ApiRequest, or_raise, read_json, rfc3339
from responses_app.web.transfers import streamed
from responses_app.wiring.site import get_site

JSON_LINES = "application/x-jsonl"
MAX_LISTED, LISTED = 1000, 20  # of one list, at most and where nothing is said
RESULTS_AT_ONCE = 500
OUTCOMES = (SUCCEEDED, ERRORED, CANCELLED, EXPIRED)


class MessageBatchCounts(TypedDict):
    """How many requests are under way; how the others ended is told once all have."""

    processing: int
    succeeded: int
    errored: int
    canceled: int
    expired: int


class MessageBatch(TypedDict):
    """A batch of messages. Times are RFC 3339, and null for what it did not come to."""

    id: str
    type: Literal["message_batch"]
    processing_status: Literal["in_progress", "canceling", "ended"]
    request_counts: MessageBatchCounts
    created_at: str
    expires_at: str
    ended_at: str | None
    cancel_initiated_at: str | None
    archived_at: None
    results_url: str | None  # of the JSON lines, once it has ended


class MessageBatchList(TypedDict):
    """A part of a list of batches."""

    data: list[MessageBatch]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedMessageBatch(TypedDict):
    """A batch is gone."""

    id: str
    type: Literal["message_batch_deleted"]


def _shown(record: BatchRecord, base: str) -> MessageBatch:
    at, counts, ended = record.times, record.counts, not record.is_open
    over = counts if ended else LineCounts(total=counts.total)
    ends = [at[status] for status in ("completed", "expired", "cancelled", "failed") if status in at]
    return {
        "id": record.id,
        "type": "message_batch",
        "processing_status": "ended" if ended else "canceling" if CANCELLING in at else "in_progress",
        "request_counts": {
            "processing": 0 if ended else counts.total,
            "succeeded": over.completed,
            "errored": over.failed,
            "canceled": over.cancelled,
            "expired": over.expired,
        },
        "created_at": rfc3339(record.created_at),
        "expires_at": rfc3339(record.expires_at),
        "ended_at": rfc3339(ends[0]) if ends else None,
        "cancel_initiated_at": rfc3339(at[CANCELLING]) if CANCELLING in at else None,
        "archived_at": None,
        "results_url": f"{base}{_BATCHES}/{record.id}/results" if ended else None,
    }


def _base(request: ApiRequest) -> str:
    """Return where the client finds this server."""
    return f"{request.scheme}://{request.get_host()}"


async def _create(request: ApiRequest) -> MessageBatch:
    check_version(request.headers.get(VERSION))
    site, caller = get_site(), request.caller
    check_can_run(request, ENDPOINT)
    parse = partial(parse_message_batch, max_lines=site.settings.batch_max_lines)
    lines = await read_json(request, parse, site.reader)
    now = int(site.service.now())
    record = BatchRecord(
        id=site.new_id(ids.MESSAGE_BATCH),
        project=caller.project,
        key_id=caller.key_id,
        endpoint=ENDPOINT,
        status=IN_PROGRESS,
        created_at=now,
        expires_at=now + WINDOW_SECONDS,
        times={IN_PROGRESS: now},
        counts=LineCounts(total=len(lines)),
    )
    await site.batches.create(record, lines)
    site.batch_work.wake()
    return _shown(record, _base(request))


async def _list(request: ApiRequest) -> MessageBatchList:
    check_version(request.headers.get(VERSION))
    query = request.query
    limit = _limit(query)
    after, before = (parse_cursor(query, name, ids.MESSAGE_BATCH) for name in ("after_id", "before_id"))
    if after is not None and before is not None:
        raise invalid_value("before_id", "it goes without 'after_id'.")
    rows = await get_site().batches.listed(
        request.project, ids.MESSAGE_BATCH, after=after or before, limit=limit + 1, descending=before is None
    )
    page = list(rows[:limit]) if before is None else list(reversed(rows[:limit]))
    base = _base(request)
    return {
        "data": [_shown(record, base) for record in page],
        "first_id": page[0].id if page else None,
        "last_id": page[-1].id if page else None,
        "has_more": len(rows) > limit,
    }


def _limit(query: Query) -> int:
    given = _last(query, "limit")
    limit = LISTED if given is None else whole_number(given, 1, MAX_LISTED)
    if limit is None:
        raise invalid_value("limit", f"{str(given)[:40]!r}. It takes a whole number from 1 to {MAX_LISTED}.")
    return limit


def _last(query: Query, name: str) -> str | None:
    return (query.get(name) or [""])[-1] or None


async def _get(request: ApiRequest, batch_id: str) -> MessageBatch:
    return _shown(await _found(request, batch_id), _base(request))


async def _cancel(request: ApiRequest, batch_id: str) -> MessageBatch:
    await _found(request, batch_id)
    site = get_site()
    record = await site.batches.cancel(request.project, batch_id, at=int(site.service.now()))
    return _shown(or_raise(record, batch_not_found(batch_id)), _base(request))


async def _delete(request: ApiRequest, batch_id: str) -> DeletedMessageBatch:
    record = await _found(request, batch_id)
    if record.is_open:
        raise batch_in_progress(batch_id, "deleted")
    await get_site().batches.delete(record.project, batch_id)
    return {"id": batch_id, "type": "message_batch_deleted"}


async def _results(request: ApiRequest, batch_id: str) -> HttpResponseBase:
    record = await _found(request, batch_id)
    if record.is_open:
        raise batch_in_progress(batch_id, "read")
    headers = {"x-content-type-options": "nosniff"}
    if request.method == "HEAD":
        return HttpResponse(content_type=JSON_LINES, headers=headers)
    pieces = _pieces(batch_id)
    first = await anext(pieces, b"")  # what fails by then is answered as an error
    lines = streamed(first, pieces, request.cut, (StoreError,))
    return StreamingHttpResponse(lines, content_type=JSON_LINES, headers=headers)


async def _pieces(batch_id: str) -> AsyncIterator[bytes]:
    after = 0
    while found := await get_site().batches.results(batch_id, after=after, limit=RESULTS_AT_ONCE, outcomes=OUTCOMES):
        yield b"".join(line.result or not_run(line.custom_id, line.outcome) for line in found)
        after = found[-1].number


async def _found(request: ApiRequest, batch_id: str) -> BatchRecord:
    known = batch_id.startswith(ids.MESSAGE_BATCH)
    record = await get_site().batches.get(request.project, batch_id) if known else None
    if record is None:
        raise batch_not_found(batch_id)
    check_version(request.headers.get(VERSION))
    return record


_BATCHES = "/v1/messages/batches"
_BATCH = f"{_BATCHES}/{{message_batch_id}}"
_VERSION = Parameter(
    VERSION, "The version of Anthropic's API that the client speaks.", text(pattern=r"^20\d\d-\d\d-\d\d$"),
    where="header", required=True,
)  # fmt: skip
_AFTER = Parameter("after_id", "The id of the batch after which the list begins.", text())
_BEFORE = Parameter("before_id", "The id of the batch before which the list ends.", text())
_LISTED = (limit_of("batches", maximum=MAX_LISTED, default=LISTED), _AFTER, _BEFORE, _VERSION)
_endpoint = partial(Endpoint, tag="Messages", scope=Area.RESPONSES, refusals=REFUSALS, error_answer=MessagesErrorAnswer)

_KEPT = ("A batch is kept, with its requests and their answers", "Send its requests one by one.")

ENDPOINTS = (
    _endpoint("GET", _BATCHES, _list, "listMessageBatches", "List the batches of messages", takes=_LISTED),
    _endpoint(
        *("POST", _BATCHES, _create, "createMessageBatch", "Run many requests for messages"),
        body=NewMessageBatch,
        takes=(_VERSION,),
        errors=(429,),
        keeps=_KEPT,
    ),
    _endpoint("GET", _BATCH, _get, "retrieveMessageBatch", "Return a batch of messages", takes=(_VERSION,)),
    _endpoint("DELETE", _BATCH, _delete, "deleteMessageBatch", "Delete a batch that has ended", takes=(_VERSION,)),
    _endpoint(
        *("POST", f"{_BATCH}/cancel", _cancel, "cancelMessageBatch", "Cancel a batch of messages"), takes=(_VERSION,)
    ),
    _endpoint(
        *("GET", f"{_BATCH}/results", _results, "messageBatchResults", "Return the results, as JSON lines"),
        answers={JSON_LINES: ""},
        takes=(_VERSION,),
    ),
)
