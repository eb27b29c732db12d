"""The application of `tests.kit.heartbeat`, which says what this measures: respsite's own, and `GET /heartbeat`."""

import json
from typing import Any

from respsite.asgi import application as respsite
from tests.kit.heartbeat import Heartbeat

_heart: Heartbeat | None = None


async def application(scope: Any, receive: Any, send: Any) -> None:
    """Serve respsite, and its heartbeat; the loop beats from the first request on."""
    global _heart
    if _heart is None:
        _heart = Heartbeat()
    if scope["type"] != "http" or scope["path"] != "/heartbeat":
        await respsite(scope=scope, receive=receive, send=send)
        return
    body = json.dumps({"longest_stop": _heart.longest}).encode()
    _heart.longest = 0.0
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
    await send({"type": "http.response.body", "body": body})
