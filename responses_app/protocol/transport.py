"""Every answer and connection of the API, whatever it is for: headers, codings, and the errors of bodies and sockets.

The headers are OpenAI's, Azure's where a region is set, and Anthropic's for clients of its API. The errors are those of
an HTTP request's body before anything in it is looked at, and those of a WebSocket connection itself.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from responses_app.protocol.errors import ApiError, invalid_request, overloaded, rate_limited
from responses_app.protocol.setting import RoomSettings, setting

# Headers of requests and of answers.
REQUEST_ID, ORGANIZATION, VERSION = "x-request-id", "openai-organization", "openai-version"
ANTHROPIC_VERSION = "anthropic-version"  # by which clients of Anthropic's API say so
ANTHROPIC_REQUEST_ID = "request-id"  # in which these look for the id of their request
API_VERSIONS = "v1"  # Azure's name for this API
_PRINTABLE = re.compile(r"[\x20-\x7e]{1,128}")  # space to tilde: no line break, which would begin another header


def is_printable(text: str) -> bool:
    """Whether a client's own text may be echoed in a header: if it is printable and short."""
    return _PRINTABLE.fullmatch(text) is not None


def header_value(value: str) -> str:
    """What an HTTP header can say."""
    if not is_printable(value):
        raise ValueError("up to 128 printable ASCII characters")
    return value


