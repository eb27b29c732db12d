"""Connections that come at once wait in the kernel, as many as it allows, however the server was started.

Only this finds a backlog that some way to start leaves at its default: no request is slow until a burst comes.
"""

import os
import selectors
import signal
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Self

import pytest

from tests.kit.served import Supervised
from tests.kit.server import Server

ALLOWED = int(Path("/proc/sys/net/core/somaxconn").read_text())
BURST = min(1100, ALLOWED - 100)  # more than a supervisor's socket took, and far more than daphne's
REQUEST = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
SECONDS = 60.0  # bound of every wait here

pytestmark = pytest.mark.skipif(ALLOWED < 1000, reason="this system lets too few connections wait")


class Alone(Supervised):
    """`serve` without workers."""

    def start(self, *, wait: bool = True) -> Self:
        Server.start(self, wait=wait)
        return self


def start(way: str, folder: Path) -> Server:
    if way in ("daphne", "uvicorn"):
        return Server(folder, kind=way)
    return Alone(folder, workers=1) if way == "serve" else Supervised(folder, workers=2)


@contextmanager
def stopped(server: Server) -> Iterator[None]:
    assert server.process is not None
    pids = (server.pids() if isinstance(server, Supervised) else []) or [server.process.pid]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def connect(port: int, opened: ExitStack) -> socket.socket:
    one = opened.enter_context(socket.socket())
    one.setblocking(False)
    one.connect_ex(("127.0.0.1", port))
    return one


def was_tried_again(one: socket.socket) -> bool:
    """Say whether the kernel had to try more than once to connect: who has no room hears nothing."""
    information = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
    # `tcpi_total_retrans` of Linux's `struct tcp_info`: nothing else was sent yet.
    return bool(struct.unpack_from("I", information, 100)[0])


def ready(sockets: list[socket.socket], event: int, seconds: float) -> Iterator[socket.socket]:
    deadline = time.monotonic() + seconds
    with selectors.DefaultSelector() as selector:
        for each in sockets:
            selector.register(each, event)
        while selector.get_map() and (left := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                selector.unregister(key.fileobj)
                assert isinstance(key.fileobj, socket.socket)
                yield key.fileobj


@pytest.mark.parametrize("way", ["daphne", "uvicorn", "serve", "workers"])
@pytest.mark.each_server
def test_a_burst_of_connections_is_answered_and_none_is_reset(way: str, tmp_path: Path) -> None:
    with start(way, tmp_path) as server, ExitStack() as opened:
        with stopped(server):
            sockets = [connect(server.port, opened) for _ in range(BURST)]
            connected = list(ready(sockets, selectors.EVENT_WRITE, SECONDS))
            assert sum(map(was_tried_again, sockets)) == 0, "each had room when it came"
            assert len(connected) == BURST
            for each in connected:
                each.send(REQUEST)
        answers = [each.recv(64) for each in ready(sockets, selectors.EVENT_READ, SECONDS)]
        assert len(answers) == BURST
        assert {answer[9:12] for answer in answers} == {b"200"}
