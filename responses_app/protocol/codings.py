"""How bodies are compressed, as `Content-Encoding` says it (RFC 9110 section 8.4.1)."""

from collections.abc import Iterable

GZIP = "gzip"
_ALSO = {"x-gzip": GZIP}  # RFC 9110 section 8.4.1.3


def codings_of(values: Iterable[str]) -> list[str]:
    """Return the codings that the values of this header name, in the order in which they were applied."""
    named = (coding.strip().lower() for value in values for coding in value.split(","))
    return [_ALSO.get(coding, coding) for coding in named if coding not in ("", "identity")]


def codings_in(headers: Iterable[tuple[bytes, bytes]]) -> list[str]:
    """Return the codings of a body with these headers, in the order in which they were applied."""
    return codings_of(value.decode("latin1") for name, value in headers if name.lower() == b"content-encoding")