@dataclass(frozen=True, kw_only=True)
class HeaderSettings(RoomSettings):
    """The settings of headers that every answer has."""

    default_openai_organization: str = setting(
        "", header_value,
        "value of the response header `openai-organization`, if the request does not send one",
        default_text="unset",
    )  # fmt: skip
    default_openai_version: str = setting(
        "", header_value,
        "value of the response header `openai-version`, if the request does not send one",
        default_text="unset",
    )  # fmt: skip
    azure_region: str = setting(
        "", header_value,
        "value of the response header `x-ms-region`; if set, responses also have Azure's `x-ms-request-id`",
        default_text="unset",
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class AnswerHeaders:
    """The headers that every answer has."""

    settings: HeaderSettings
    new_id: Callable[[], str]  # makes ids of requests
    # Whether a web page's origin, not the server's own, may read answers; None where no page may.
    is_listed: Callable[[str], bool] | None = None

    def request_id(self, request_headers: Mapping[str, str]) -> str:
        """Return the id of a request with these headers: its client's own, or a new one."""
        own = request_headers.get(REQUEST_ID, "")
        return own if own and is_printable(own) else self.new_id()

    def of(self, request_headers: Mapping[str, str], request_id: str, *, seconds: float = 0.0) -> dict[str, str]:
        """Return the headers of the answer to a request that had these, and took so long until its answer began."""
        headers = {REQUEST_ID: request_id, "openai-processing-ms": str(round(seconds * 1000))}
        if ANTHROPIC_VERSION in request_headers:
            headers[ANTHROPIC_REQUEST_ID] = request_id
        settings = self.settings
        defaults = ((ORGANIZATION, settings.default_openai_organization), (VERSION, settings.default_openai_version))
        for name, default in defaults:
            own = request_headers.get(name, "")
            value = own if own and is_printable(own) else default
            if value:
                headers[name] = value
        if settings.azure_region:
            headers["x-ms-region"] = settings.azure_region
            headers["x-ms-request-id"] = request_id
            headers["api-supported-versions"] = API_VERSIONS
        return headers

    def for_page(self, request_headers: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
        """Return the headers (CORS) by which a page of a listed origin may read an answer, and its headers: `names`."""
        if self.is_listed is None:
            return {}
        vary = {"vary": "Origin"}
        origin = request_headers.get("origin")
        if origin is None or not self.is_listed(origin):
            return vary
        exposed = sorted({name.lower() for name in names} - _ALWAYS_READ)
        return {
            **vary,
            "access-control-allow-origin": origin,
            "access-control-expose-headers": ", ".join(exposed),
        }


# Headers that pages may read without being told so, and those that tell them.
_ALWAYS_READ = frozenset(
    (
        *("cache-control", "content-language", "content-length", "content-type", "expires", "last-modified", "pragma"),
        *("access-control-allow-headers", "access-control-allow-methods", "access-control-max-age", "vary"),
    )
)
GZIP = "gzip"
_ALSO = {"x-gzip": GZIP}  # RFC 9110 section 8.4.1.3


def codings_of(values: Iterable[str]) -> list[str]:
    """Return the codings that values of `Content-Encoding` name, in the order in which they were applied.

    See RFC 9110 section 8.4.1.
    """
    named = (coding.strip().lower() for value in values for coding in value.split(","))
    return [_ALSO.get(coding, coding) for coding in named if coding not in ("", "identity")]


def codings_in(headers: Iterable[tuple[bytes, bytes]]) -> list[str]:
    """Return the codings of a body with these headers, in the order in which they were applied."""
    values = [value.decode("latin1") for name, value in headers if name.lower() == b"content-encoding"]
    return codings_of(values) if values else []


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


def unsupported_media_type(content_type: str | None, expected: str = JSON_TYPE) -> ApiError:
    """Anything but JSON, or where files are uploaded, but a form."""
    return ApiError(
        f"Unsupported content type: '{(content_type or 'none')[:80]}'. Send the body as '{expected}'.",
        status=415,
        code="unsupported_media_type",
    )


def unsupported_encoding(codings: str, taken: Sequence[str]) -> ApiError:
    """A body that is compressed in a way that is not unpacked here (415); the answer's headers say which ways are."""
    return ApiError(
        f"Unsupported 'Content-Encoding': '{codings[:80]}'. Send the body as it is, or compressed once, with "
        f"{', '.join(taken[:-1])} or {taken[-1]}.",
        status=415,
        code="unsupported_media_type",
    ).with_headers({"accept-encoding": ", ".join(taken)})


def request_too_slow(seconds: float) -> ApiError:
    """A request that did not arrive in time."""
    return ApiError(
        f"The request did not arrive within {seconds:g} seconds (REQUEST_ARRIVAL_SECONDS) and was given up. "
        "Send it again, faster.",
        status=408,
        code="request_timeout",
    )


def target_too_long(limit: int) -> ApiError:
    """A URL that is too long (414); `limit` is in bytes."""
    return ApiError(
        f"The request's URL is longer than {limit} bytes. Send what makes it long in the body, with POST.",
        status=414,
        code="request_too_large",
    )


def head_too_large(limit: int) -> ApiError:
    """Headers, and a URL, that are too many bytes together, or too many headers (431); `limit` is in bytes."""
    return ApiError(
        f"The request's headers and URL have more than {limit} bytes, or are too many. Send fewer and shorter ones.",
        status=431,
        code="request_too_large",
    )


def unreadable(reason: str, *, status: int = 400) -> ApiError:
    """A request that is not HTTP/1.1 as RFC 9112 has it; `reason` is the end of a sentence."""
    return ApiError(f"The request cannot be read: {reason}.", status=status)


def unknown_expectation(expected: str) -> ApiError:
    """An `Expect` with something else than a continuation (417)."""
    return ApiError(f"Unsupported 'Expect': '{expected[:80]}'. Send '100-continue', or nothing.", status=417)


def upgrade_required(version: str) -> ApiError:
    """A WebSocket of another version (426); the answer's headers say which one is spoken here."""
    return ApiError(
        f"Unsupported 'Sec-WebSocket-Version': '{version[:80]}'. This server speaks version 13 (RFC 6455).",
        status=426,
    ).with_headers({"upgrade": "websocket", "sec-websocket-version": "13"})


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
    # Seconds below two minutes, else minutes: by default `60 minutes`, as in OpenAI's text.
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


def connections_exhausted(message: str = "Maximum WebSocket connections reached") -> ApiError:
    """The error at the door: as many connections are open, over all workers, as may be: of all, a key or a project."""
    return ApiError(
        message,
        status=429,
        type="rate_limit_error",
        code="websocket_connection_limit_reached",
        retry_after=5,  # seconds; nobody knows when a connection ends
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
        retry_after=5,  # seconds; messages that are on their way arrive soon, or are given up
    )
