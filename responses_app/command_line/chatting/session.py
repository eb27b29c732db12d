"""`ChatSession`: the lanes of a chat over one connection. Its event loop has a thread of its own.

So the person's thread can wait for a line, and meanwhile the connection is kept alive and other lanes go on.
"""

import asyncio
import threading
from collections.abc import Coroutine, Mapping
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

from responses_app.command_line.base.endpoint import Endpoint
from responses_app.command_line.chatting.connection import Connection

Item = dict[str, Any]
CONTINUABLE = ("completed", "incomplete")
DEFAULT = "main"  # what the lane without a `stream_id` is called
T = TypeVar("T")


class View(Protocol):
    """Shows a response while it comes."""

    def show(self, event: Item) -> None:
        """Show an event."""

    def end(self) -> None:
        """End the last line."""


class ChatSession:
    """Creates go out with what `common` says. Every lane continues its own last response."""

    def __init__(self, endpoint: Endpoint, common: Mapping[str, Any]) -> None:
        self._common = common
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="connection", daemon=True)
        self._thread.start()
        self._connection = Connection(endpoint)
        self.last: dict[str, str] = {}  # response ids, by the names of lanes
        self._running: dict[str, str] = {}

    def begin(self, lane: str, items: list[Item], view: View) -> "Future[Item]":
        """Send items on a lane; the future gives the response, or raises `CommandFailed`."""
        return self._submit(self._turn(lane, items, view))

    def interrupt(self, lane: str) -> bool:
        """End what runs on a lane; return whether anything does."""
        if lane not in self._running:
            return False
        self._submit(self._connection.interrupt(self._running[lane]))
        return True

    def close(self) -> None:
        """Close the connection and end the thread."""
        self._submit(self._connection.aclose()).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _submit(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _turn(self, lane: str, items: list[Item], view: View) -> Item:
        body = {**self._common, "input": items}
        if lane in self.last:
            body["previous_response_id"] = self.last[lane]
        response: Item = {}
        try:
            async for event in self._connection.create(None if lane == DEFAULT else lane, body):
                if "response" in event:
                    response = event["response"]
                    self._running[lane] = response["id"]
                view.show(event)
        finally:
            self._running.pop(lane, None)
            view.end()
        if response.get("status") in CONTINUABLE:
            self.last[lane] = response["id"]
        return response
