"""Heads of requests as RFC 9110 and RFC 9112 have them, whichever server reads them.

Servers differ in what they let by: a missing `Host`, an absolute URL as the target, `OPTIONS *`, another version of the
protocol. And each answers its own refusals in its own words, without `Date`, or not at all. `Heads` looks at each head
before anything is done with it. A request that a server refuses before the application is called gets its answer from
`refusal`, with which `daphne_http` and `uvicorn` replace the server's own.
"""

import re
from base64 import b64decode
from collections.abc import Callable, Iterable, Sequence
from email.utils import formatdate
from urllib.parse import unquote

from responses_app.protocol.errors import ApiError
from responses_app.protocol.transport import (
    AnswerHeaders,
    UpgradeRequired,
    head_too_large,
    target_too_long,
    unknown_expectation,
    unreadable,
)
from responses_app.web.bodies import Application, Message, Receive, SendMessage, answer, say
from responses_app.web.phrases import PHRASES

Headers = Sequence[tuple[bytes, bytes]]  # names in lower case

MAX_HEAD_BYTES = 16 * 1024  # of a URL, and of all headers together with it
METHODS = b"GET, HEAD, POST, DELETE, OPTIONS"  # of all paths together
_ABSOLUTE = re.compile(rb"(?i:https?|wss?)://([^/?#]*)([^#]*)")
_KEY_BYTES = 16  # of a WebSocket's handshake
_DIGITS = re.compile(r"(\d)\.\d")  # of a version of HTTP/1 or older


def refusal(error: ApiError, headers: Headers, standing: AnswerHeaders, *, path: str = "") -> bytes:
    """Return a whole answer, as bytes, behind which the connection closes; `headers` are those of the request."""
    status, lines, body = answer(error, headers, standing, path=path)
    return written(status, lines, body)


