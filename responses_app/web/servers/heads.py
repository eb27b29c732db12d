"""Heads of requests, the same for all below whichever server reads them: who calls, which path, what is refused.

Servers differ in what they let by: a missing `Host`, an absolute URL as the target, `OPTIONS *`, another version of the
protocol. And each answers its own refusals in its own words, without `Date`, or not at all. `Heads` looks at each head
before anything is done with it, as RFC 9110 and RFC 9112 have it. A request that a server refuses before the
application is called gets its answer from `bodies.refusal`, with which `daphne_http` and `uvicorn` replace the server's
own.

The client in each scope is the one that calls, also behind proxies. Servers have their own readers of
`X-Forwarded-For`: daphne's takes the first address, uvicorn's does so where it trusts all proxies, and both depend on
flags. Their findings are replaced by one rule (`auth.proxies`), so that BEHIND_PROXY and TRUSTED_PROXIES alone decide:
without them no header counts.

Base URLs of roll-outs: `/rollouts/{id}/v1/…` is `/v1/…` with the header `x-rollout-id`, for clients that take a URL.
All below sees the usual path: the rules for a body, the scope that is needed and the handler are as without it.
"""

import logging
import re
from base64 import b64decode
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import unquote

from responses_app.auth.proxies import TrustedProxies
from responses_app.protocol.errors import ApiError
from responses_app.protocol.rollouts.requests import HEADER
from responses_app.protocol.transport import (
    AnswerHeaders,
    head_too_large,
    target_too_long,
    unknown_expectation,
    unreadable,
    upgrade_required,
)
from responses_app.web.bodies import ROLLOUT_BASE, Application, Message, Receive, SendMessage, answer, say

logger = logging.getLogger("respsite.transport")

Headers = Sequence[tuple[bytes, bytes]]  # names in lower case

MAX_HEAD_BYTES = 16 * 1024  # of a URL, and of all headers together with it
METHODS = b"GET, HEAD, POST, DELETE, OPTIONS"  # of all paths together
_ABSOLUTE = re.compile(rb"(?i:https?|wss?)://([^/?#]*)([^#]*)")
_KEY_BYTES = 16  # of a WebSocket's handshake
_DIGITS = re.compile(r"(\d)\.\d")  # of a version of HTTP/1 or older

# Keys in a scope for the address that calls and the scheme that it uses, where a server put others in their places.
PEER, SCHEME = "respsite.peer", "respsite.scheme"
IGNORED = (
    "%s sends X-Forwarded-For, which is ignored: TRUSTED_PROXIES does not name it, so all behind it count as one "
    "client. If it is your proxy, add its address there."
)
_SCHEMES = {"http": {"http": "http", "https": "https"}, "websocket": {"http": "ws", "https": "wss"}}
_ROLLOUT_HEADER = HEADER.encode()


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
        return upgrade_required(b", ".join(versions).decode("latin1") or "none")
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


PeerOf = Callable[[Message, object], tuple[Sequence[Any] | None, str | None]]  # of a scope and a server's `send`


class Senders:
    """Who calls, as `proxies` say it that are trusted; None: none is. `peer_of` finds address and scheme."""

    def __init__(self, proxies: TrustedProxies | None, peer_of: PeerOf) -> None:
        self._proxies = proxies
        self._peer_of = peer_of
        self._has_warned = False

    def named(self, scope: Message, send: object) -> Message:
        """Return a copy of a scope with its true client, and the scheme that it used."""
        peer, scheme = (scope[PEER], scope[SCHEME]) if PEER in scope else self._peer_of(scope, send)
        if self._proxies is not None:
            caller = str(peer[0]) if peer else None
            sender = self._proxies.sender(caller, scope["headers"])
            if sender.is_ignored and not self._has_warned:
                self._has_warned = True
                logger.warning(IGNORED, caller)
            if sender.host != caller:
                peer = None if sender.host is None else (sender.host, 0)
            if sender.scheme is not None:
                scheme = _SCHEMES[scope["type"]][sender.scheme]
        return {**scope, "client": peer, **({} if scheme is None else {"scheme": scheme})}


