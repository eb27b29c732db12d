"""Base URLs of roll-outs: `/rollouts/{id}/v1/…` is `/v1/…` with the header `x-rollout-id`, for clients that take a URL.

All below sees the usual path: what a body may have, which scope is needed, and who answers are as without it.
"""

import re
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from responses_app.protocol.rollouts.requests import HEADER

_BASE = re.compile(r"/rollouts/([^/]+)(/v1/.*)")
_HEADER = HEADER.encode()

Message = MutableMapping[str, Any]
Application = Callable[[Message, Any, Any], Awaitable[None]]


def below_rollout(path: str) -> str:
    """Return a path without the base of a roll-out before it."""
    found = _BASE.fullmatch(path)
    return path if found is None else found[2]


class RolloutPaths:
    """An ASGI application before another one, which sees no bases of roll-outs."""

    def __init__(self, application: Application) -> None:
        self._application = application

    async def __call__(self, scope: Message, receive: Any, send: Any) -> None:
        """Hand on."""
        path = str(scope.get("path", ""))
        root = str(scope.get("root_path", "")).rstrip("/")
        found = _BASE.fullmatch(path.removeprefix(root)) if "/rollouts/" in path else None
        if found is not None and scope["type"] in ("http", "websocket"):
            name = found[1].encode("latin1", errors="replace")
            headers = [(key, value) for key, value in scope["headers"] if key != _HEADER]
            # A header that names another one makes a list of the two, which is refused.
            names = dict.fromkeys([name, *(value for key, value in scope["headers"] if key == _HEADER)])
            # A copy: the server goes on with its own.
            scope = {**scope, "path": root + found[2], "headers": [*headers, (_HEADER, b", ".join(names))]}
            scope.pop("raw_path", None)
        await self._application(scope, receive, send)
