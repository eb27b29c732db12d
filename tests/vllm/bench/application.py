"""Our application, and beside it what vLLM measures in this process: a vLLM server has `/metrics`, we have not."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from prometheus_client import generate_latest

from respsite.asgi import application as ours

Message = MutableMapping[str, Any]


async def application(
    scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
) -> None:
    """Answer `/metrics`, and leave everything else to our application."""
    if scope["type"] != "http" or scope["path"] != "/metrics":
        await ours(scope, receive, send)
        return
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": generate_latest()})
