"""Batches of Anthropic's API: the body of a create, and the lines of the results.

{"requests": [{"custom_id": "a", "params": {…}}, …]} ──> {"custom_id": "a", "result": {"type": "succeeded", …}}
"""

import re
from collections.abc import Mapping

from pydantic import Field

from engine import orjson
from responses_app.protocol.errors import ApiError, JsonObject, array_too_long, invalid_request, invalid_value
from responses_app.protocol.fields import ClientModel, validate
from responses_app.protocol.ids import MESSAGE_BATCH
from responses_app.protocol.json_text import dumps
from responses_app.resources.batches.lines import CANCELLED, EXPIRED, NewLine, written

ENDPOINT = "/v1/messages"  # that answers the lines

_CUSTOM_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_TYPES = {CANCELLED: "canceled", EXPIRED: "expired"}  # of the results of lines that were never begun


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


def is_messages_batch(batch_id: str) -> bool:
    """Whether a batch is one of this API."""
    return batch_id.startswith(MESSAGE_BATCH)


def message_line(custom_id: str, content: bytes, *, errored: bool = False) -> bytes:
    """Return the line of a request that was answered: with a message, or with an error."""
    kind, name = ("errored", "error") if errored else ("succeeded", "message")
    return _line(custom_id, {"type": kind, name: orjson.Fragment(content)})


def not_run(custom_id: str, outcome: str) -> bytes:
    """Return the line of a request that was never run."""
    return _line(custom_id, {"type": _TYPES[outcome]})


def _line(custom_id: str, result: JsonObject) -> bytes:
    return dumps({"custom_id": custom_id, "result": result}) + b"\n"


def batch_in_progress(batch_id: str, verb: str) -> ApiError:
    """The request needs a batch that has ended (400)."""
    return invalid_request(f"The batch '{batch_id}' is under way, and cannot be {verb}. Cancel it first, or wait.")
