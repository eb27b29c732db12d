"""Origins of web pages (RFC 6454), as browsers send them and operators list them."""

from collections.abc import Collection
from urllib.parse import urlsplit

ANY = "*"
_DEFAULT_PORTS = {"http": 80, "https": 443}


def parsed(origin: str) -> tuple[str, str, int | None] | None:
    """Return an origin's scheme, host and port, None for what is not an origin."""
    try:
        parts = urlsplit(origin)
        port = parts.port
    # A port that is no number, or brackets that are not an IPv6 address.
    except ValueError:
        return None
    # An origin has nothing but these three. `urlsplit` drops what is empty, and tabs, so the signs are looked for.
    if not parts.hostname or parts.path or port == 0 or any(sign in origin for sign in "?#@\t\r\n"):
        return None
    return parts.scheme, parts.hostname, port or _DEFAULT_PORTS.get(parts.scheme)


def is_listed(origin: str, listed: Collection[str]) -> bool:
    """Whether an origin is one of those listed: "https://example.com" and "https://example.com:443" are the same."""
    page = parsed(origin)
    return ANY in listed or (page is not None and page in map(parsed, listed))
