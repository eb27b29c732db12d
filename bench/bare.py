"""What our server is compared with: the same frames, ready made, by the same sender; a bare Django view for SSE.

`BENCH_FRAMES` names a JSON file with what our own server sent: `frames` over a WebSocket, `chunks` over HTTP.
"""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from functools import cache
from pathlib import Path
from typing import Any

from channels.exceptions import StopConsumer
from channels.generic.websocket import AsyncJsonWebsocketConsumer
from channels.routing import ProtocolTypeRouter, URLRouter
from django.core.asgi import get_asgi_application
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.urls import path, re_path

from responses_app.web.servers.backpressure import Backpressure
from responses_app.web.servers.inflow import FrameRules


@cache
def recorded() -> dict[str, list[str]]:
    return json.loads(Path(os.environ["BENCH_FRAMES"]).read_text())


class Prebuilt(AsyncJsonWebsocketConsumer):
    """Answers each frame with the recorded ones, one a loop turn: the way `Connection` writes one lane."""

    channel_layer_alias = "none"

    async def dispatch(self, message: dict[str, Any]) -> None:
        """Route a message, as our own consumer does."""
        match message["type"]:
            case "websocket.receive":
                self.task = asyncio.create_task(self.play(recorded()["frames"]))
            case "websocket.connect":
                await self.websocket_connect(message)
            case "websocket.disconnect":
                raise StopConsumer

    async def play(self, frames: list[str]) -> None:
        """Send frames that are made already."""
        for frame in frames:
            await self.send_frame(frame)
            await asyncio.sleep(0)

    async def send_frame(self, text: str) -> None:
        """Send a text frame, as our own consumer does."""
        await self.base_send({"type": "websocket.send", "text": text})


async def _chunks() -> AsyncIterator[bytes]:
    for chunk in [chunk.encode() for chunk in recorded()["chunks"]]:
        yield chunk
        await asyncio.sleep(0)


async def stream(request: HttpRequest) -> StreamingHttpResponse:
    """Stream what our own server streamed."""
    return StreamingHttpResponse(_chunks(), content_type="text/event-stream")


async def ready(request: HttpRequest) -> HttpResponse:
    """Say that this process serves."""
    return HttpResponse("ready")


MAX_MESSAGE_BYTES = 64 * 1024 * 1024

urlpatterns = [path("v1/responses", stream), path("ready", ready)]

application = ProtocolTypeRouter(
    {
        "http": get_asgi_application(),
        "websocket": Backpressure(
            URLRouter([re_path("", Prebuilt.as_asgi())]),
            stall_seconds=30.0,
            max_message_bytes=MAX_MESSAGE_BYTES,
            frame_rules=FrameRules(
                arrival_seconds=30.0, max_message_bytes=MAX_MESSAGE_BYTES, max_unfinished_bytes=2 * MAX_MESSAGE_BYTES
            ),
        ),
    }
)
