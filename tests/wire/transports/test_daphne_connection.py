"""When a WebSocket's peer is read from under daphne: the connection alone, over the protocol object it works on."""

import asyncio
from functools import partial
from typing import Any

import pytest
from daphne.ws_protocol import WebSocketProtocol

from responses_app.web.servers.daphne import WAITING_BYTES, DaphneConnection


class Transport:
    """Says whether it reads."""

    reads = True

    def pauseProducing(self) -> None:
        self.reads = False

    def resumeProducing(self) -> None:
        self.reads = True

    def registerProducer(self, producer: object, streaming: bool) -> None:
        pass

    def unregisterProducer(self) -> None:
        pass


@pytest.fixture
def protocol() -> Any:
    """A connection as daphne makes it, with its queue."""
    made = WebSocketProtocol()
    made.transport = Transport()
    made.application_queue = asyncio.Queue()
    return made


async def _send(protocol: object, message: object) -> None:
    """Stand in for `Server.handle_reply`."""


async def test_what_is_not_taken_is_not_read_on(protocol: Any) -> None:
    connection = DaphneConnection.of(partial(_send, protocol), max_message_bytes=1, stall_seconds=30)
    queue = protocol.application_queue
    queue.put_nowait({"type": "websocket.connect"})
    receive = connection.receive_from(queue.get)
    protocol.application_queue.put_nowait({"type": "websocket.receive", "text": "x" * WAITING_BYTES})
    assert protocol.transport.reads
    protocol.application_queue.put_nowait({"type": "websocket.receive", "bytes": b"x"})
    assert not protocol.transport.reads
    assert (await receive())["type"] == "websocket.connect"
    assert not protocol.transport.reads
    assert (await receive())["text"]
    assert protocol.transport.reads
    assert (await receive())["bytes"] == b"x"


async def test_a_peer_that_takes_nothing_is_not_read_even_if_its_messages_are_taken(protocol: Any) -> None:
    connection = DaphneConnection.of(partial(_send, protocol), max_message_bytes=1, stall_seconds=30)
    queue = protocol.application_queue
    receive = connection.receive_from(queue.get)
    protocol.application_queue.put_nowait({"type": "websocket.receive", "text": "x" * 2 * WAITING_BYTES})
    connection.pauseProducing()
    await receive()
    assert not protocol.transport.reads
    connection.resumeProducing()
    assert protocol.transport.reads
