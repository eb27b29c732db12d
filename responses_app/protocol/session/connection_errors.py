"""The errors of a WebSocket connection itself, beside those of its requests."""

from collections.abc import Iterable

from responses_app.protocol.errors import ApiError, invalid_request, overloaded, rate_limited


def invalid_lane() -> ApiError:
    """The lane's name is not one."""
    return invalid_request(
        "The 'stream_id' field must be a non-empty string with at most 256 characters and may only contain letters, "
        "numbers, underscores, hyphens, and periods.",
        param="stream_id",
        code="invalid_stream_id",
    )


def too_many_lanes(limit: int) -> ApiError:
    """The connection has used all the lanes it may; they are never released."""
    return invalid_request(
        f"This WebSocket connection has reached its maximum number of distinct stream IDs ({limit}). Reuse an existing "
        "stream_id or open a new WebSocket connection.",
        param="stream_id",
        code="websocket_stream_limit_reached",
    )


def concurrent_request() -> ApiError:
    """One response at a time, and one is in flight (`WEBSOCKET_BUSY=reject`)."""
    return ApiError(
        "A response of this connection is still running, and this server takes one at a time (WEBSOCKET_BUSY=reject). "
        "Wait for its terminal event.",
        status=409,
        code="concurrent_request",
    )


def lifetime_over(lifetime: float) -> ApiError:
    """The connection's time is over; OpenAI's text, which clients know. `lifetime` is in seconds."""
    short = "1 second" if lifetime == 1 else f"{lifetime:g} seconds"
    life = short if lifetime < 120 else f"{lifetime / 60:.0f} minutes"
    return invalid_request(
        f"Responses websocket connection limit reached ({life}). Create a new websocket connection to continue.",
        code="websocket_connection_limit_reached",
    )


def queue_full(limit: int) -> ApiError:
    """As many creates wait as may."""
    return rate_limited(
        f"{limit} requests are waiting on this connection (WEBSOCKET_MAX_QUEUED), or they hold more than "
        "WEBSOCKET_MAX_STATE_BYTES. Wait for a response to finish, or open another connection."
    )


def connections_exhausted() -> ApiError:
    """The error at the door: as many connections are open, over all workers, as may be."""
    return ApiError(
        "Maximum WebSocket connections reached",
        status=429,
        type="rate_limit_error",
        code="websocket_connection_limit_reached",
        retry_after=5,
    )


def too_many_connections(limited: ApiError) -> ApiError:
    """The error at the door where a key or a project has as many connections open as it may."""
    return ApiError(
        limited.message,
        status=429,
        type="rate_limit_error",
        code="websocket_connection_limit_reached",
        retry_after=5,
    )


def message_too_large(size: int, limit: int) -> ApiError:
    """A message over the limit; the connection closes after it. Sizes in bytes."""
    return ApiError(
        f"The message has {size} bytes; this server takes {limit} (WEBSOCKET_MAX_MESSAGE_BYTES). Send a shorter input, "
        "or continue a response with 'previous_response_id' and only the new items.",
        status=413,
        code="message_too_large",
    )


def not_json(reason: str) -> ApiError:
    """A message that is not JSON, or not text."""
    return invalid_request(f"A message must be one JSON object as text: {reason}.", code="invalid_json")


def unknown_event_type(kind: object, supported: Iterable[str]) -> ApiError:
    """A message whose `type` is missing or not one of those supported."""
    known = f"Supported types are: {', '.join(map(repr, sorted(supported)))}."
    if kind is None:
        message = f"Missing required parameter: 'type'. {known}"
    elif isinstance(kind, str):
        message = f"Unknown event type: {kind[:80]!r}. {known}"
    else:
        message = f"Invalid type for 'type': expected a string. {known}"
    return invalid_request(message, param="type", code="unknown_event_type")


def frames_too_small(average: int) -> ApiError:
    """Most frames of a connection are tiny; it closes. `average` is in bytes."""
    return invalid_request(
        f"Messages come in frames that are too small. Frames must have at least {average} bytes on average: send each "
        "message in one frame.",
        code="frames_too_small",
    )


def message_too_slow(seconds: float) -> ApiError:
    """A message that did not come to its end in time; the connection closes."""
    return ApiError(
        f"The message did not arrive within {seconds:g} seconds (REQUEST_ARRIVAL_SECONDS) and was given up. "
        "Connect again, and send it faster.",
        status=408,
        code="request_timeout",
    )


def too_much_unfinished() -> ApiError:
    """Too many large messages are on their way at once; the connection with one of them closes."""
    return overloaded(
        "Too many large messages are on their way to this server at once (WEBSOCKET_MAX_UNFINISHED_BYTES). Connect "
        "again in a while, and send each message at once.",
        retry_after=5,
    )
