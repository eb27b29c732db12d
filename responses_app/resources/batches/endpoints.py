"""Batches: many requests that are run behind all else, in OpenAI's API and in Anthropic's.

`/v1/batches` has them in a file, and their answers in another one. `/v1/messages/batches` has them in the body of the
create, and their results are read from the store, as JSON lines.
"""

from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

from django.http import HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase

from responses_app.kit.clock import unix, utc
from responses_app.kit.errors import StoreError
from responses_app.protocol.api_keys import Area
from responses_app.protocol.errors import invalid_request, invalid_value
from responses_app.protocol.fields import whole_number
from responses_app.protocol.ids import BATCH, MESSAGE_BATCH
from responses_app.protocol.messages.errors import MessagesErrorAnswer, check_version
from responses_app.protocol.requests.pages import page_of, parse_cursor, parse_list_query
from responses_app.protocol.rollouts.requests import HEADER, METADATA
from responses_app.protocol.transport import ANTHROPIC_VERSION as VERSION
from responses_app.resources.batches import model
from responses_app.resources.batches.fields import (
    Batch,
    BatchList,
    DeletedMessageBatch,
    MessageBatch,
    MessageBatchList,
    NewBatch,
    NewMessageBatch,
    batch_in_progress,
    batch_not_found,
    cannot_cancel,
    input_too_large,
    message_shown,
    parse_batch,
    parse_message_batch,
    shown,
    too_many_batches,
    wrong_purpose,
)
from responses_app.resources.batches.lines import CANCELLED, ERRORED, EXPIRED, SUCCEEDED, NewLine, message_not_run_line
from responses_app.resources.batches.store import TooManyBatches
from responses_app.resources.files.fields import BATCH_PURPOSE, file_not_found
from responses_app.web.endpoint import PAGED, Endpoint, Parameter, Refusals, in_batches, limit_of, text
from responses_app.web.http import ApiRequest, or_raise, read_json
from responses_app.web.transfers import streamed
from responses_app.wiring.site import get_site

WINDOW = timedelta(hours=24)  # in which lines are begun: `completion_window`, at OpenAI, too
MESSAGES = "/v1/messages"  # the endpoint that answers the lines of Anthropic's
JSON_LINES = "application/x-jsonl"
MAX_LISTED, LISTED = 1000, 20  # of one list of Anthropic's, at most and where nothing is said
RESULTS_AT_ONCE = 500

REFUSALS: Refusals = {TooManyBatches: lambda *_: too_many_batches(get_site().settings.batches_max_open)}


def _check_can_run(request: ApiRequest, endpoint: str) -> None:
    """Raise `ApiError` where batches cannot be run here, or not by who asks, or not as it is asked."""
    if not get_site().settings.responses_store:
        raise invalid_request(
            "A batch needs a server that stores responses, and this one stores none (RESPONSES_STORE=off). Send the "
            "requests one by one.",
            code="invalid_value",
        )
    if HEADER in request.headers:
        raise invalid_value(
            HEADER,
            "a batch is part of no roll-out, and this header (or a base URL of a roll-out) would say nothing of its "
            f"lines. Name the roll-out of each line in its body: 'metadata': {{'{METADATA}': …}}.",
        )
    area = in_batches()[endpoint].scope
    request.caller.check_scope(area.scope(writes=True) if area is not None else None)


def _new(request: ApiRequest, prefix: str, **columns: Any) -> model.Batch:
    """Return a new batch of the caller's."""
    site, caller = get_site(), request.caller
    now = utc(int(site.service.now()))
    return model.Batch(
        id=site.new_id(prefix),
        project=caller.project,
        key_id=caller.key_id,
        created_at=now,
        expires_at=now + WINDOW,
        **columns,
    )


async def _keep(row: model.Batch, lines: Sequence[NewLine] = ()) -> None:
    await get_site().batches.create(row, lines)
    get_site().batch_work.wake()


