"""`Door`: whether who asks may come in, and as whom.

`AUTH=auto` asks nobody for a key where only this machine can ask: the server listens on loopback, is called by a
loopback name, and nothing shows that a proxy was in between. Everywhere else, and with `AUTH=on`, everybody needs a
key; with `AUTH=off` nobody does. Where a key is needed, a user of the admin may come in by a session instead: for the
pages of this server alone, which say that they mean it.

A cookie goes along with whatever a browser sends, also for a page of another origin on the same site (another port of
this host). So a session opens nothing by itself. The request has to say that it means it, which only a page of this
origin can: by a header, for which pages from elsewhere need leave (CORS: none is given for it, nor for cookies), or by
a subprotocol of a WebSocket whose `Origin` is the server's own.
"""

import asyncio
import logging
import os
import sys
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from http.cookies import CookieError, SimpleCookie
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from responses_app.auth.keyring import REFRESH_SECONDS, KeyRing, no_watch
from responses_app.kit.duty import end_tasks
from responses_app.kit.errors import NotMigrated, StoreError
from responses_app.protocol.api_keys import (
    MANAGES,
    NOBODY_ASKED,
    Caller,
    SessionPass,
    incorrect_api_key,
    new_secret,
    no_admin_key,
    no_api_key,
    session_over,
)
from responses_app.protocol.errors import ApiError, overloaded

if TYPE_CHECKING:
    from responses_app.resources.projects.callers import Staff

CHECK_SECONDS = REFRESH_SECONDS  # between two looks


@dataclass(slots=True)
class _Watched:
    """A session in one project, with all that is open by it."""

    watchers: dict[int, Callable[[], None]] = field(default_factory=dict)  # by a number each
    task: asyncio.Task[None] | None = None  # that looks at it, while there are watchers


class SessionWatch:
    """The watched sessions of one process: one query at a time for each, however much is open by it.

    A session is out when its user has signed out, is disabled, or may not use the API, or this project, any more.
    Whoever came in by it is told within `CHECK_SECONDS` and the time of one query. While the database is away nobody
    can end a session, and what is open goes on.
    """

    def __init__(self, staff: "Staff") -> None:
        self._staff = staff
        self._watched: dict[SessionPass, _Watched] = {}
        self._count = 0  # watchers there ever were: the next one's number

    def watch(self, caller: Caller, lost: Callable[[], None]) -> Callable[[], None]:
        """Call `lost` once when a session that has come in is out; return what ends the watch."""
        given = SessionPass(caller.session, caller.project)
        watched = self._watched.setdefault(given, _Watched())
        self._count += 1
        number = self._count
        watched.watchers[number] = lost
        if watched.task is None:
            watched.task = asyncio.get_running_loop().create_task(self._look(given, watched), name="session")

        def unwatch() -> None:
            watched.watchers.pop(number, None)
            if not watched.watchers:
                self._forget(given, watched)

        return unwatch

    async def aclose(self) -> None:
        """Stop."""
        await end_tasks([watched.task for watched in self._watched.values()])
        self._watched.clear()

    async def _look(self, given: SessionPass, watched: _Watched) -> None:
        while watched.watchers:
            await asyncio.sleep(CHECK_SECONDS)
            try:
                now = await self._staff.caller(given)
            except StoreError:
                continue
            except ApiError:  # this user may not choose the project any more
                now = None
            except Exception:
                logger.exception("looking after a session broke")
                continue
            if now is None:
                told = list(watched.watchers.values())
                watched.watchers.clear()
                for lost in told:
                    lost()
        self._forget(given, watched)

    def _forget(self, given: SessionPass, watched: _Watched) -> None:
        task, watched.task = watched.task, None
        if task is not None and task is not asyncio.current_task():
            task.cancel()
        if self._watched.get(given) is watched:
            del self._watched[given]


HEADER = b"respsite-session"  # its value is the project
SESSION_IN_SUBPROTOCOL = "respsite-session."  # and what stands before it where a WebSocket is opened
COOKIE = "sessionid"
MAX_COOKIE = 128  # characters of a session's key that are looked at
MAX_PROJECT = 64


def pass_of(scope: Any, headers: Mapping[bytes, bytes]) -> SessionPass | None:
    """Return the session that a request, or the handshake of a WebSocket, means to come in by; None without one."""
    origin = headers.get(b"origin")
    if scope.get("type") == "websocket":
        offered = (each for each in scope.get("subprotocols", ()) if each.startswith(SESSION_IN_SUBPROTOCOL))
        project = next((each.removeprefix(SESSION_IN_SUBPROTOCOL) for each in offered), None)
        is_own = origin is not None and _is_own(origin, scope, headers)
    else:
        header = headers.get(HEADER)
        project = None if header is None else header.decode("latin1")
        is_own = origin is None or _is_own(origin, scope, headers)
    if project is None or not is_own:
        return None
    key = _cookie(headers.get(b"cookie", b""))
    return SessionPass(key, project[:MAX_PROJECT]) if key else None


