"""What follows from being reachable from the network: clients need keys there; where they do not, a loud warning.

`HOST` is what `respsite serve` listens on; daphne and uvicorn have flags of their own. So what counts is where the
process listens. Under daphne its sockets are known at the start; another server tells only with each connection which
of its addresses was called, and the first one that is not loopback tells it.
"""

import logging
import sys
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from typing import Any

from responses_app.auth.addresses import is_local

logger = logging.getLogger("respsite")

Message = MutableMapping[str, Any]
App = Callable[[Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]]

WARNING = (
    "This server can be reached from the network, at %s, and asks nobody who they are (AUTH=off): whoever reaches it "
    "may use the model, and read, continue and delete what is stored. Set AUTH=auto, or listen on 127.0.0.1.%s"
)
ANY_NAME = (
    " ALLOWED_HOSTS=* lets in the pages of any web site, too, through the browser of anybody who can reach it: name "
    "the hosts that clients use."
)


class Exposure:
    """ASGI middleware around the whole application; `hook_daphne` lets it look at what daphne listens on."""

    def __init__(self, app: App, *, any_host: bool, asks_nobody: bool, exposed: Callable[[], None]) -> None:
        """Take whether any `Host` is served, whether nobody needs a key, and what is called, once, when it is known."""
        self._app = app
        self._any_host = any_host
        self._asks_nobody = asks_nobody
        self._exposed = exposed
        self._known = False

    async def __call__(
        self, scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
    ) -> None:
        """Serve; the first connection from the network is taken note of."""
        if not self._known:
            self._check(scope.get("server"))
        await self._app(scope, receive, send)

    def hook_daphne(self) -> None:
        """Check what daphne listens on, once it does, if this process runs it."""
        if "daphne.server" not in sys.modules:
            return
        from twisted.internet import reactor

        def check() -> None:
            for address in _listening(reactor):
                self._check(address)

        reactor.callWhenRunning(check)

    def _check(self, address: Any) -> None:
        """Take note of an address, a host and a port, that others can reach."""
        if self._known or not address or address[1] is None or is_local(str(address[0])):
            return
        self._known = True
        self._exposed()
        if not self._asks_nobody:
            return
        host = f"[{address[0]}]" if ":" in str(address[0]) else address[0]
        logger.warning(WARNING, f"{host}:{address[1]}", ANY_NAME if self._any_host else "")


def _listening(reactor: Any) -> Iterator[tuple[str, int]]:
    from twisted.internet.tcp import Port

    for reader in reactor.getReaders():
        if isinstance(reader, Port):
            host = reader.getHost()
            if hasattr(host, "port"):  # a Unix socket has none
                yield host.host, host.port
