"""WebSocket paths. Clients turn `http` into `ws` and append `/responses` to their base URL, with or without /v1."""

from typing import Any

from django.urls import re_path

from responses_app.consumer import ResponsesConsumer


async def refuse(scope: Any, receive: Any, send: Any) -> None:
    """Refuse a WebSocket at any other path (servers answer 403)."""
    await receive()
    await send({"type": "websocket.close"})


websocket_urlpatterns = [
    re_path(r"^(?:v1/)?responses/?$", ResponsesConsumer.as_asgi()),
    re_path(r"", refuse),
]
