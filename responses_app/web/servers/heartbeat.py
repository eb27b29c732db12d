"""WebSocket protocol pings: ASGI has none, so they are sent around it, where the server can be reached.

Under daphne and under uvicorn with `--ws websockets-sansio` the connection behind `send` is at hand. Anywhere else
nothing is sent, and the server's own pings have to do (uvicorn's every 20 s, hypercorn's where they are turned on).
`Backpressure` puts what this returns into the scope.
"""

import sys
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from responses_app.web.servers.daphne import DaphneConnection

PING = "respsite.ping"  # its key in a WebSocket's scope

Ping = Callable[[], None]


def ping_of(send: Callable[..., Awaitable[None]], daphne: DaphneConnection | None) -> Ping:
    """Return what pings the peer of a WebSocket; it never waits, and does nothing where that cannot be done."""
    if daphne is not None:
        return daphne.ping
    module = sys.modules.get("uvicorn.protocols.websockets.websockets_sansio_impl")
    protocol = getattr(send, "__self__", None)
    if module is not None and isinstance(protocol, module.WebSocketsSansIOProtocol):
        return lambda: _ping_through_uvicorn(protocol)
    return no_ping


def ping_in(scope: MutableMapping[str, Any]) -> Ping:
    """Return what `ping_of` found for a connection, from its scope."""
    ping: Ping = scope.get(PING, no_ping)
    return ping


def no_ping() -> None:
    """Send nothing."""


def _ping_through_uvicorn(protocol: Any) -> None:
    """Send an empty ping. uvicorn does not wait for its pong, takes it as unasked for and goes on."""
    open_and_read = protocol.writable.is_set() and not protocol.close_sent and not protocol.transport.is_closing()
    if protocol.handshake_complete and open_and_read:
        protocol.conn.send_ping(b"")
        protocol.transport.write(b"".join(protocol.conn.data_to_send()))
