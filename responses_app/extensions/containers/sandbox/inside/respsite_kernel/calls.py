"""`call_tool`: what a program calls the host's tools with, through the kernel's own channel.

A call is a frame to the host, and the host's answer is the next frame that comes; the program waits between the two.
`call_tools` makes several calls in one frame. `call_tool_async` does that for coroutines: once nothing else of the
event loop can go on, all calls that wait there go to the host together. So `asyncio.gather` of nine calls is one frame.
Calls of several threads go one after another. Behind the end of its program nothing can be called any more: a thread
that is left over gets an error.

Standard library only, and no name of this server's, as all that runs inside.
"""

import json
import random
import select
import signal
import socket
import threading
from collections.abc import Callable, Iterable
from typing import Any

from respsite_kernel.frames import MAX_CALL, packed, read_frame

_MAX_ROUNDS = 1000  # of the event loop, for which calls wait for others to join them


class ToolError(Exception):
    """A tool has failed, or may not be called."""


class Calls:
    """The calls of one program."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._lock = threading.Lock()
        self._is_over = False
        # Of coroutines: what each calls, and what takes its answer.
        self._waiting: list[tuple[dict[str, Any], Callable[[dict[str, Any]], None]]] = []
        random.seed(0)  # a program that is run again is to do the same

    def call_tool(self, name: str, arguments: "dict[str, Any] | None" = None, **more: Any) -> Any:
        """Call a tool; return what it gives: what its JSON says, else its text. Raises `ToolError`."""
        return _given(self._ask({"name": name, "arguments": {**(arguments or {}), **more}}))

    def call_tools(self, calls: "Iterable[Any]") -> "list[Any]":
        """Make calls together, each `(name, arguments)`; return what they give. Raises `ToolError` if one fails."""
        pairs = [(each, {}) if isinstance(each, str) else (each[0], each[1] if len(each) > 1 else {}) for each in calls]
        return [_given(each) for each in self._ask_all([{"name": n, "arguments": dict(a or {})} for n, a in pairs])]

    async def call_tool_async(self, name: str, arguments: "dict[str, Any] | None" = None, **more: Any) -> Any:
        """Call a tool as `call_tool` does, together with all other coroutines that wait for one."""
        import asyncio  # a third of the start of a container, if it were imported by all

        loop = asyncio.get_running_loop()
        answer: asyncio.Future[dict[str, Any]] = loop.create_future()
        if not self._waiting:
            loop.call_soon(self._flush, loop)
        take: Callable[[dict[str, Any]], None] = lambda said: None if answer.done() else answer.set_result(said)  # noqa: E731
        self._waiting.append(({"name": name, "arguments": {**(arguments or {}), **more}}, take))
        return _given(await answer)

    def _flush(self, loop: Any, rounds: int = _MAX_ROUNDS) -> None:
        """Make the calls of all coroutines that wait, once no other can go on."""
        # What is ready to run may call, too. The loop has no public name for that.
        if rounds and getattr(loop, "_ready", None):
            loop.call_soon(self._flush, loop, rounds - 1)
            return
        waiting, self._waiting = self._waiting, []
        try:
            answers = self._ask_all([call for call, _ in waiting])
        except ToolError as problem:
            answers = [{"error": str(problem)}] * len(waiting)
        for (_, take), answer in zip(waiting, answers, strict=True):
            take(answer)

    def _ask_all(self, calls: "list[dict[str, Any]]") -> "list[dict[str, Any]]":
        if len(calls) == 1:
            return [self._ask(calls[0])]
        if not calls:
            return []
        answers: list[dict[str, Any]] = _checked(self._ask({"calls": calls}))["answers"]
        return answers

    def _ask(self, call: "dict[str, Any]") -> "dict[str, Any]":
        asked = json.dumps(call).encode()
        if len(asked) > MAX_CALL:  # the host says so, too, but of far more it ends the container
            raise ToolError(f"a call has at most {MAX_CALL} bytes of JSON, and so have calls that are made together")
        with self._lock:
            if self._is_over:
                raise ToolError("the program has ended")
            self._channel.sendall(packed({"call": True}, asked))
            return self._answer()

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


def _checked(answer: "dict[str, Any]") -> "dict[str, Any]":
    if "error" in answer:
        raise ToolError(answer["error"])
    return answer


def _given(answer: "dict[str, Any]") -> Any:
    """Return what a call gave: what its JSON says, else its text. Raises `ToolError`."""
    output = _checked(answer)["output"]
    try:
        return json.loads(output)
    except ValueError:
        return output
