"""A warning, loud and once, where the server can be reached from the network: it asks nobody who they are.

`HOST` is what `manage.py serve` listens on; daphne and uvicorn have flags of their own. So what counts is where the
process listens. Under daphne its sockets are known at the start; another server tells only with each connection which
of its addresses was called, and the first one that is not loopback tells it.
"""

import logging
import sys
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from ipaddress import ip_address
from typing import Any

logger = logging.getLogger("respsite")

Message = MutableMapping[str, Any]
App = Callable[[Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]]

WARNING = (
    "This server can be reached from the network, at %s, and asks nobody who they are: whoever reaches it may use the "
    "model, and read, continue and delete what is stored. Listen on 127.0.0.1, or put something in front of it that "
    "asks.%s"
)
ANY_NAME = (
    " ALLOWED_HOSTS=* lets in the pages of any web site, too, through the browser of anybody who can reach it: name "
    "the hosts that clients use."
)


class Exposure:
    """ASGI middleware around the whole application; `hook_daphne` lets it look at what daphne listens on."""

    def __init__(self, app: App, *, any_host: bool) -> None:
        self._app = app
        self._any_host = any_host
        self._warned = False

    async def __call__(
        self, scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
    ) -> None:
        """Serve; the first connection from the network is warned of."""
        if not self._warned:
            self._check(scope.get("server"))
        await self._app(scope, receive, send)

    def hook_daphne(self) -> None:
        """Check what daphne listens on, once it does, if this process runs it."""
        if "daphne.server" not in sys.modules:
            return
        from twisted.internet import reactor

        reactor.callWhenRunning(lambda: [self._check(address) for address in _listening(reactor)])

    def _check(self, address: Any) -> None:
        """Warn of an address, a host and a port, that others can reach."""
        if self._warned or not address or address[1] is None or is_local(str(address[0])):
            return
        self._warned = True
        host = f"[{address[0]}]" if ":" in str(address[0]) else address[0]
        logger.warning(WARNING, f"{host}:{address[1]}", ANY_NAME if self._any_host else "")


def is_local(host: str) -> bool:
    """Whether only this machine can call this address; an unknown one is none that others can."""
    try:
        address = ip_address(host)
    except ValueError:  # a name, or a Unix socket's path
        return True
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def _listening(reactor: Any) -> Iterator[tuple[str, int]]:
    from twisted.internet.tcp import Port

    for reader in reactor.getReaders():
        if isinstance(reader, Port):
            host = reader.getHost()
            if hasattr(host, "port"):  # a Unix socket has none
                yield host.host, host.port
