"""`ProgramTool`: the tool `programmatic_tool_calling`: runs a program of the model's that calls tools.

Each program has a container of its own, which ends with it. Its calls are the run's to make (`ToolCall.answer`).

`bounded`: the calls of a program have an end, whatever it does with the errors that it gets. Each call is kept in the
response, with its arguments and its result. The model reads neither, so its context does not bound them, as it bounds
its own calls.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import ClassVar

from engine.formats.base import ToolNamespace
from responses_app.extensions.containers.code_interpreter import code_of, notes_of, text_of_run
from responses_app.extensions.containers.sandbox.cells import Answer
from responses_app.extensions.containers.sandbox.records import CellEnd, HostGone, SandboxError
from responses_app.extensions.containers.sandbox.settings import SandboxSettings
from responses_app.extensions.containers.sandbox.sharing import SharedContainers
from responses_app.protocol.errors import JsonObject, overloaded, unsupported_parameter
from responses_app.protocol.items.calls import json_text
from responses_app.protocol.items.offers import PROGRAM, PROGRAMS, Offer, OfferedTool
from responses_app.protocol.setting import MIB
from responses_app.tools.base import BaseTool, ToolCall, ToolFailed, ToolResult, ToolUse

logger = logging.getLogger("respsite.tools")

MAX_BYTES = 32 * MIB  # of the arguments of all calls of a program, and of their results
MAX_FAILED = 1000  # calls of a program that fail: one that goes on all the same is ended
_TOO_MUCH = f"no more tools may be called: the calls of a program have at most {MAX_BYTES} bytes in all"


def bounded(answer: Answer) -> Answer:
    """Return `answer` for one program. It raises `ToolFailed` once too many calls have failed."""
    used = failed = 0

    async def call(request: JsonObject) -> JsonObject:
        nonlocal used, failed
        try:
            used += len(json_text(request.get("arguments")))
        except TypeError:  # of `orjson`: it is stricter than Python's own, which has sent them
            reply: JsonObject = {"error": "arguments may not have halves of characters, or deep nesting"}
        else:
            reply = await answer(request) if used <= MAX_BYTES else {"error": _TOO_MUCH}
        used += sum(len(str(each)) for each in reply.values())
        if "error" in reply:
            failed += 1
            if failed > MAX_FAILED:
                raise ToolFailed(f"more than {MAX_FAILED} calls of the program have failed, so it was ended.")
        return reply

    return call


class ProgramTool(BaseTool):
    """Runs programs in containers that `containers` gives; its maker bounds one with all that it calls."""

    kinds: ClassVar = (PROGRAMS,)

    def __init__(self, containers: Callable[[], Awaitable[SharedContainers]], settings: SandboxSettings) -> None:
        self._containers = containers
        self._settings = settings

    async def offer(self, use: ToolUse) -> Offer:
        try:
            await (await self._containers()).check()
        except HostGone as gone:
            raise overloaded(f"Programs cannot be run now: {gone}.", retry_after=2) from None
        except SandboxError as problem:
            raise unsupported_parameter("tools", f"Programs cannot be run here. {problem}") from None
        return Offer(ToolNamespace(PROGRAM), [OfferedTool(name=PROGRAM, item=PROGRAM)])

    async def call(self, call: ToolCall) -> ToolResult:
        containers = await self._containers()
        seconds = self._settings.sandbox_call_seconds
        try:
            code, answer = code_of(call.arguments), bounded(call.answer)
            run = await containers.run_program(call.use.project, code, answer, seconds)
        except SandboxError as problem:
            logger.warning("response %s: a program broke off: %s %s", call.use.response_id, problem, problem.detail)
            raise ToolFailed(f"{problem}.") from None
        text = "\n".join([*notes_of(run.execution, self._settings), text_of_run(run)])
        return ToolResult(text, failed=run.execution.ended is not CellEnd.DONE)
