"""Our application, and beside it what vLLM measures in this process: a vLLM server has `/metrics`, we have not."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from prometheus_client import make_asgi_app

from respsite.asgi import application as ours

Message = MutableMapping[str, Any]
metrics = make_asgi_app()


async def application(
    scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
) -> None:
    """Answer `/metrics`, and leave everything else to our application."""
    chosen = metrics if scope["type"] == "http" and scope["path"].startswith("/metrics") else ours
    await chosen(scope, receive, send)
