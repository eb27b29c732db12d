"""`Forwarded`: the client in each scope is the one that asks, also behind proxies, whichever server runs.

Servers have their own readers of `X-Forwarded-For`. daphne's takes the first address, uvicorn's does so where it trusts
all proxies, and both depend on flags. What they found is replaced here by one rule (`auth.proxies`), so that
BEHIND_PROXY and TRUSTED_PROXIES alone decide: without them no header counts.
"""

import logging

from responses_app.auth.proxies import Proxies
from responses_app.web.bodies import Application, Message, Receive, SendMessage
from responses_app.web.servers.daphne import caller_of, scheme_of

logger = logging.getLogger("respsite.transport")

# Keys in a scope for the address that calls and the scheme that it uses, where a server put others in their places.
PEER, SCHEME = "respsite.peer", "respsite.scheme"
IGNORED = (
    "%s sends X-Forwarded-For, which is ignored: TRUSTED_PROXIES does not name it, so all behind it count as one "
    "client. If it is your proxy, add its address there."
)
_SCHEMES = {"http": {"http": "http", "https": "https"}, "websocket": {"http": "ws", "https": "wss"}}


class Forwarded:
    """ASGI middleware around the whole application. `proxies` are those that are trusted; None: none is."""

    def __init__(self, app: Application, proxies: Proxies | None) -> None:
        self._app = app
        self._proxies = proxies
        self._has_warned = False

    async def __call__(self, scope: Message, receive: Receive, send: SendMessage) -> None:
        """Serve, with the client that asks in the scope, and the scheme that it used."""
        if scope["type"] in _SCHEMES:
            scope = self._told(scope, send)
        await self._app(scope, receive, send)

    def _told(self, scope: Message, send: SendMessage) -> Message:
        """Return a copy of a scope with its true client."""
        peer = scope[PEER] if PEER in scope else caller_of(scope, send)
        scheme = scope[SCHEME] if SCHEME in scope else scheme_of(scope, send)
        if self._proxies is not None:
            caller = str(peer[0]) if peer else None
            sender = self._proxies.sender(caller, scope["headers"])
            if sender.is_ignored:
                self._warn(caller)
            if sender.host != caller:
                peer = None if sender.host is None else (sender.host, 0)
            if sender.scheme is not None:
                scheme = _SCHEMES[scope["type"]][sender.scheme]
        return {**scope, "client": peer, **({} if scheme is None else {"scheme": scheme})}

    def _warn(self, caller: str | None) -> None:
        if not self._has_warned:
            self._has_warned = True
            logger.warning(IGNORED, caller)


class NotesPeer:
    """ASGI application before uvicorn's reader of proxy headers, which puts its finding in the place of the peer."""

    def __init__(self, app: Application) -> None:
        self._app = app

    async def __call__(self, scope: Message, receive: Receive, send: SendMessage) -> None:
        """Hand on, with the address that calls and its scheme under keys of their own."""
        if scope["type"] in _SCHEMES:
            scope[PEER], scope[SCHEME] = scope.get("client"), scope.get("scheme")
        await self._app(scope, receive, send)
