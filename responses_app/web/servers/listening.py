"""Listening sockets: what waits there, and those that several processes share (`respsite serve --workers`,
`daphne --fd`).

The kernel keeps connections that nobody has accepted yet, as many as the process asks for and `net.core.somaxconn`
allows; more than that at once are reset. Twisted asks for 50, so daphne's sockets are told again.

A process that is alone goes on accepting while it stops, and says 503 to what comes. One that shares its socket stops
accepting at once: what comes then waits in the kernel, in the one queue of all, until another process takes it. (With
SO_REUSEPORT each process would have a queue of its own, and what waits in it would be lost with the process.)
"""

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from responses_app.web.servers.shares import HOLD_SECONDS, Shares

BACKLOG = 2**16 - 1  # connections that wait until a process takes them; the kernel takes what it allows for more
ACCEPTED_A_TURN = 128  # of those, in one turn of the loop: some 15 ms

_listeners: "list[SharedListener]" = []  # of this process; one that leaves what comes to others is not a reader


class SharedListener:
    """daphne's factory on a socket that this process has inherited; it accepts at once, and its share only."""

    def __init__(self, descriptor: int, family: int, factory: Any, shares: Shares) -> None:
        from twisted.internet import reactor
        from twisted.internet.tcp import Server

        class Counted(Server):
            """A connection. Twisted makes one for each that is accepted."""

            def connectionLost(connection, reason: Any) -> None:
                self._count(-1)
                super().connectionLost(reason)

        self._shares = shares
        self._connections = 0
        self._has_waited = False
        self._call_later = reactor.callLater
        self.port = reactor.adoptStreamPort(descriptor, family, factory)
        self.port.transport = self._connect
        self._counted = Counted
        self._accept = self.port.doRead
        self.port.doRead = self._accept_some
        self.port.socket.listen(BACKLOG)
        self._count(0)
        _listeners.append(self)

    def pause(self) -> None:
        """Leave what comes to the others until `open` is called."""
        self.port.stopReading()
        self._shares.say(None)

    def open(self) -> None:
        """Accept, unless this process stops already."""
        if not self.port.disconnecting:
            self.port.startReading()
            self._count(0)

    def close(self) -> None:
        """Accept no more."""
        self.port.stopListening()
        self._shares.say(None)

    def _accept_some(self) -> None:
        for _ in range(ACCEPTED_A_TURN):
            if self._shares.holds_more() and not self._has_waited:
                self._has_waited = True
                self.port.stopReading()
                self._call_later(HOLD_SECONDS, self.open)
                return
            self._has_waited = False
            self.port.numberAccepts = 1  # of its own Twisted would take all that wait, and leave none to the others
            self._accept()
            if self.port.numberAccepts == 1:  # none was there: Twisted wants to try more next time where one was
                return

    def _connect(self, *args: Any) -> Any:
        self._count(1)
        return self._counted(*args)

    def _count(self, more: int) -> None:
        self._connections += more
        self._shares.say(None if self.port.disconnecting else self._connections)


def listen_widely() -> None:
    """Let as many connections wait at the sockets of this process's daphne as the system allows, and take them soon."""
    from twisted.internet import reactor
    from twisted.internet.tcp import Port

    shared = [listener.port for listener in _listeners]
    for port in reactor.getReaders():
        if isinstance(port, Port) and port not in shared:
            port.socket.listen(BACKLOG)
            if port._shouldShutdown:  # an adopted one may be shared: the others are to have some, too
                port.doRead = partial(_accept_many, port, port.doRead)


def _accept_many(port: Any, accept: Callable[[], None]) -> None:
    port.numberAccepts = ACCEPTED_A_TURN  # of its own Twisted takes one, after a time in which few came
    accept()


def stop_accepting() -> bool:
    """Leave what comes to the other processes that listen on the sockets of this process's daphne.

    Return whether there are such sockets.
    """
    if "daphne.server" not in sys.modules:
        return False
    from twisted.internet import reactor
    from twisted.internet.tcp import Port

    for listener in _listeners:
        listener.close()
    ports = [reader for reader in reactor.getReaders() if isinstance(reader, Port)]
    adopted = [port for port in ports if not port._shouldShutdown]  # Twisted never shuts those down
    for port in adopted:
        port.stopListening()
    return bool(adopted or _listeners)