async def _found(request: ApiRequest, batch_id: str, prefix: str = BATCH) -> model.Batch:
    row = await get_site().batches.get(request.project, batch_id) if batch_id.startswith(prefix) else None
    return or_raise(row, batch_not_found(batch_id))


# OpenAI's.


async def _create(request: ApiRequest) -> Batch:
    site, caller = get_site(), request.caller
    fields = await read_json(request, partial(parse_batch, endpoints=tuple(in_batches())), site.reader)
    _check_can_run(request, fields.endpoint)
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
    row = _new(request, BATCH, status=model.VALIDATING, **fields.columns())
    await _keep(row)
    return shown(row)


async def _list(request: ApiRequest) -> BatchList:
    page = parse_list_query(request.query, BATCH)
    rows = await get_site().batches.page(
        request.project, after=page.after, descending=page.descending, limit=page.limit + 1
    )
    return page_of(rows, page, shown)


async def _get(request: ApiRequest, batch_id: str) -> Batch:
    return shown(await _found(request, batch_id))


async def _cancel(request: ApiRequest, batch_id: str) -> Batch:
    before = await _found(request, batch_id)
    if not before.is_open:
        raise cannot_cancel(before.status)
    row = await get_site().batches.cancel(request.project, batch_id)
    return shown(or_raise(row, batch_not_found(batch_id)))


_BATCHES = "/v1/batches"
_BATCH = f"{_BATCHES}/{{batch_id}}"
_endpoint = partial(Endpoint, scope=Area.RESPONSES, refusals=REFUSALS)
_of_openai = partial(_endpoint, tag="Batches")

ENDPOINTS = (
    _of_openai("GET", _BATCHES, _list, "listBatches", "List the batches, the newest first", takes=PAGED),
    _of_openai(
        "POST",
        _BATCHES,
        _create,
        "createBatch",
        "Run the requests of a file",
        body=NewBatch,
        errors=(404, 429),
        keeps=("A batch is kept, with its lines and their answers", "Send its requests one by one."),
    ),
    _of_openai("GET", _BATCH, _get, "retrieveBatch", "Return a batch, with its counts"),
    _of_openai("POST", f"{_BATCH}/cancel", _cancel, "cancelBatch", "Cancel a batch; what has ended is kept"),
)


# Anthropic's.


def _shown(request: ApiRequest, row: model.Batch) -> MessageBatch:
    return message_shown(row, f"{request.scheme}://{request.get_host()}")


async def _create_of_messages(request: ApiRequest) -> MessageBatch:
    check_version(request.headers.get(VERSION))
    site = get_site()
    _check_can_run(request, MESSAGES)
    parse = partial(parse_message_batch, max_lines=site.settings.batch_max_lines)
    lines = await read_json(request, parse, site.reader)
    row = _new(request, MESSAGE_BATCH, endpoint=MESSAGES, total=len(lines))
    row.come_to(model.IN_PROGRESS, unix(row.created_at))
    await _keep(row, lines)
    return _shown(request, row)


async def _list_of_messages(request: ApiRequest) -> MessageBatchList:
    check_version(request.headers.get(VERSION))
    query = request.query
    value = (query.get("limit") or [""])[-1]
    limit = whole_number(value, 1, MAX_LISTED) if value else LISTED
    if limit is None:
        raise invalid_value("limit", f"{value[:40]!r}. It takes a whole number from 1 to {MAX_LISTED}.")
    after, before = (parse_cursor(query, name, MESSAGE_BATCH) for name in ("after_id", "before_id"))
    if after is not None and before is not None:
        raise invalid_value("before_id", "it goes without 'after_id'.")
    rows = await get_site().batches.page(
        request.project, prefix=MESSAGE_BATCH, after=after or before, limit=limit + 1, descending=before is None
    )
    page = list(rows[:limit]) if before is None else list(reversed(rows[:limit]))
    return {
        "data": [_shown(request, row) for row in page],
        "first_id": page[0].pk if page else None,
        "last_id": page[-1].pk if page else None,
        "has_more": len(rows) > limit,
    }