class NotesPeer:
    """ASGI application before uvicorn's reader of proxy headers, which puts its finding in the place of the peer."""

    def __init__(self, app: Application) -> None:
        self._app = app

    async def __call__(self, scope: Message, receive: Receive, send: SendMessage) -> None:
        """Hand on, with the address that calls and its scheme under keys of their own."""
        if scope["type"] in _SCHEMES:
            scope[PEER], scope[SCHEME] = scope.get("client"), scope.get("scheme")
        await self._app(scope, receive, send)


class Heads:
    """ASGI middleware around the whole application: refuses what no server may take, and makes scopes alike.

    `refused` is told of what is refused.
    """

    def __init__(
        self, app: Application, senders: Senders, standing: AnswerHeaders, refused: Callable[[ApiError], None]
    ) -> None:
        self._app = app
        self._senders = senders
        self._standing = standing
        self._refused = refused

    async def __call__(self, scope: Message, receive: Receive, send: SendMessage) -> None:
        """Serve one request or connection."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        scope = self._senders.named(scope, send)
        is_http, target = scope["type"] == "http", target_of(scope)
        try:
            if is_http:
                check_size(target, scope["headers"], scope.get("query_string", b""))
                check_head(scope["method"], str(scope.get("http_version", "1.1")), scope["headers"])
            if not target.startswith(b"/") and (target != b"*" or scope.get("method") != "OPTIONS"):
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
        if "/rollouts/" in scope["path"]:
            scope = below_rollout(scope)
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
    names = {name for name, _ in headers}
    if b"expect" in names:
        for expected in _tokens(headers, b"expect"):
            if expected != b"100-continue":
                raise unknown_expectation(expected.decode("latin1"))
    if b"upgrade" in names and (problem := handshake_problem(method, headers)) is not None:
        raise problem


def check_size(target: bytes, headers: Headers, query: bytes = b"") -> None:
    """Raise `ApiError` (414, 431) for a URL or headers that are too long; `query`: where it is not in the target."""
    size = len(target) + (1 + len(query) if query else 0)
    if size > MAX_HEAD_BYTES:
        raise target_too_long(MAX_HEAD_BYTES)
    if size + sum(len(name) + len(value) + 2 for name, value in headers) > MAX_HEAD_BYTES:
        raise head_too_large(MAX_HEAD_BYTES)


def target_of(scope: Message) -> bytes:
    """Return a request's target without its query, below the root path."""
    raw: bytes = scope.get("raw_path") or str(scope["path"]).encode()
    return raw.removeprefix(str(scope.get("root_path", "")).encode())


def _with_path(scope: Message, target: bytes) -> Message:
    """Return a scope whose path is a path, with the host that an absolute URL named. Raises `ApiError`."""
    path, authority = origin_form(b"" if target == b"*" else target)
    assert authority is not None, "what is no path is absolute"
    root = str(scope.get("root_path", ""))
    headers = [(b"host", authority), *((name, value) for name, value in scope["headers"] if name != b"host")]
    decoded = unquote(path.decode("latin1"))
    return {**scope, "path": root + decoded, "raw_path": root.encode() + path, "headers": headers}


def below_rollout(scope: Message) -> Message:
    """Return a scope without the base of a roll-out before its path, and with the header that names the roll-out."""
    root = str(scope.get("root_path", "")).rstrip("/")
    based = ROLLOUT_BASE.fullmatch(scope["path"].removeprefix(root))
    if based is None:
        return scope
    name = based[1].encode("latin1", errors="replace")
    headers = [(key, value) for key, value in scope["headers"] if key != _ROLLOUT_HEADER]
    # A header that names another one makes a list of the two, which is refused.
    names = dict.fromkeys([name, *(value for key, value in scope["headers"] if key == _ROLLOUT_HEADER)])
    # A copy: the server goes on with its own.
    scope = {**scope, "path": root + based[2], "headers": [*headers, (_ROLLOUT_HEADER, b", ".join(names))]}
    scope.pop("raw_path", None)
    return scope
