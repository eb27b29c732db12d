"""The fields of requests and answers of both APIs of batches, and the errors that are theirs alone."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast

from pydantic import Field
from typing_extensions import TypedDict

from responses_app.kit.clock import rfc3339, unix
from responses_app.protocol.errors import (
    ApiError,
    JsonObject,
    array_too_long,
    invalid_request,
    invalid_value,
    not_found,
)
from responses_app.protocol.fields import ClientModel, check_metadata, validate
from responses_app.protocol.files.files import FileExpiry
from responses_app.protocol.setting import KIB, MIB, RoomSettings, setting, whole
from responses_app.resources.batches.lines import BatchError, NewLine, written

if TYPE_CHECKING:
    from responses_app.resources.batches import model

Status = Literal["validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"]
_CUSTOM_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")  # of Anthropic's


@dataclass(frozen=True, kw_only=True)
class BatchSettings(RoomSettings):
    """How large batches may be, and how much of them runs at once."""

    batch_max_lines: int = setting(50_000, whole(1), "lines that a batch may have")
    batch_max_bytes: int = setting(
        200 * MIB, whole(KIB), "largest input file of a batch, also where FILE_MAX_BYTES is less"
    )
    batches_max_open: int = setting(
        100, whole(1), "batches of one project that may be under way at once; further ones get a 429"
    )
    batch_lines_running: int = setting(
        32, whole(1, 10_000), "lines of batches that one worker runs at once, shared fairly by projects"
    )


class NewBatch(ClientModel):
    """The body of a create."""

    completion_window: Literal["24h"]
    endpoint: str
    input_file_id: str = Field(min_length=1)
    metadata: dict[str, str] | None = None
    output_expires_after: FileExpiry | None = None

    def columns(self) -> dict[str, object]:
        """Return what is kept of it, by the columns of a batch."""
        expiry = self.output_expires_after
        return {
            "endpoint": self.endpoint,
            "input_file_id": self.input_file_id,
            "metadata": self.metadata,
            "output_seconds": None if expiry is None else expiry.seconds,
        }


def parse_batch(data: Mapping[str, object], *, endpoints: tuple[str, ...]) -> NewBatch:
    """Read the body of a create. Raises `ApiError`."""
    batch = validate(NewBatch, data)
    if batch.endpoint not in endpoints:
        supported = ", ".join(map(repr, endpoints))
        raise invalid_value("endpoint", f"{batch.endpoint[:80]!r}. Supported values are: {supported}.")
    check_metadata(batch.metadata)
    return batch


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


def shown(row: "model.Batch") -> Batch:
    """Return a batch as clients of OpenAI's API see it."""
    at = row.times
    # While they are written, nobody can read them.
    output, error = ("", "") if row.is_open else (row.output_file_id, row.error_file_id)
    return {
        "id": row.pk,
        "object": "batch",
        "endpoint": row.endpoint,
        "model": row.model or None,
        "errors": {"object": "list", "data": row.errors} if row.errors else None,
        "input_file_id": row.input_file_id,
        "completion_window": "24h",
        "status": cast(Status, row.status),
        "output_file_id": output or None,
        "error_file_id": error or None,
        "created_at": unix(row.created_at),
        "in_progress_at": at.get("in_progress"),
        "expires_at": unix(row.expires_at),
        "finalizing_at": at.get("finalizing"),
        "completed_at": at.get("completed"),
        "failed_at": at.get("failed"),
        "expired_at": at.get("expired"),
        "cancelling_at": at.get("cancelling"),
        "cancelled_at": at.get("cancelled"),
        "request_counts": {"total": row.total, "completed": row.completed, "failed": row.failed},
        "usage": {
            "input_tokens": row.input_tokens,
            "input_tokens_details": {"cached_tokens": row.cached_tokens},
            "output_tokens": row.output_tokens,
            "output_tokens_details": {"reasoning_tokens": row.reasoning_tokens},
            "total_tokens": row.input_tokens + row.output_tokens,
        },
        "metadata": row.metadata,
    }