async def _get_of_messages(request: ApiRequest, batch_id: str) -> MessageBatch:
    return _shown(request, await _found_of_messages(request, batch_id))


async def _cancel_of_messages(request: ApiRequest, batch_id: str) -> MessageBatch:
    await _found_of_messages(request, batch_id)
    row = await get_site().batches.cancel(request.project, batch_id)
    return _shown(request, or_raise(row, batch_not_found(batch_id)))


async def _delete(request: ApiRequest, batch_id: str) -> DeletedMessageBatch:
    row = await _found_of_messages(request, batch_id)
    if row.is_open:
        raise batch_in_progress(batch_id, "deleted")
    await get_site().batches.delete(request.project, batch_id)
    return {"id": batch_id, "type": "message_batch_deleted"}


async def _results(request: ApiRequest, batch_id: str) -> HttpResponseBase:
    row = await _found_of_messages(request, batch_id)
    if row.is_open:
        raise batch_in_progress(batch_id, "read")
    headers = {"x-content-type-options": "nosniff"}
    if request.method == "HEAD":
        return HttpResponse(content_type=JSON_LINES, headers=headers)
    pieces = _pieces(batch_id)
    first = await anext(pieces, b"")  # what fails by then is answered as an error
    lines = streamed(first, pieces, request.cut, (StoreError,))
    return StreamingHttpResponse(lines, content_type=JSON_LINES, headers=headers)


async def _pieces(batch_id: str) -> AsyncIterator[bytes]:
    results = partial(
        get_site().batches.results, limit=RESULTS_AT_ONCE, outcomes=(SUCCEEDED, ERRORED, CANCELLED, EXPIRED)
    )
    after = 0
    while lines := await results(batch_id, after=after):
        yield b"".join(line.result or message_not_run_line(line.custom_id, line.outcome) for line in lines)
        after = lines[-1].number


async def _found_of_messages(request: ApiRequest, batch_id: str) -> model.Batch:
    row = await _found(request, batch_id, MESSAGE_BATCH)
    check_version(request.headers.get(VERSION))
    return row


_MESSAGE_BATCHES = f"{MESSAGES}/batches"
_MESSAGE_BATCH = f"{_MESSAGE_BATCHES}/{{message_batch_id}}"
_VERSION = Parameter(
    VERSION, "The version of Anthropic's API that the client speaks.", text(pattern=r"^20\d\d-\d\d-\d\d$"),
    where="header", required=True,
)  # fmt: skip
_LISTED = (
    limit_of("batches", maximum=MAX_LISTED, default=LISTED),
    Parameter("after_id", "The id of the batch after which the list begins.", text()),
    Parameter("before_id", "The id of the batch before which the list ends.", text()),
    _VERSION,
)
_of_anthropic = partial(_endpoint, tag="Messages", error_answer=MessagesErrorAnswer, takes=(_VERSION,))

MESSAGES_ENDPOINTS = (
    _of_anthropic(
        "GET", _MESSAGE_BATCHES, _list_of_messages, "listMessageBatches", "List the batches of messages", takes=_LISTED
    ),
    _of_anthropic(
        "POST",
        _MESSAGE_BATCHES,
        _create_of_messages,
        "createMessageBatch",
        "Run many requests for messages",
        body=NewMessageBatch,
        errors=(429,),
        keeps=("A batch is kept, with its requests and their answers", "Send its requests one by one."),
    ),
    _of_anthropic("GET", _MESSAGE_BATCH, _get_of_messages, "retrieveMessageBatch", "Return a batch of messages"),
    _of_anthropic("DELETE", _MESSAGE_BATCH, _delete, "deleteMessageBatch", "Delete a batch that has ended"),
    _of_anthropic(
        "POST", f"{_MESSAGE_BATCH}/cancel", _cancel_of_messages, "cancelMessageBatch", "Cancel a batch of messages"
    ),
    _of_anthropic(
        "GET",
        f"{_MESSAGE_BATCH}/results",
        _results,
        "messageBatchResults",
        "Return the results, as JSON lines",
        answers={JSON_LINES: ""},
    ),
)