def written(status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> bytes:
    """Return an answer over HTTP/1.1, as bytes, behind which the connection closes."""
    head = b"HTTP/1.1 %d %b\r\n" % (status, PHRASES.get(status, "Error").encode())
    for line in (*headers, (b"date", date()), (b"connection", b"close")):
        head += b"%b: %b\r\n" % line
    return head + b"\r\n" + body


def date() -> bytes:
    """Return the time as `Date` has it."""
    return formatdate(usegmt=True).encode()


def origin_form(target: bytes) -> tuple[bytes, bytes | None]:
    """Return a request's target as a path with its query, and the host that it names; None where it names none.

    An absolute URL is what proxies are asked for, but RFC 9112 section 3.2.2 has every server take it. Its host counts
    in place of the header's. Raises `ApiError` for what is neither that nor a path, nor `*`.
    """
    if target.startswith(b"/") or target == b"*":
        return target, None
    absolute = _ABSOLUTE.fullmatch(target)
    if absolute is None:
        raise unreadable("its target is neither a path nor a URL of this server")
    authority, rest = absolute.groups()
    return (rest if rest.startswith(b"/") else b"/" + rest), authority


def handshake_problem(method: str, headers: Headers) -> ApiError | None:
    """Return why a request that asks for a WebSocket is none of its handshakes (RFC 6455 section 4.2.1)."""
    if not is_handshake(headers):
        return None
    lengths = _values(headers, b"content-length")
    if method != "GET" or _values(headers, b"transfer-encoding") or any(each.strip(b"0") for each in lengths):
        return unreadable("the handshake of a WebSocket is a GET without a body")
    if not _upgrades(headers):
        return unreadable("the handshake of a WebSocket needs 'Connection: Upgrade'; a proxy may have dropped it")
    versions = _values(headers, b"sec-websocket-version")
    if versions != [b"13"]:
        return UpgradeRequired(b", ".join(versions).decode("latin1") or "none")
    try:
        (key,) = _values(headers, b"sec-websocket-key")
        is_key = len(b64decode(key, validate=True)) == _KEY_BYTES
    except ValueError:
        is_key = False
    return None if is_key else unreadable("the handshake of a WebSocket needs a 'Sec-WebSocket-Key' of 16 bytes")


def is_handshake(headers: Headers) -> bool:
    """Whether a request is meant as the handshake of a WebSocket: any other wish for an upgrade is ignored."""
    return b"websocket" in _tokens(headers, b"upgrade") and (
        _upgrades(headers) or bool(_values(headers, b"sec-websocket-key"))
    )


def _upgrades(headers: Headers) -> bool:
    return b"upgrade" in _tokens(headers, b"connection")


def _values(headers: Headers, name: bytes) -> list[bytes]:
    return [value.strip() for each, value in headers if each == name]


def _tokens(headers: Headers, name: bytes) -> list[bytes]:
    return [token.strip().lower() for value in _values(headers, name) for token in value.split(b",")]


class Heads:
    """ASGI middleware: refuses what no server may take, and lets the application see paths only.

    `refused` is told of what is refused.
    """

    def __init__(self, app: Application, standing: AnswerHeaders, refused: Callable[[ApiError], None]) -> None:
        self._app = app
        self._standing = standing
        self._refused = refused

    async def __call__(self, scope: Message, receive: Receive, send: SendMessage) -> None:
        """Serve one request or connection."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        is_http, target = scope["type"] == "http", _target(scope)
        try:
            if is_http:
                check_size_of(scope)
                check_head(scope["method"], str(scope.get("http_version", "1.1")), scope["headers"])
            scope = _with_path(scope, target)
        except ApiError as error:
            if not is_http:  # the handshake of a WebSocket, whose path is not found then
                await self._app(scope, receive, send)
                return
            self._refused(error)
            status, lines, body = answer(error, scope["headers"], self._standing, path="")
            await say(send, status, [*lines, (b"connection", b"close")], body)
            return
        if is_http and target == b"*":
            await say(send, 204, [(b"allow", METHODS)], b"")
            return
        await self._app(scope, receive, send)


def check_head(method: str, version: str, headers: Headers) -> None:
    """Raise `ApiError` for the head of a request that cannot be taken."""
    # HTTP/2 and HTTP/3 have no dot: a server that speaks one has read it.
    if (digits := _DIGITS.fullmatch(version)) and digits[1] > "1":
        raise unreadable("this server speaks HTTP/1.1", status=505)
    hosts = [value for name, value in headers if name == b"host"]
    if len(hosts) > 1 or (not hosts and version == "1.1"):
        raise unreadable("it has more than one 'Host'" if hosts else "its header 'Host' is missing")
    if version != "1.1":  # HTTP/1.0 has neither of the following
        return
    for expected in _tokens(headers, b"expect"):
        if expected != b"100-continue":
            raise unknown_expectation(expected.decode("latin1"))
    problem = handshake_problem(method, headers)
    if problem is not None:
        raise problem


def check_size(target: bytes, headers: Headers) -> None:
    """Raise `ApiError` (414, 431) for a URL or headers that are too long."""
    if len(target) > MAX_HEAD_BYTES:
        raise target_too_long(MAX_HEAD_BYTES)
    if len(target) + sum(len(name) + len(value) + 2 for name, value in headers) > MAX_HEAD_BYTES:
        raise head_too_large(MAX_HEAD_BYTES)


def check_size_of(scope: Message) -> None:
    """Raise `ApiError` as `check_size` does, for the request of a scope."""
    query: bytes = scope.get("query_string", b"")
    check_size(_target(scope) + (b"?" + query if query else b""), scope["headers"])


def _target(scope: Message) -> bytes:
    """Return a request's target without its query, below the root path."""
    raw: bytes = scope.get("raw_path") or str(scope["path"]).encode()
    return raw.removeprefix(str(scope.get("root_path", "")).encode())


def _with_path(scope: Message, target: bytes) -> Message:
    """Return a scope whose path is a path, with the host that an absolute URL named. Raises `ApiError`."""
    if target.startswith(b"/") or (target == b"*" and scope.get("method") == "OPTIONS"):
        return scope
    path, authority = origin_form(b"" if target == b"*" else target)
    assert authority is not None, "what is no path is absolute"
    root = str(scope.get("root_path", ""))
    headers = [(b"host", authority), *((name, value) for name, value in scope["headers"] if name != b"host")]
    decoded = unquote(path.decode("latin1"))
    return {**scope, "path": root + decoded, "raw_path": root.encode() + path, "headers": headers}
