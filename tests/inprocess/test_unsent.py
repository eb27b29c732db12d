"""What a stop waits for that no handler knows of any more: an answer that is over and has not gone out."""

import asyncio
import socket
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

from daphne.http_protocol import WebRequest
from twisted.internet.protocol import Protocol
from twisted.internet.tcp import Connection

from responses_app.wiring.site import get_site
from tests.kit.inprocess import Server


async def reply(request: Any, message: dict[str, Any]) -> None:
    """Write an answer's body, as daphne does."""
    request.channel.transport.write(message.get("body", b""))


def test_a_stop_waits_for_an_answer_that_is_over_and_has_not_gone_out(server: Server) -> None:
    running = server.activate()
    ours, theirs = socket.socketpair()
    reactor = SimpleNamespace(addWriter=lambda _: None, removeWriter=lambda _: None)
    transport = Connection(ours, Protocol(), reactor)
    transport.connected = True
    asked = asyncio.Queue[dict[str, Any]]()
    asked.put_nowait({"type": "http.request"})
    send = partial(reply, WebRequest(Mock(transport=transport)))
    scope = {
        "type": "http",
        "method": "GET",
        "path": "/healthz",
        "headers": [(b"host", b"localhost")],
        "query_string": b"",
        "scheme": "http",
    }
    running.serve(scope, asked.get, send).result(60)

    async def begin_to_wait() -> "asyncio.Task[None]":
        waiting = asyncio.create_task(get_site().draining.served())
        await asyncio.sleep(0)  # where nothing is served it ends in its first step
        return waiting

    async def send_out(waiting: "asyncio.Task[None]") -> None:
        transport.doWrite()
        await waiting

    waiting = running.run(begin_to_wait())
    assert not waiting.done()
    running.run(send_out(waiting))
    ours.close()
    with theirs:
        assert theirs.recv(1024)