def _is_own(origin: bytes, scope: Any, headers: Mapping[bytes, bytes]) -> bool:
    """Whether a page's origin has the host and port that the request went to, and TLS where that has it.

    A proxy with TLS hides that, so that a request without it may come from a page with it.
    """
    try:
        page = urlsplit(origin.decode("latin1"))
    except ValueError:
        return False
    # netloc has the port, too, where it is not the usual one, and so has `Host`.
    schemes = ("https",) if scope.get("scheme") in ("https", "wss") else ("http", "https")
    return page.scheme in schemes and page.netloc.encode("latin1", "replace") == headers.get(b"host")


def _cookie(header: bytes) -> str:
    try:
        morsel = SimpleCookie(header.decode("latin1")).get(COOKIE)
    except CookieError:
        return ""
    return morsel.value[:MAX_COOKIE] if morsel is not None else ""


# Headers that clients have no reason to send: common proxies and networks in front add them.
_PROXY_NAMES = frozenset((
    b"forwarded", b"via", b"x-real-ip", b"x-client-ip", b"x-cluster-client-ip", b"true-client-ip",
    b"cf-connecting-ip", b"fastly-client-ip", b"cdn-loop",
))  # fmt: skip
_PROXY_PREFIXES = (b"x-forwarded", b"x-envoy-", b"x-original-")
_OLD_VERSIONS = ("0.9", "1.0")  # of HTTP, which nginx and others speak to a server unless they are told to do better
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")


@lru_cache(maxsize=1024)  # each request asks twice, and of few addresses
def is_loopback(host: Hashable, *, unknown: bool = False) -> bool:
    """Whether this is an address of the loopback interface.

    `unknown` is the answer for what is not an address: a name, or a Unix socket's path.
    """
    try:
        address = ip_address(str(host))
    except ValueError:
        return unknown
    # A socket of both protocols shows 127.0.0.1 as ::ffff:127.0.0.1.
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


logger = logging.getLogger("respsite.auth")

FIRST_KEY = """
API key   {}
          Clients need it, and it is shown this once. Others are made with `respsite manage create_key --project NAME`.
"""

NO_KEY = (
    "there is no API key yet: `respsite manage create_key --project NAME` makes one. With LOG_FORMAT=json none is made "
    "at the start, since it would stay here."
)

IN_SUBPROTOCOL = "openai-insecure-api-key."  # what browsers, which cannot set headers, put before a key
SPOKEN = ("realtime", "respsite-playground")  # subprotocols: OpenAI's clients in browsers offer the first
# Subprotocols that say something of who asks, the one with a secret in it last.
_SAY_WHO = ("openai-beta.", "openai-project.", "openai-organization.", SESSION_IN_SUBPROTOCOL, IN_SUBPROTOCOL)
API_KEY = b"x-api-key"  # in which clients of Anthropic's API send a key
_MAX_SECRET = 512  # characters of a key that are looked at


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """Who asks, as the head of a request or of a WebSocket's handshake says it."""

    secret: str | None  # an API key, as far as it may be one; None without
    session: SessionPass | None = None  # a session that it means to come in by

    @classmethod
    def of(cls, scope: Any, headers: Mapping[bytes, bytes]) -> "Credentials":
        """Read an ASGI scope and its headers, the first one of each name."""
        subprotocols = scope.get("subprotocols", ())
        return cls(
            secret=_bearer(headers.get(b"authorization", b""))
            or headers.get(API_KEY, b"").decode("latin1").strip()[:_MAX_SECRET]
            or _behind(IN_SUBPROTOCOL, subprotocols)[:_MAX_SECRET]
            or None,
            session=pass_of(scope, headers) if HEADER in headers or subprotocols else None,
        )


def headers_in(scope: Any) -> dict[bytes, bytes]:
    """Return the headers of an ASGI scope, the first one of each name."""
    return dict(reversed(scope["headers"]))


