"""Our server, but each frame waits for a loop turn of its own: what writing the frames of a turn together saves."""

import asyncio
from dataclasses import replace
from typing import Any

from responses_app.web.servers.backpressure import SocketExtras
from responses_app.web.sockets import consumer
from responses_app.web.sockets.connection import SocketConnection
from responses_app.web.sockets.consumer import ResponsesConsumer
from respsite.asgi import application

__all__ = ["application"]

_send_frame = ResponsesConsumer.send_frame


async def _send_frame_and_yield(self: ResponsesConsumer, text: str) -> None:
    await _send_frame(self, text)
    await asyncio.sleep(0)


def _connection(*args: Any, extras: SocketExtras, **more: Any) -> SocketConnection:
    """Return one that can write no frames together."""
    return SocketConnection(*args, extras=replace(extras, write_frames=None), **more)


consumer.SocketConnection = _connection  # type: ignore[misc, assignment]
ResponsesConsumer.send_frame = _send_frame_and_yield  # type: ignore[method-assign]
