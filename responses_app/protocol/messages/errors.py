"""Errors in the shape that clients of Anthropic's API know, and who is such a client.

    {"type": "error", "error": {"type": "not_found_error", "message": "…"}, "request_id": "…"}

An error arises in many places that know nothing of this API: the gate, the reading of a body, the rate limits, a run.
All of them raise `ApiError`; only how it is written differs.
"""

import re
from collections.abc import Mapping
from typing import Literal, NotRequired

from typing_extensions import TypeAliasType, TypedDict

from responses_app.protocol.errors import ApiError, ErrorAnswer, invalid_request
from responses_app.protocol.transport import ANTHROPIC_VERSION as VERSION

OVERLOADED = 529
THREAD = "thread"  # a field by which this server would hold a conversation: it does not
_PATH = re.compile(r"(?:/v1)?/messages(?:/|$)")
_DATE = re.compile(r"20\d\d-\d\d-\d\d")

ErrorType = Literal[
    "invalid_request_error",
    "authentication_error",
    "permission_error",
    "not_found_error",
    "request_too_large",
    "rate_limit_error",
    "api_error",
    "overloaded_error",
]
_TYPES: Mapping[int, ErrorType] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    OVERLOADED: "overloaded_error",
}


class ErrorDetails(TypedDict):
    """What clients act on: an SDK that hears this sends the whole conversation from then on."""

    error_code: Literal["thread_unsupported_request"]
    unsupported: list[str]


class MessagesError(TypedDict):
    """What went wrong, where, and what to do."""

    type: ErrorType
    message: str
    details: NotRequired[ErrorDetails]


class MessagesErrorAnswer(TypedDict):
    """The body of every error, and the data of the event `error`."""

    type: Literal["error"]
    error: MessagesError
    request_id: str | None


# What a path answers with that clients of both APIs ask: each hears errors in its own shape.
EitherErrorAnswer = TypeAliasType("EitherErrorAnswer", ErrorAnswer | MessagesErrorAnswer)
ErrorSchema = type | TypeAliasType  # one of these three


def speaks_messages(path: str, headers: Mapping[str, str]) -> bool:
    """Whether a request is one of Anthropic's clients: by its path, or by a header of theirs; names in lower case."""
    return VERSION in headers or _PATH.match(path) is not None


def check_version(given: str | None) -> None:
    """Raise `ApiError` for a request that does not say which version of the API it speaks: a date."""
    if given is None:
        raise invalid_request(f"{VERSION}: header is required. Send '{VERSION}: 2023-06-01'.", param=VERSION)
    if _DATE.fullmatch(given) is None:
        raise invalid_request(f"{VERSION}: {given[:40]!r} is not a valid version. Send '2023-06-01'.", param=VERSION)


def messages_status(status: int) -> int:
    """Return the status of an error in this API, in which an overload has one of its own."""
    return OVERLOADED if status == 503 else status


def error_answer(error: ApiError, request_id: str | None) -> MessagesErrorAnswer:
    """Return an error as this API has it."""
    kind = _TYPES.get(error.status, "api_error" if error.status >= 500 else "invalid_request_error")
    told: MessagesError = {"type": kind, "message": error.message}
    if error.param == THREAD:
        told["details"] = {"error_code": "thread_unsupported_request", "unsupported": []}
    return {"type": "error", "error": told, "request_id": request_id or None}
