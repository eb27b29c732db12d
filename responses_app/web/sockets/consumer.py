"""The WebSocket transport: one `AsyncJsonWebsocketConsumer` per connection, thin around `Connection`."""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from channels.exceptions import StopConsumer
from channels.generic.websocket import AsyncJsonWebsocketConsumer

from responses_app.auth.door import accepted_subprotocol
from responses_app.limits.rates import FREE
from responses_app.protocol.api_keys import NOBODY_ASKED, Area
from responses_app.protocol.errors import ApiError
from responses_app.protocol.events.frames import error_frame
from responses_app.protocol.session.connection_errors import connections_exhausted
from responses_app.web.http import error_response
from responses_app.web.servers.backpressure import FRAMES
from responses_app.web.servers.daphne import DENIAL
from responses_app.web.servers.frames import REFUSED, frames_in
from responses_app.web.servers.heartbeat import ping_in
from responses_app.web.sockets.connection import Connection
from responses_app.web.sockets.handshake import Extras, caller_of, headers_of, refusal, take_place, terms_of
from responses_app.wiring.wiring import get_site

logger = logging.getLogger("respsite.transport")


class ResponsesConsumer(AsyncJsonWebsocketConsumer):
    """Serves `GET /v1/responses`, upgraded.

    No channel layer is attached: nothing is streamed through it, and a Redis outage must not kill connections.
    """

    channel_layer_alias = "none"
    connection: Connection | None = None
    holds_slot = False
    ticket = FREE  # of the connections that its key and its project may have
    headers: Sequence[tuple[bytes, bytes]] = ()  # of the answer to the handshake

    def __init__(self, area: Area) -> None:
        super().__init__()
        self.area = area  # what a connection's key must be made for

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve the connection; whatever ends it (also a cancelled task, where `disconnect` is never called)."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._end("its client disconnected")

    async def dispatch(self, message: dict[str, Any]) -> None:
        """Route a message to its handler, without Channels' hop to the database thread before each of them."""
        match message["type"]:
            case "websocket.receive":
                await self.websocket_receive(message)
            case kind if kind == REFUSED:
                await self._refuse(message["error"])
            case "websocket.connect":
                await self.websocket_connect(message)
            case "websocket.disconnect":
                await self._end("its client disconnected")
                raise StopConsumer

    async def connect(self) -> None:
        """Accept, unless host, page or key may not come in, or there are too many connections."""
        site = get_site()
        reason = refusal(site, self.scope)
        if reason:
            logger.warning("a WebSocket was refused: %s", reason)
            await self.close()
            return
        began = asyncio.get_running_loop().time()
        try:
            caller = await caller_of(site, self.scope, self.area)
        except ApiError as error:
            self.headers = await headers_of(self.scope, NOBODY_ASKED, began=began)
            await self._deny(error)
            return
        self.holds_slot = await site.connection_limit.acquire()
        try:
            if not self.holds_slot:
                logger.warning("a WebSocket was refused: MAX_WEBSOCKET_CONNECTIONS are open")
                raise connections_exhausted()
            self.ticket = await take_place(site, caller)
            terms = terms_of(site, self.scope, caller)
        except ApiError as error:
            self.headers = await headers_of(self.scope, caller, began=began)
            await self._accept()
            await self._turn_away(error)
            return
        self.headers = await headers_of(self.scope, caller, began=began)
        if (frames := frames_in(self.scope)) is not None:
            frames.owner = caller.project
        await self._accept()
        extras = Extras(ping_in(self.scope), self.scope.get(FRAMES))
        self.connection = Connection(site, send=self.send_frame, close=self.close, extras=extras, terms=terms)

    async def _refuse(self, error: ApiError) -> None:
        """Say what the server does not take of what comes, and close."""
        if self.connection is not None:
            self.connection.refuse(error)

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
        connection, self.connection = self.connection, None
        if self.holds_slot:
            self.holds_slot = False
            get_site().connection_limit.release()
        self.ticket.settle()
        if connection is not None:
            await connection.aclose(reason)


def _count(error: ApiError) -> None:
    get_site().watch.metrics.error("websocket", error.status, error.code or error.type)
