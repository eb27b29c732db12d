"""`call_tool`: what a program calls the host's tools with, through the kernel's own channel.

A call is a frame to the host, and the host's answer is the next frame that comes; the program waits between the two.
Calls of several threads go one after another. Behind the end of its program nothing can be called any more: a thread
that is left over gets an error.

Standard library only, and no name of this server's, as all that runs inside.
"""

import json
import select
import signal
import socket
import threading
from typing import Any

from respsite_kernel.frames import packed, read_frame


class ToolError(Exception):
    """A tool has failed, or may not be called."""


class Calls:
    """The calls of one program."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._lock = threading.Lock()
        self._is_over = False

    def call_tool(self, name: str, arguments: "dict[str, Any] | None" = None, **more: Any) -> Any:
        """Call a tool; return what it gives: what its JSON says, else its text. Raises `ToolError`."""
        asked = json.dumps({"name": name, "arguments": {**(arguments or {}), **more}}).encode()
        with self._lock:
            if self._is_over:
                raise ToolError("the program has ended")
            self._channel.sendall(packed({"call": True}, asked))
            answer = self._answer()
        if "error" in answer:
            raise ToolError(answer["error"])
        try:
            return json.loads(answer["output"])
        except ValueError:
            return answer["output"]

    def end(self) -> None:
        """Answer no more."""
        self._is_over = True

    def _answer(self) -> "dict[str, Any]":
        # Waiting can be interrupted, reading cannot: half a frame would be taken for the beginning of the next one.
        select.select([self._channel], [], [])
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            frame = read_frame(self._channel)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        if frame is None:
            raise ToolError("the host is gone")
        answer: dict[str, Any] = json.loads(frame.payload)
        return answer
