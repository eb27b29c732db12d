"""Listening sockets: what waits there, and those that several processes share (`respsite serve --workers`,
`daphne --fd`).

The kernel keeps connections that nobody has accepted yet, as many as the process asks for and `net.core.somaxconn`
allows; more than that at once are reset. Twisted asks for 50, so daphne's sockets are told again.

A process that is alone goes on accepting while it stops, and says 503 to what comes. One that shares its socket stops
accepting at once: what comes then waits in the kernel, in the one queue of all, until another process takes it. (With
SO_REUSEPORT each process would have a queue of its own, and what waits in it would be lost with the process.)

`Shares`: how many connections each of the processes on one socket holds, in memory that they share.

The kernel wakes all of them for a connection, and whoever is first takes it. That is not fair: of 120 connections at
once four idle workers took 57, 5, 58 and 0 (measured, two cores). A WebSocket stays where it is for an hour, so a
process that holds more than another one leaves what comes to that one, for `HOLD_SECONDS`: if it is still there then,
the other one is busy. It costs no message and no lock: each process writes a number of its own and reads the others'.
"""

import mmap
import os
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from typing import Any

LOOK_SECONDS = 0.25  # between two looks of a process that is not ready whether another one still is
HOLD_SECONDS = 0.003  # longer than an idle process takes to wake up and accept
_BYTES = 4  # of a number; one that is aligned is read and written whole


class Shares:
    """A table of numbers in a file that has no name; `own` is this process's place in it."""

    def __init__(self, descriptor: int, own: int = 0) -> None:
        self.descriptor = descriptor
        # Unsigned numbers of 4 bytes. A process that is gone, stops or is not ready has 0; else its connections and 1.
        self._numbers = memoryview(mmap.mmap(descriptor, 0)).cast("I")
        self._own = own % len(self._numbers)

    @classmethod
    def make(cls, places: int) -> "Shares":
        """Return a new table, in which nobody accepts anything."""
        return cls(shared_file(places * _BYTES))

    def say(self, connections: int | None) -> None:
        """Say how many connections this process holds; None: it accepts none."""
        self._numbers[self._own] = 0 if connections is None else connections + 1

    def forget(self, place: int) -> None:
        """A process is gone."""
        self._numbers[place % len(self._numbers)] = 0

    def holds_more(self) -> bool:
        """Whether another process that accepts holds fewer connections than this one."""
        # `filter` leaves out those who accept nothing.
        return self._numbers[self._own] > min(filter(None, self._numbers), default=0)

    def has_ready(self) -> bool:
        """Whether any process is there that accepts and is ready."""
        return any(self._numbers)


def shared_file(size: int) -> int:
    """Return the descriptor of a file of so many zeros that has no name, to be mapped by several processes.

    It is in memory, where the system has such: the first write to a mapped one on a full disk kills.
    """
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("respsite-shared")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.truncate(descriptor, size)
    return descriptor


BACKLOG = 2**16 - 1  # connections that wait until a process takes them; the kernel takes what it allows for more
ACCEPTED_A_TURN = 128  # of those, in one turn of the loop: some 15 ms

_listeners: "list[SharedListener]" = []  # of this process; one that leaves what comes to others is not a reader


class SharedListener:
    """daphne's factory on a socket that this process has inherited; it accepts at once, and its share only.

    Before `open` is called this process is not ready: who comes reads that the server starts. So it leaves what comes
    to the others as soon as one of them is ready, and as long as one is: where the last of them dies, nobody else may
    answer for long.
    """

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
        self._is_ready = False
        self._has_waited = False  # what comes was left to others once already
        self._call_later = reactor.callLater  # kept here, so that no import stands in the way of accepting
        self.port = reactor.adoptStreamPort(descriptor, family, factory)
        self.port.transport = self._connect
        self._counted = Counted
        self._accept = self.port.doRead
        # Twisted calls it when the socket can be read, that is, when somebody connects.
        self.port.doRead = self._accept_some
        self.port.socket.listen(BACKLOG)
        _listeners.append(self)

    def pause(self) -> None:
        """Leave what comes to the others until `open` is called, or none of them is ready any more."""
        self.port.stopReading()
        self._call_later(LOOK_SECONDS, self._look)

    def _look(self) -> None:
        if self._is_ready or self.port.disconnecting:
            return
        if self._shares.has_ready():
            self._call_later(LOOK_SECONDS, self._look)
        else:
            self.port.startReading()

    def open(self) -> None:
        """This process is ready: accept, unless it stops already."""
        self._is_ready = True
        if not self.port.disconnecting:
            self.port.startReading()
            self._count(0)

    def close(self) -> None:
        """Accept no more."""
        self.port.stopListening()
        self._shares.say(None)

    def _accept_some(self) -> None:
        if not self._is_ready and self._shares.has_ready():
            self.pause()
            return
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
        self._shares.say(self._connections if self._is_ready and not self.port.disconnecting else None)


def when_daphne_runs(call: Callable[[], object]) -> None:
    """Have this called once the daphne of this process runs, whose listeners are there then; never where none does."""
    if "daphne.server" in sys.modules:
        from twisted.internet import reactor

        reactor.callWhenRunning(call)


def ports() -> list[Any]:
    """Return the ports that the daphne of this process listens on."""
    from twisted.internet import reactor
    from twisted.internet.tcp import Port

    return [reader for reader in reactor.getReaders() if isinstance(reader, Port)]


def listen_widely() -> None:
    """Let as many connections wait at the sockets of this process's daphne as the system allows, and take them soon."""
    shared = [listener.port for listener in _listeners]
    for port in ports():
        if port not in shared:
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
    for listener in _listeners:
        listener.close()
    # `--fd` of daphne: the socket is another process's, too.
    adopted = [port for port in ports() if not port._shouldShutdown]  # Twisted never shuts those down
    for port in adopted:
        port.stopListening()
    return bool(adopted or _listeners)