class Door:
    """The door of one process. `is_exposed` turns true when it is known that others can reach this server.

    `shows_first` is whether the first key is made and printed where none is there yet: a person reads what is printed.
    """

    def __init__(self, mode: str, keys: KeyRing, staff: "Staff", *, is_exposed: bool, shows_first: bool = True) -> None:
        self._shows_first = shows_first
        self.mode = mode
        self.keys = keys
        self.staff = staff
        self.sessions = SessionWatch(staff)
        self.is_exposed = is_exposed
        self._is_started = False
        # Of the first key, where it turns out late that keys are needed
        self._making: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to look after the keys; the first start that needs one makes it."""
        self.keys.start()
        self._is_started = True
        if self.needs_keys:
            await self._make_first()

    async def aclose(self) -> None:
        """Stop."""
        if self._making is not None:
            self._making.cancel()
            await asyncio.wait([self._making])
        await self.sessions.aclose()
        await self.keys.aclose()
        await self.staff.aclose()

    def expose(self) -> None:
        """Others can reach this server after all, which its settings do not say."""
        if self.is_exposed:
            return
        self.is_exposed = True
        if self.needs_keys and self._is_started:
            self._making = asyncio.get_running_loop().create_task(self._make_first(), name="first key")

    async def _make_first(self) -> None:
        """Make a key where there is none, and print it, this once: to the terminal, not into the log."""
        secret = new_secret(os.urandom)
        try:
            if not self._shows_first:
                if not await self.keys.store.has_keys():
                    logger.warning(NO_KEY)
            elif await self.keys.store.make_first(secret):
                sys.stderr.write(FIRST_KEY.format(secret))
        except NotMigrated:
            return  # which is told once
        except StoreError as problem:
            logger.warning("whether there is an API key cannot be read now: %s", problem)

    @property
    def needs_keys(self) -> bool:
        """Whether some who ask are let in by a key only, as far as is known yet."""
        return self.mode == "on" or (self.mode == "auto" and self.is_exposed)

    def is_open(self, scope: Any, headers: Mapping[bytes, bytes]) -> bool:
        """Whether a request needs no key; `headers` has the first one of each name in its ASGI scope."""
        if self.mode == "auto":
            return not self.is_exposed and asks_locally(scope, headers)
        return self.mode == "off"

    async def caller(self, scope: Any, *, needed: str | None = None) -> Caller:
        """Return who asks for what needs this scope.

        Raises `ApiError`: 401 without a key that opens, 503 where none can tell now.
        """
        headers = dict(reversed(scope["headers"]))  # the first one of each name
        # Whoever manages keys can let others in: an open door is none for this.
        manages = needed in MANAGES
        # A key that comes all the same is not looked at: it changes nothing about what is seen.
        if not manages and self.is_open(scope, headers):
            return NOBODY_ASKED
        credentials = Credentials.of(scope, headers)
        if not credentials.secret:
            if manages and credentials.session is None:
                raise no_admin_key()
            return await self._by_session(credentials.session)
        key = await self.keys.find(credentials.secret)
        if key is None:
            raise incorrect_api_key(credentials.secret)
        return Caller.by_key(key)

    async def _by_session(self, session_pass: SessionPass | None) -> Caller:
        if session_pass is None:
            raise no_api_key()
        try:
            caller = await self.staff.caller(session_pass)
        except StoreError as error:
            raise overloaded("Sessions cannot be checked now. Try again.", retry_after=2) from error
        if caller is None:
            raise session_over()
        return caller

    def watch(self, caller: Caller, lost: Callable[[], None]) -> Callable[[], None]:
        """Call `lost` once, within 2 s, when who has come in may no longer do so; return what ends the watch."""
        if caller.key is not None:
            return self.keys.watch(caller.key, lost)
        if not caller.session:
            return no_watch
        return self.sessions.watch(caller, lost)

    def latest(self, caller: Caller) -> Caller:
        """Return who came in a while ago, with what its key may do now."""
        key = caller.key
        return caller if key is None else Caller.by_key(self.keys.latest(key))


def accepted_subprotocol(offered: Sequence[str]) -> str | None:
    """Return the subprotocol that a WebSocket is accepted with, None where none of those offered is spoken here.

    Browsers close a connection that is accepted with none of theirs. So whoever offers but a key gets that back.
    """
    understood = [each for each in offered if each in SPOKEN]
    understood += [each for prefix in _SAY_WHO for each in offered if each.startswith(prefix)]
    return next(iter(understood), None)


def _bearer(header: bytes) -> str:
    scheme, _, secret = header.decode("latin1").strip().partition(" ")
    return secret.strip()[:_MAX_SECRET] if scheme.lower() == "bearer" else ""


def _behind(start: str, offered: Iterable[str]) -> str:
    """Return what the first subprotocol with this beginning has behind it, "" where none begins so."""
    return next((each.removeprefix(start) for each in offered if each.startswith(start)), "")


def came_through_proxy(scope: Mapping[str, Any], headers: Iterable[bytes]) -> bool:
    """Whether an ASGI scope, which has these names of headers, shows that a proxy was in between."""
    return scope.get("http_version") in _OLD_VERSIONS or any(
        name in _PROXY_NAMES or name.startswith(_PROXY_PREFIXES) for name in headers
    )


def asks_locally(scope: Any, headers: Mapping[bytes, bytes]) -> bool:
    """Whether a request comes from this machine, by a loopback name, and nothing shows that a proxy was in between."""
    server, client = scope.get("server"), scope.get("client")
    if not (server and client and is_loopback(server[0]) and is_loopback(client[0])):
        return False
    host = headers.get(b"host", b"").decode("latin1").lower()
    # Without its port: "[::1]:8000", "localhost:8000".
    name = host[1:].partition("]")[0] if host.startswith("[") else host.rpartition(":")[0] if ":" in host else host
    return name in LOOPBACK_NAMES and not came_through_proxy(scope, headers)
