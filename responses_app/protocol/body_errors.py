"""The errors of an HTTP request's body, before anything in it is looked at."""

from responses_app.protocol.errors import ApiError, invalid_request

JSON_TYPE = "application/json"
FORM_TYPE = "multipart/form-data"  # of files
CHUNKED = "chunked"  # the transfer coding


def body_too_large(limit: int) -> ApiError:
    """More than MAX_BODY_BYTES."""
    return ApiError(
        f"The body is larger than {limit} bytes (MAX_BODY_BYTES). Send a shorter input, or continue a response with "
        "'previous_response_id' and only the new items.",
        status=413,
        code="request_too_large",
    )


def body_too_large_here(limit: int) -> ApiError:
    """More than a path takes that has no use for JSON."""
    return ApiError(
        f"The body is larger than {limit} bytes, which is all that is taken here. Large bodies are taken as JSON by "
        "the API's own paths, with POST, like /v1/responses.",
        status=413,
        code="request_too_large",
    )


def unsupported_media_type(content_type: str | None, wanted: str = JSON_TYPE) -> ApiError:
    """Anything but JSON, or where files are uploaded, but a form."""
    return ApiError(
        f"Unsupported content type: '{(content_type or 'none')[:80]}'. Send the body as '{wanted}'.",
        status=415,
        code="unsupported_media_type",
    )


def request_too_slow(seconds: float) -> ApiError:
    """A request that did not arrive in time."""
    return ApiError(
        f"The request did not arrive within {seconds:g} seconds (REQUEST_ARRIVAL_SECONDS) and was given up. "
        "Send it again, faster.",
        status=408,
        code="request_timeout",
    )


def chunks_too_small(average: int) -> ApiError:
    """A body in chunks of which most are tiny; `average` is in bytes."""
    return invalid_request(
        f"The body comes in chunks that are too small. Chunks must have at least {average} bytes on average: write "
        "larger pieces, or send the body whole, with 'Content-Length'.",
        code="chunks_too_small",
    )


def unknown_coding(codings: str) -> ApiError:
    """A body that is wrapped in another way than in chunks alone."""
    return invalid_request(
        f"Unsupported 'Transfer-Encoding': '{codings[:80]}'. Send the body with 'Transfer-Encoding: chunked', or "
        "whole, with 'Content-Length'.",
        code="unsupported_transfer_encoding",
    )


def coding_beside_length() -> ApiError:
    """A body that says in two ways where it ends."""
    return invalid_request(
        "Unsupported: 'Transfer-Encoding' and 'Content-Length' in one request. Send one of them.",
        code="unsupported_transfer_encoding",
    )
