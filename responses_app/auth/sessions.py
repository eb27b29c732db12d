"""A user of the admin comes in by a session: for the pages of this server alone, which say that they mean it.

A cookie goes along with whatever a browser sends, also for a page of another origin on the same site (another port of
this host). So a session opens nothing by itself. The request has to say that it means it, which only a page of this
origin can: by a header, which needs leave from elsewhere (CORS, and this server gives none), or by a subprotocol of a
WebSocket whose `Origin` is the server's own.
"""

from collections.abc import Mapping, Sequence
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import urlsplit

from responses_app.stores.staff import SessionPass

HEADER = b"respsite-session"  # its value is the project
IN_SUBPROTOCOL = "respsite-session."  # and what stands before it where a WebSocket is opened
COOKIE = "sessionid"
MAX_COOKIE = 128  # characters of a session's key that are looked at
MAX_PROJECT = 64
CHECK_SECONDS = 5.0  # between two looks at whether a session that has a WebSocket open still stands


def pass_of(scope: Any, headers: Mapping[bytes, bytes]) -> SessionPass | None:
    """Return the session that a request, or the handshake of a WebSocket, means to come in by; None without one."""
    origin = headers.get(b"origin")
    if scope.get("type") == "websocket":
        project = _offered(scope.get("subprotocols", ()))
        is_own = origin is not None and _is_own(origin, scope, headers)
    else:
        given = headers.get(HEADER)
        project = None if given is None else given.decode("latin1")
        is_own = origin is None or _is_own(origin, scope, headers)
    if project is None or not is_own:
        return None
    key = _cookie(headers.get(b"cookie", b""))
    return SessionPass(key, project[:MAX_PROJECT]) if key else None


def _offered(subprotocols: Sequence[str]) -> str | None:
    named = (each.removeprefix(IN_SUBPROTOCOL) for each in subprotocols if each.startswith(IN_SUBPROTOCOL))
    return next(named, None)


def _is_own(origin: bytes, scope: Any, headers: Mapping[bytes, bytes]) -> bool:
    """Whether a page's origin has the host and port that the request went to, and TLS where that has it.

    A proxy with TLS hides that, so that a request without it may come from a page with it.
    """
    try:
        page = urlsplit(origin.decode("latin1"))
    except ValueError:
        return False
    schemes = ("https",) if scope.get("scheme") in ("https", "wss") else ("http", "https")
    return page.scheme in schemes and page.netloc.encode("latin1", "replace") == headers.get(b"host")


def _cookie(header: bytes) -> str:
    try:
        found = SimpleCookie(header.decode("latin1")).get(COOKIE)
    except CookieError:
        return ""
    return found.value[:MAX_COOKIE] if found is not None else ""
