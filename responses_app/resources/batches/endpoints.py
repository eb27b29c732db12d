"""`/v1/batches`: many requests in a file, run behind all else; their answers are in a file, too.

Times are Unix seconds. `/v1/messages/batches`, on the same machinery, is in `message_batches`.
"""

from functools import partial
from typing import Literal

from typing_extensions import TypedDict

from responses_app.protocol import ids
from responses_app.protocol.api_keys import Area
from responses_app.protocol.files.files import BATCH_PURPOSE, file_not_found
from responses_app.protocol.requests.pages import page_of, parse_list_query
from responses_app.resources.batches.checks import REFUSALS, check_can_run
from responses_app.resources.batches.lines import (
    OPEN,
    VALIDATING,
    WINDOW_SECONDS,
    BatchError,
    NewBatch,
    Status,
    batch_not_found,
    cannot_cancel,
    input_too_large,
    parse_batch,
    wrong_purpose,
)
from responses_app.resources.batches.records import BatchRecord
from responses_app.web.endpoint import PAGED, Endpoint, in_batches
from responses_app.web.http import ApiRequest, or_raise, read_json
from responses_app.wiring.site import get_site


class BatchErrors(TypedDict):
    """What is wrong with the input."""

    object: Literal["list"]
    data: list[BatchError]


class BatchCounts(TypedDict):
    """How many requests there are, and how many have ended; those that were never run are in neither count."""

    total: int
    completed: int
    failed: int


class BatchInputTokens(TypedDict):
    """What the input tokens were."""

    cached_tokens: int


class BatchOutputTokens(TypedDict):
    """What the output tokens were."""

    reasoning_tokens: int


class BatchUsage(TypedDict):
    """The tokens of all requests that were answered."""

    input_tokens: int
    input_tokens_details: BatchInputTokens
    output_tokens: int
    output_tokens_details: BatchOutputTokens
    total_tokens: int


class Batch(TypedDict):
    """A batch. Times are Unix seconds, and null for what it did not come to."""

    id: str
    object: Literal["batch"]
    endpoint: str
    model: str | None  # of its lines
    errors: BatchErrors | None
    input_file_id: str
    completion_window: Literal["24h"]
    status: Status
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: BatchCounts
    usage: BatchUsage
    metadata: dict[str, str] | None


class BatchList(TypedDict):
    """A part of a list of batches. The ids of an empty one are empty texts."""

    object: Literal["list"]
    data: list[Batch]
    first_id: str
    last_id: str
    has_more: bool


def batch_object(record: BatchRecord) -> Batch:
    """Return a batch."""
    at, counts, tokens = record.times, record.counts, record.tokens
    # While they are written, nobody can read them.
    output, error = ("", "") if record.is_open else (record.output_file_id, record.error_file_id)
    return {
        "id": record.id,
        "object": "batch",
        "endpoint": record.endpoint,
        "model": record.model or None,
        "errors": {"object": "list", "data": list(record.errors)} if record.errors else None,
        "input_file_id": record.input_file_id,
        "completion_window": "24h",
        "status": record.status,
        "output_file_id": output or None,
        "error_file_id": error or None,
        "created_at": record.created_at,
        "in_progress_at": at.get("in_progress"),
        "expires_at": record.expires_at,
        "finalizing_at": at.get("finalizing"),
        "completed_at": at.get("completed"),
        "failed_at": at.get("failed"),
        "expired_at": at.get("expired"),
        "cancelling_at": at.get("cancelling"),
        "cancelled_at": at.get("cancelled"),
        "request_counts": {"total": counts.total, "completed": counts.completed, "failed": counts.failed},
        "usage": {
            "input_tokens": tokens.input,
            "input_tokens_details": {"cached_tokens": tokens.cached},
            "output_tokens": tokens.output,
            "output_tokens_details": {"reasoning_tokens": tokens.reasoning},
            "total_tokens": tokens.input + tokens.output,
        },
        "metadata": None if record.metadata is None else dict(record.metadata),
    }


async def _create(request: ApiRequest) -> Batch:
    site, caller = get_site(), request.caller
    fields = await read_json(request, partial(parse_batch, endpoints=tuple(in_batches())), site.reader)
    check_can_run(request, fields.endpoint)
    caller.check_scope(Area.FILES.scope(writes=False))
    caller.check_scope(Area.FILES.scope(writes=True))
    file = or_raise(
        await site.files.get(caller.project, fields.input_file_id),
        file_not_found(fields.input_file_id, param="input_file_id"),
    )
    if file.purpose != BATCH_PURPOSE:
        raise wrong_purpose(file.id, file.purpose)
    if file.bytes > site.settings.batch_max_bytes:
        raise input_too_large(file.bytes, site.settings.batch_max_bytes)
    now = int(site.service.now())
    expiry = fields.output_expires_after
    record = BatchRecord(
        id=site.new_id(ids.BATCH),
        project=caller.project,
        key_id=caller.key_id,
        endpoint=fields.endpoint,
        status=VALIDATING,
        created_at=now,
        expires_at=now + WINDOW_SECONDS,
        input_file_id=file.id,
        output_seconds=None if expiry is None else expiry.seconds,
        metadata=fields.metadata,
    )
    await site.batches.create(record)
    site.batch_work.wake()
    return batch_object(record)


async def _list(request: ApiRequest) -> BatchList:
    page = parse_list_query(request.query, ids.BATCH)
    rows = await get_site().batches.listed(
        request.project, ids.BATCH, after=page.after, descending=page.descending, limit=page.limit + 1
    )
    return page_of(rows, page, batch_object)


async def _get(request: ApiRequest, batch_id: str) -> Batch:
    return batch_object(await _found(request, batch_id))


async def _cancel(request: ApiRequest, batch_id: str) -> Batch:
    before = await _found(request, batch_id)
    if before.status not in OPEN:
        raise cannot_cancel(before.status)
    site = get_site()
    record = await site.batches.cancel(before.project, batch_id, at=int(site.service.now()))
    return batch_object(or_raise(record, batch_not_found(batch_id)))


async def _found(request: ApiRequest, batch_id: str) -> BatchRecord:
    known = batch_id.startswith(ids.BATCH)
    record = await get_site().batches.get(request.project, batch_id) if known else None
    return or_raise(record, batch_not_found(batch_id))


_BATCHES = "/v1/batches"
_BATCH = f"{_BATCHES}/{{batch_id}}"
_endpoint = partial(Endpoint, tag="Batches", scope=Area.RESPONSES, refusals=REFUSALS)

_KEPT = ("A batch is kept, with its lines and their answers", "Send its requests one by one.")

ENDPOINTS = (
    _endpoint("GET", _BATCHES, _list, "listBatches", "List the batches, the newest first", takes=PAGED),
    _endpoint(
        *("POST", _BATCHES, _create, "createBatch", "Run the requests of a file"),
        body=NewBatch,
        errors=(404, 429),
        keeps=_KEPT,
    ),
    _endpoint("GET", _BATCH, _get, "retrieveBatch", "Return a batch, with its counts"),
    _endpoint("POST", f"{_BATCH}/cancel", _cancel, "cancelBatch", "Cancel a batch; what has ended is kept"),
)
