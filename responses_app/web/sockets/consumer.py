"""The WebSocket transport: the handshake, and a consumer for each connection, thin around `SocketConnection`.

The handshake decides who asks, from where, and what is agreed for the connection's whole life.
"""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from channels.exceptions import StopConsumer
from channels.generic.websocket import AsyncJsonWebsocketConsumer

from responses_app.auth.door import accepted_subprotocol
from responses_app.limits.rates import FREE, Ticket
from responses_app.observing.logs import OF_STRANGERS, bind
from responses_app.observing.traces import TRACEPARENT
from responses_app.protocol.api_keys import NOBODY_ASKED, Area, Caller
from responses_app.protocol.errors import FOREIGN_SEALS, ApiError, foreign_page, host_not_allowed
from responses_app.protocol.events.dialects import DIALECT_HEADER
from responses_app.protocol.events.events import error_frame
from responses_app.protocol.fields import IGNORED_HEADER, IgnoredFields
from responses_app.protocol.items.offers import BETA_HEADER
from responses_app.protocol.rate_limits import NOTHING, RateLimited, Slot
from responses_app.protocol.rollouts.requests import HEADERS as ROLLOUT_HEADERS
from responses_app.protocol.rollouts.requests import ref_of
from responses_app.protocol.session.tool_outputs import TOOL_MODE_HEADER
from responses_app.protocol.transport import connections_exhausted
from responses_app.web.auditing import record_connection
from responses_app.web.endpoint import look_at_query, websocket_not_found
from responses_app.web.http import error_response, read_query
from responses_app.web.middleware import Source, answer_headers, host_allowed
from responses_app.web.servers.backpressure import EXTRAS, SocketExtras
from responses_app.web.servers.daphne import DENIAL
from responses_app.web.servers.inflow import REFUSED
from responses_app.web.sockets.connection import SocketConnection, Terms
from responses_app.wiring.site import Site, get_site

INTERNAL_ERROR = 1011  # the close code


def refusal(site: Site, scope: Any) -> tuple[str, ApiError] | None:
    """Return why a handshake is refused whoever asks: for its host, or for the page that a browser sends it for."""
    source = Source.of_handshake(scope)
    if not host_allowed(source.host, site.settings.allowed_hosts):
        return "its Host is not in ALLOWED_HOSTS", host_not_allowed(source.host or "", status=403)
    if not source.is_allowed(site.settings.trusted_pages):
        return "its Origin is neither the server's own nor in ALLOWED_ORIGINS", foreign_page(source.origin)
    return None


async def caller_of(site: Site, scope: Any, area: Area) -> Caller:
    """Return who asks. Raises `ApiError` for who may not write what is of this area."""
    caller = await site.door.caller(scope)
    caller.check_scope(area.scope(writes=True))
    return caller


async def take_place(site: Site, caller: Caller) -> Ticket:
    """Take one of the connections that key and project may have. Raises `ApiError` (429) where they have them all."""
    try:
        return await site.rates.admit(caller.limited, NOTHING, Slot.WEBSOCKET)
    except RateLimited as limited:
        raise connections_exhausted(limited.message) from limited


async def headers_of(scope: Any, caller: Caller, *, began: float) -> list[tuple[bytes, bytes]]:
    """Return what the answer to a handshake has as headers, whatever it is."""
    request_headers = {name.decode("latin1"): value.decode("latin1") for name, value in scope["headers"]}
    request_id = get_site().answer_headers.request_id(request_headers)
    headers = await answer_headers(request_headers, request_id, caller, began=began)
    return [(name.encode(), value.encode("latin1")) for name, value in headers.items()]


def ignored_in(site: Site, scope: Any) -> list[tuple[bytes, bytes]]:
    """Return the header with the names in a handshake's query that have no effect. Raises `ApiError` as over HTTP."""
    ignored = IgnoredFields(refuse=site.reader.refuse_unknown)
    look_at_query(read_query(scope["query_string"]), {}, ignored)
    names = str(ignored)
    if names:
        logger.info("the query of a WebSocket: these parameters have no effect: %s", names)
    return [(IGNORED_HEADER.encode(), names.encode())] if names else []


def terms_of(site: Site, scope: Any, caller: Caller) -> Terms:
    """Return what a handshake asks for. Raises `ApiError` (400) for what is not known."""
    dialect = site.dialect(_header(scope, DIALECT_HEADER))
    awaits_tools = site.awaits_tools(_header(scope, TOOL_MODE_HEADER), dialect)
    span = site.traces.under(_header(scope, TRACEPARENT))
    betas = _header(scope, BETA_HEADER)
    headers = {name: _header(scope, name) for name in ROLLOUT_HEADERS}
    rollout = ref_of({name: value for name, value in headers.items() if value is not None}, "responses")
    seals = _header(scope, FOREIGN_SEALS)
    site.reader.noting(seals)  # an unknown value is told now
    return Terms(
        caller=caller,
        dialect=dialect,
        awaits_tools=awaits_tools,
        betas=betas,
        foreign_seals=seals,
        span=span,
        rollout=rollout,
    )


def _header(scope: Any, name: str) -> str | None:
    values = [value.decode("latin1") for key, value in scope["headers"] if key == name.lower().encode()]
    return ",".join(values) if values else None  # as one that comes twice is read over HTTP


logger = logging.getLogger("respsite.transport")


