"""Calls that a cell makes while it runs: each is answered before the cell goes on."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from responses_app.protocol.setting import MIB
from responses_app.tools.sandbox.inside.respsite_kernel import frames
from responses_app.tools.sandbox.records import CellEnd

T = TypeVar("T")
Answer = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]  # what a cell calls → what came of it, as JSON
MAX_ANSWER = MIB  # bytes of what a tool gives; as JSON, which escapes most letters, it is at most six times as long


async def answered(asked: bytes, tools: Answer, halt: "asyncio.Future[CellEnd]") -> bytes | None:
    """Return what came of a call, as JSON; None where the cell is to end meanwhile. What `tools` raises is raised."""
    try:
        call = frames.header_of(asked) if len(asked) <= frames.MAX_CALL else None
    except frames.FrameError:
        call = None
    if call is None:
        return json.dumps({"error": f"a call has at most {frames.MAX_CALL} bytes of JSON"}).encode()
    working = asyncio.ensure_future(tools(call))
    either: set[asyncio.Future[Any]] = {working, halt}
    try:
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        return json.dumps(await working).encode() if working.done() else None
    finally:
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)


async def while_called(answer: Answer, run: Callable[[Answer], Awaitable[T]]) -> T:
    """Have a program run, perhaps in another process, and answer what it calls.

    What `answer` raises stops the program, and is raised. No call outlives it: one that is made when it ends, or when
    this is cancelled, is cancelled and waited for.
    """
    problems: list[Exception] = []
    calls: set[asyncio.Task[dict[str, Any]]] = set()

    async def answered_here(call: dict[str, Any]) -> dict[str, Any]:
        task = asyncio.ensure_future(answer(call))
        calls.add(task)
        try:
            said = await task
        except Exception as problem:  # noqa: BLE001 - it is raised once the program has stopped
            problems.append(problem)
            running.cancel()
            return {"error": "the call broke, and the program ends"}
        finally:
            task.cancel()
            calls.discard(task)
        return said if _length(said) <= MAX_ANSWER else {"error": f"the tool gave more than {MAX_ANSWER} bytes"}

    running = asyncio.ensure_future(run(answered_here))
    try:
        await asyncio.wait({running})
        if problems:
            raise problems[0]
        return running.result()
    finally:
        made = (running, *calls)
        for task in made:
            task.cancel()
        await asyncio.gather(*made, return_exceptions=True)


def _length(said: dict[str, Any]) -> int:
    return sum(len(str(each).encode(errors="replace")) for each in said.values())
