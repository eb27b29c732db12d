"""`Idempotency-Key`: what clients may send, and what they are told.

The codes and statuses are those of the IETF's draft of the header and of Stripe's API: 400 for what is no key, 422 for
one that was sent with another request. `x-should-retry: false` keeps OpenAI's and Anthropic's SDKs from sending a 409
again, which they do by themselves.
"""

import re

from responses_app.protocol.errors import NO_RETRY, ApiError, conflict, invalid_request, rate_limited

IDEMPOTENCY_KEY = "Idempotency-Key"
REPLAYED = "idempotent-replayed"  # of an answer that is given once more
MAX_KEY = 255  # characters
_KEY = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")  # printable ASCII, without spaces at its ends


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