class BatchRequest(ClientModel):
    """One of the requests."""

    custom_id: str
    params: JsonObject


class NewMessageBatch(ClientModel):
    """The body of a create."""

    requests: list[JsonObject] = Field(min_length=1)


def parse_message_batch(data: Mapping[str, object], *, max_lines: int) -> list[NewLine]:
    """Return the requests of a create. Raises `ApiError` that names the one that is wrong."""
    requests = validate(NewMessageBatch, data).requests
    if len(requests) > max_lines:
        raise array_too_long("requests", requests, max_lines, " (BATCH_MAX_LINES)")
    lines: list[NewLine] = []
    known: dict[str, int] = {}
    for index, each in enumerate(requests):
        at = f"requests[{index}]"
        request = validate(BatchRequest, each, at=at)
        if _CUSTOM_ID.fullmatch(request.custom_id) is None:
            raise invalid_value(f"{at}.custom_id", "it takes 1 to 64 letters, digits, hyphens and underscores.")
        first = known.setdefault(request.custom_id, index)
        if first != index:
            raise invalid_value(f"{at}.custom_id", f"'{request.custom_id}' is that of requests[{first}], too.")
        lines.append(NewLine(index + 1, request.custom_id, written(request.params)))
    return lines


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


def message_shown(row: "model.Batch", base: str) -> MessageBatch:
    """Return a batch as clients of Anthropic's API see it; they find this server at `base`."""
    at, ended = row.times, not row.is_open
    ends = [at[status] for status in ("completed", "expired", "cancelled", "failed") if status in at]
    return {
        "id": row.pk,
        "type": "message_batch",
        "processing_status": "ended" if ended else "canceling" if "cancelling" in at else "in_progress",
        "request_counts": {
            "processing": 0 if ended else row.total,
            "succeeded": row.completed if ended else 0,
            "errored": row.failed if ended else 0,
            "canceled": row.cancelled if ended else 0,
            "expired": row.expired if ended else 0,
        },
        "created_at": rfc3339(unix(row.created_at)),
        "expires_at": rfc3339(unix(row.expires_at)),
        "ended_at": rfc3339(ends[0]) if ends else None,
        "cancel_initiated_at": rfc3339(at["cancelling"]) if "cancelling" in at else None,
        "archived_at": None,
        "results_url": f"{base}/v1/messages/batches/{row.pk}/results" if ended else None,
    }


def batch_not_found(batch_id: str) -> ApiError:
    """There is no such batch, or it has been forgotten (404)."""
    return not_found(f"No batch found with id '{batch_id[:80]}'.", param="batch_id")


def too_many_batches(limit: int) -> ApiError:
    """The project has as many batches under way as it may have (429)."""
    return ApiError(
        f"{limit} batches of this project are under way already (BATCHES_MAX_OPEN). Wait until one has ended, or "
        "cancel one.",
        status=429,
        type="rate_limit_error",
        code="rate_limit_exceeded",
    )


def cannot_cancel(status: str) -> ApiError:
    """The batch has ended (400)."""
    return invalid_request(f"This batch has ended already: it is {status}.", code="invalid_batch_status")


def wrong_purpose(file_id: str, purpose: str) -> ApiError:
    """The input file was uploaded for something else (400)."""
    return invalid_request(
        f"The file '{file_id[:80]}' was uploaded with the purpose '{purpose}'. The input of a batch needs the purpose "
        "'batch'.",
        param="input_file_id",
        code="invalid_purpose",
    )


def input_too_large(size: int, limit: int) -> ApiError:
    """The input file is larger than a batch may be (400)."""
    return invalid_request(
        f"The input file has {size} bytes, and a batch may have {limit} (BATCH_MAX_BYTES). Split it.",
        param="input_file_id",
        code="file_too_large",
    )


def batch_in_progress(batch_id: str, verb: str) -> ApiError:
    """The request needs a batch that has ended (400)."""
    return invalid_request(f"The batch '{batch_id}' is under way, and cannot be {verb}. Cancel it first, or wait.")