class ResponsesConsumer(AsyncJsonWebsocketConsumer):
    """Serves `GET /v1/responses`, upgraded.

    No channel layer is attached: nothing is streamed through it, and a Redis outage must not kill connections.
    """

    channel_layer_alias = "none"
    connection: SocketConnection | None = None
    holds_slot = False
    ticket = FREE  # of the connections that its key and its project may have
    headers: Sequence[tuple[bytes, bytes]] = ()  # of the answer to the handshake

    def __init__(self, area: Area | None) -> None:
        super().__init__()
        self.area = area  # what a connection's key must be made for; None at a path where there are no WebSockets

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve the connection; whatever ends it (also a cancelled task, where `disconnect` is never called)."""
        try:
            await super().__call__(scope, receive, send)
        except Exception:
            with suppress(OSError, RuntimeError):  # it is closed already, or was never open
                await send({"type": "websocket.close", "code": INTERNAL_ERROR})
            raise
        finally:
            await self._end("its client disconnected")

    async def dispatch(self, message: dict[str, Any]) -> None:
        """Route a message to its handler, without Channels' hop to the database thread before each of them."""
        match message["type"]:
            case "websocket.receive":
                await self.websocket_receive(message)
            case kind if kind == REFUSED:
                # What the server does not take of what comes: it is said, and closes the connection.
                if self.connection is not None:
                    self.connection.refuse(message["error"])
            case "websocket.connect":
                await self.websocket_connect(message)
            case "websocket.disconnect":
                await self._end("its client disconnected")
                raise StopConsumer

    async def connect(self) -> None:
        """Accept, unless host, page or key may not come in, or there are too many connections."""
        site = get_site()
        began = asyncio.get_running_loop().time()
        refused = refusal(site, self.scope)
        if refused:
            logger.warning("a WebSocket was refused: %s", refused[0], extra=OF_STRANGERS)
            if DENIAL in (self.scope.get("extensions") or {}):
                self.headers = await headers_of(self.scope, NOBODY_ASKED, began=began)
                await self._deny(refused[1])
            else:
                await self.close()
            return
        try:
            if self.area is None:
                raise websocket_not_found(self.scope["path"])
            caller = await caller_of(site, self.scope, self.area)
            await record_connection(site.audit, self.scope, caller)
        except ApiError as error:
            self.headers = await headers_of(self.scope, NOBODY_ASKED, began=began)
            await self._deny(error)
            return
        bind(project=caller.project, key_id=caller.key_id)  # for all that is done on the connection
        self.holds_slot = await site.connection_limit.acquire()
        try:
            if not self.holds_slot:
                logger.warning("a WebSocket was refused: MAX_WEBSOCKET_CONNECTIONS are open", extra=OF_STRANGERS)
                raise connections_exhausted()
            self.ticket = await take_place(site, caller)
            terms, ignored = terms_of(site, self.scope, caller), ignored_in(site, self.scope)
        except ApiError as error:
            self.headers = await headers_of(self.scope, caller, began=began)
            await self._accept()
            await self._turn_away(error)
            return
        self.headers = [*await headers_of(self.scope, caller, began=began), *ignored]
        extras = self.scope.get(EXTRAS, SocketExtras())
        # From now on the project's connections share one part of the budget of unfinished messages.
        if extras.frames_in is not None:
            extras.frames_in.owner = caller.project
        await self._accept()
        self.connection = SocketConnection(site, send=self.send_frame, close=self.close, extras=extras, terms=terms)

    async def _accept(self) -> None:
        await self.accept(accepted_subprotocol(self.scope.get("subprotocols", ())), headers=self.headers)

    async def _deny(self, error: ApiError) -> None:
        """Answer the handshake with an error, as over HTTP; where the server cannot, accept and say it there."""
        if DENIAL not in (self.scope.get("extensions") or {}):
            await self._accept()
            await self._turn_away(error)
            return
        _count(error)
        answer = error_response(error)
        headers = [(name.lower().encode(), value.encode("latin1")) for name, value in answer.items()]
        headers += self.headers
        # Where the client is gone, there is nobody to tell.
        with suppress(OSError):
            await self.base_send({"type": f"{DENIAL}.start", "status": answer.status_code, "headers": headers})
            await self.base_send({"type": f"{DENIAL}.body", "body": answer.content})

    async def _turn_away(self, error: ApiError) -> None:
        """Say why an accepted connection is not served, and close it: not all servers can refuse with a reason."""
        _count(error)
        with suppress(OSError):  # where the client is gone, there is nobody to tell
            await self.send(text_data=error_frame(error))
            await self.close(1000, error.code)

    async def websocket_receive(self, message: dict[str, Any]) -> None:
        """Hand a frame to the connection, which never waits for a run; a long one is read before the next is taken."""
        if self.connection is None:
            return
        text = message.pop("text", None)  # Channels keeps the message until the next one comes
        if text is None:
            self.connection.receive_bytes()
        else:
            await self.connection.receive_text(text)

    async def send_frame(self, text: str) -> None:
        """Send a text frame, without the detours for binary ones."""
        await self.base_send({"type": "websocket.send", "text": text})

    async def _end(self, reason: str) -> None:
        # Taken away before the wait below: a second call finds nothing to end.
        connection, self.connection = self.connection, None
        if self.holds_slot:
            self.holds_slot = False
            get_site().connection_limit.release()
        # Twice is not an error: `_end` comes from `disconnect`, and from `__call__`.
        self.ticket.settle()
        if connection is not None:
            await connection.aclose(reason)


def _count(error: ApiError) -> None:
    get_site().watch.metrics.error("websocket", error.status, error.code or error.type)
