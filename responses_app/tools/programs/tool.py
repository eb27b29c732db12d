"""`ProgramTool`: the tool `programmatic_tool_calling`: runs a program of the model's that calls tools.

Each program has a container of its own, which ends with it. What it calls is the run's to make (`ToolCall.answer`).
"""

import logging
from collections.abc import Awaitable, Callable
from typing import ClassVar

from engine.formats.base import ToolNamespace
from responses_app.protocol.errors import overloaded, unsupported_parameter
from responses_app.protocol.items.offers import Offer, OfferedTool
from responses_app.protocol.items.programs import ITEM, KIND, NAME
from responses_app.tools.base import BaseTool, ToolCall, ToolFailed, ToolResult, ToolUse
from responses_app.tools.code_interpreter.tool import code_of, notes_of, told
from responses_app.tools.programs.bounds import bounded
from responses_app.tools.sandbox.records import CellEnd, HostGone, SandboxError
from responses_app.tools.sandbox.settings import SandboxSettings
from responses_app.tools.sandbox.sharing import SharedContainers

logger = logging.getLogger("respsite.tools")


class ProgramTool(BaseTool):
    """Runs programs in containers that `containers` gives; `wiring.server_tools` bounds one with all that it calls."""

    kinds: ClassVar = (KIND,)

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
        return Offer(ToolNamespace(NAME), [OfferedTool(name=NAME, item=ITEM)])

    async def call(self, call: ToolCall) -> ToolResult:
        containers = await self._containers()
        seconds = self._settings.sandbox_call_seconds
        try:
            code, answer = code_of(call.arguments), bounded(call.answer)
            run = await containers.run_program(call.use.project, code, answer, seconds)
        except SandboxError as problem:
            logger.warning("response %s: a program broke off: %s %s", call.use.response_id, problem, problem.detail)
            raise ToolFailed(f"{problem}.") from None
        text = "\n".join([*notes_of(run.execution, self._settings), told(run)])
        return ToolResult(text, failed=run.execution.ended is not CellEnd.DONE)
