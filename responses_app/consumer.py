"""The WebSocket transport: one `AsyncJsonWebsocketConsumer` per connection, thin around `Connection`."""

import logging
from contextlib import suppress
from typing import Any

from channels.exceptions import StopConsumer
from channels.generic.websocket import AsyncJsonWebsocketConsumer

from responses_app.conf import Settings
from responses_app.connection import Connection, Extras
from responses_app.origins import Source, host_allowed
from responses_app.protocol.connection_errors import connections_exhausted
from responses_app.protocol.dialects import HEADER as DIALECT_HEADER
from responses_app.protocol.errors import ApiError
from responses_app.protocol.frames import error_frame
from responses_app.protocol.tool_outputs import HEADER as TOOL_MODE_HEADER
from responses_app.servers.backpressure import FRAMES
from responses_app.servers.heartbeat import ping_in
from responses_app.wiring import get_site

logger = logging.getLogger("respsite.transport")


class ResponsesConsumer(AsyncJsonWebsocketConsumer):
    """Serves `GET /v1/responses`, upgraded.

    No channel layer is attached: nothing is streamed through it, and a Redis outage must not kill connections.
    """

    channel_layer_alias = "none"
    connection: Connection | None = None
    holds_slot = False

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
            case "websocket.connect":
                await self.websocket_connect(message)
            case "websocket.disconnect":
                await self._end("its client disconnected")
                raise StopConsumer

    async def connect(self) -> None:
        """Accept, unless the host or the browser's page is foreign or there are too many connections."""
        site = get_site()
        refusal = _refusal(Source.of_handshake(self.scope), site.settings)
        if refusal:
            logger.warning("a WebSocket was refused: %s", refusal)
            await self.close()
            return
        self.holds_slot = await site.connection_limit.acquire()
        await self.accept()
        if not self.holds_slot:
            logger.warning("a WebSocket was refused: MAX_WEBSOCKET_CONNECTIONS are open")
            await self._turn_away(connections_exhausted())
            return
        try:
            dialect = site.dialect(_header(self.scope, DIALECT_HEADER))
            awaits_tools = site.awaits_tools(_header(self.scope, TOOL_MODE_HEADER), dialect)
        except ApiError as error:
            await self._turn_away(error)
            return
        extras = Extras(ping_in(self.scope), self.scope.get(FRAMES))
        self.connection = Connection(
            site,
            send=self.send_frame,
            close=self.close,
            extras=extras,
            dialect=dialect,
            awaits_tools=awaits_tools,
        )

    async def _turn_away(self, error: ApiError) -> None:
        """Say why an accepted connection is not served, and close it: not all servers can refuse with a reason."""
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
        if connection is not None:
            await connection.aclose(reason)


def _refusal(source: Source, settings: Settings) -> str | None:
    if not host_allowed(source.host, settings.allowed_hosts):
        return "its Host is not in ALLOWED_HOSTS"
    if not source.is_allowed(settings.trusted_pages):
        return "its Origin is neither the server's own nor in ALLOWED_ORIGINS"
    return None


def _header(scope: Any, name: str) -> str | None:
    found = (value for key, value in scope["headers"] if key == name.lower().encode())
    value = next(found, None)
    return None if value is None else value.decode("latin1")
