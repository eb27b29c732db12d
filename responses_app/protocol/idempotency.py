"""`Idempotency-Key`: what clients may send, and what they are told.

The codes and statuses are those of the IETF's draft of the header and of Stripe's API: 400 for what is no key, 422 for
one that was sent with another request. `x-should-retry: false` keeps OpenAI's and Anthropic's SDKs from sending a 409
again, which they do by themselves.

A key is claimed before its request is carried out, and the claim says what has become of it:

    running    a worker carries the request out
    free       nobody does: it failed, and whoever comes next may claim it
    answered   it has an answer: kept in parts here, or that of the response `object_id`
    cut        its answer broke off, or nobody knows what came of it
    too_long   it had an answer that was too long to be kept

Each claim has a token, and whatever is written names it. So a worker that was only slow, and was taken for dead,
changes nothing any more once another one has claimed the key.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from responses_app.protocol.errors import NO_RETRY, ApiError, conflict, invalid_request, rate_limited
from responses_app.protocol.setting import KIB, MIB, RoomSettings, seconds, setting, whole

IDEMPOTENCY_KEY = "Idempotency-Key"
REPLAYED = "idempotent-replayed"  # of an answer that is given once more
MAX_KEY = 255  # characters
_KEY = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")  # printable ASCII, without spaces at its ends


@dataclass(frozen=True, kw_only=True)
class IdempotencySettings(RoomSettings):
    """How long keys hold, and how much is kept for them."""

    idempotency_key_ttl: float = setting(
        86_400.0, seconds(1), "seconds for which an Idempotency-Key holds, and its answer is kept"
    )
    idempotency_max_keys: int = setting(
        100_000, whole(1), "about how many Idempotency-Keys of one project hold at once; further ones get a 429"
    )
    idempotency_max_bytes: int = setting(
        256 * MIB, whole(KIB),
        "about how many bytes of answers are kept for the Idempotency-Keys of one project; beyond it new keys get a "
        "429. Stored responses do not count here.",
    )  # fmt: skip
    idempotency_max_answer_bytes: int = setting(
        8 * MIB, whole(KIB),
        "largest answer that is kept for an Idempotency-Key; a longer one is sent, but not a second time",
    )  # fmt: skip


class KeyState(StrEnum):
    """What has become of the request of a key."""

    RUNNING = "running"
    FREE = "free"
    ANSWERED = "answered"
    CUT = "cut"
    TOO_LONG = "too_long"


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerHead:
    """What comes before the body of an answer."""

    status: int  # of HTTP
    headers: Mapping[str, str]  # by their names in lower case
    streams: bool  # the body comes in parts, as it is made


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyClaim:
    """That a worker is to carry out the request of a key."""

    id: str  # made of the project and the key
    project: str
    fingerprint: str  # of the request
    object_id: str  # the id of the stored response that it will make; "" where its answer is kept here
    token: str  # of this claim alone
    worker: str  # the id of the process


@dataclass(frozen=True, slots=True, kw_only=True)
class IdempotencyRecord:
    """A key, as it is kept."""

    fingerprint: str  # of the request it was first sent with
    object_id: str  # the stored response it makes; "" where its answer is kept here
    state: KeyState
    epoch: int  # how many have claimed it
    token: str  # of the claim that holds it
    is_orphan: bool  # its worker died while it was running, or does not know of it
    head: AnswerHead | None = None  # None until there is an answer


def checked_key(value: str) -> str:
    """Return a key. Raises `ApiError` (400) for a text that is none."""
    if len(value) > MAX_KEY or not _KEY.fullmatch(value):
        raise invalid_request(
            f"Invalid header '{IDEMPOTENCY_KEY}': it takes 1 to {MAX_KEY} printable ASCII characters, such as a UUID.",
            param=IDEMPOTENCY_KEY,
            code="invalid_idempotency_key",
        )
    return value


def key_reused() -> ApiError:
    """The key was sent with another request (422)."""
    return ApiError(
        f"This '{IDEMPOTENCY_KEY}' was sent with another request before: its path, its body or a header that changes "
        "the answer was different. Send the same request again, or choose another key.",
        status=422,
        code="idempotency_key_reused",
        param=IDEMPOTENCY_KEY,
    )


def answer_lost() -> ApiError:
    """The request was carried out, at least in part, and its answer is lost (409)."""
    return _no_answer(
        f"The first request with this '{IDEMPOTENCY_KEY}' was cut off when its server stopped, and its answer is lost. "
        "It is not carried out a second time. Look whether it took effect; to send it again, choose another key.",
        code="idempotency_answer_lost",
    )


def answer_unreadable() -> ApiError:
    """The answer was sealed with a key that the server does not have any more (409)."""
    return _no_answer(
        f"The first request with this '{IDEMPOTENCY_KEY}' was answered, and the server's keys have changed since: the "
        "answer cannot be read any more. It is not carried out a second time; choose another key to do so.",
        code="idempotency_answer_unreadable",
    )


def answer_too_long() -> ApiError:
    """The answer was too long to be kept (409)."""
    return _no_answer(
        f"The first request with this '{IDEMPOTENCY_KEY}' was answered, and the answer was too long to be kept "
        "(IDEMPOTENCY_MAX_ANSWER_BYTES). It is not carried out a second time; choose another key to do so.",
        code="idempotency_answer_too_long",
    )


def answer_deleted(object_id: str) -> ApiError:
    """The response of the key was deleted (409)."""
    return _no_answer(
        f"The response '{object_id}' that was made with this '{IDEMPOTENCY_KEY}' was deleted. Choose another key to "
        "make a new one.",
        code="idempotency_answer_deleted",
    )


def _no_answer(message: str, *, code: str) -> ApiError:
    """Return the 409 of a request that was carried out, and whose answer cannot be given again."""
    return conflict(message, code=code, param=IDEMPOTENCY_KEY).with_headers(NO_RETRY)


def too_many_keys(what: str) -> ApiError:
    """The project has as many keys as it may have (429). `what` is the setting."""
    return rate_limited(
        f"This project has as many '{IDEMPOTENCY_KEY}'s with their answers as are kept ({what}). Send the request "
        "without the header, or later.",
        retry_after=60,
    )
