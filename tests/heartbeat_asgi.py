"""The application of `tests.heartbeat`, which says what this measures: respsite's own, and `GET /heartbeat`."""

import asyncio
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

from respsite.asgi import application as respsite

BEAT_SECONDS = 0.005


class Heartbeat:
    """Beats in the running loop from when it is made."""

    def __init__(self) -> None:
        self.longest = 0.0
        self._loop = asyncio.get_running_loop()
        self._waits = Path(f"/proc/{os.getpid()}/task/{threading.get_native_id()}/schedstat")
        self._last = self._now()
        self._loop.call_later(BEAT_SECONDS, self._beat)

    def _now(self) -> tuple[float, float, float]:
        """Return the time, what of it this thread waited for a processor, and what the process used of one."""
        return time.perf_counter(), int(self._waits.read_text().split()[1]) / 1e9, time.process_time()

    def _beat(self) -> None:
        now = self._now()
        passed, waited, used = (after - before for before, after in zip(self._last, now, strict=True))
        self.longest = max(self.longest, min(passed - waited - BEAT_SECONDS, used))
        self._last = now
        self._loop.call_later(BEAT_SECONDS, self._beat)


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
