"""Which web pages may use the server: a browser says where a request comes from, and cannot be made to lie about it.

The API asks nobody for a password, and a browser inside the network reaches it for any page that its user opens. So a
page's requests pass where the page is the server's own (same scheme, host and port as the request went to) or one of
ALLOWED_ORIGINS. What is not a browser sends no Origin, and passes. The host that a request names is checked everywhere
(`host_allowed`): without that, a page could call itself by any name and let it lead here (DNS rebinding).
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from django.http import HttpRequest
from django.http.request import split_domain_port, validate_host

ANY = "*"
_DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where a request came from and where it went, as its headers say; None where they say nothing."""

    scheme: str  # http or https
    host: str | None
    origin: str | None
    fetch_site: str | None
    fetch_mode: str | None = None

    @classmethod
    def of_request(cls, request: HttpRequest) -> "Source":
        """Read a request whose host has been checked."""
        return cls(
            scheme=str(request.scheme),
            host=request.get_host(),
            origin=request.headers.get("origin"),
            fetch_site=request.headers.get("sec-fetch-site"),
            fetch_mode=request.headers.get("sec-fetch-mode"),
        )

    @classmethod
    def of_handshake(cls, scope: Any) -> "Source":
        """Read the scope of a WebSocket."""
        headers = {name: value.decode("latin1") for name, value in reversed(scope["headers"])}  # the first one counts
        return cls(
            scheme="https" if scope.get("scheme") == "wss" else "http",
            host=headers.get(b"host"),
            origin=headers.get(b"origin"),
            fetch_site=headers.get(b"sec-fetch-site"),
        )

    @property
    def is_link(self) -> bool:
        """Whether the user opens a page, from wherever a link led them here: no other page sees what is answered."""
        return self.origin is None and self.fetch_mode == "navigate"

    def is_allowed(self, trusted: Collection[str]) -> bool:
        """Whether this is not a page's request, or that of the server's own pages, or of one that is `trusted`.

        `Sec-Fetch-Site` is the browser's own judgement: behind a proxy with TLS it knows the scheme that we do not.
        Where it comes without an Origin it is all there is to go by.
        """
        if self.fetch_site == "same-origin":
            return True
        if self.origin is None:
            return self.fetch_site in (None, "none")  # none: the user's own doing, as from the address bar
        page = _parsed(self.origin)
        if page is not None and self.host and page == _parsed(f"{self.scheme}://{self.host}"):
            return True
        return ANY in trusted or (page is not None and page in map(_parsed, trusted))


def host_allowed(host: str | None, allowed_hosts: Collection[str]) -> bool:
    """Whether a `Host` header names this server."""
    domain, _ = split_domain_port(host or "")
    return bool(domain) and validate_host(domain, allowed_hosts)


def _parsed(origin: str) -> tuple[str, str, int | None] | None:
    """Return an origin's scheme, host and port, None for what is not an origin."""
    try:
        parts = urlsplit(origin)
        port = parts.port
    except ValueError:
        return None
    if not parts.hostname or parts.path or parts.query or parts.fragment or "@" in parts.netloc or "#" in origin:
        return None
    return parts.scheme, parts.hostname, port or _DEFAULT_PORTS.get(parts.scheme)
