"""A tool that is made, with all that it imports, when it is first asked for: most servers are never asked."""

import asyncio
from collections.abc import Callable, Collection
from typing import Generic, TypeVar

from responses_app.protocol.items.offers import Offer
from responses_app.tools.base import BaseTool, ToolCall, ToolResult, ToolUse

Tool = TypeVar("Tool", bound=BaseTool)


class LazyTool(BaseTool, Generic[Tool]):
    """Stands for the tool that `make` gives, on a thread.

    That tool has these `kinds`, and a call of it may take `seconds`, reports or not. It overrides neither `start` nor
    `refusal`, and lists no tools: these are not handed on.
    """

    def __init__(self, kinds: Collection[str], make: Callable[[], Tool], *, seconds: float) -> None:
        self.kinds = kinds  # type: ignore[misc]  # each has its own
        self.max_seconds = self.idle_seconds = seconds
        self._make = make
        self._making = asyncio.Lock()
        self._tool: Tool | None = None

    async def tool(self) -> Tool:
        """Return the tool."""
        async with self._making:
            if self._tool is None:
                self._tool = await asyncio.to_thread(self._make)
            return self._tool

    async def aclose(self) -> None:
        if self._tool is not None:
            await self._tool.aclose()

    def problem(self) -> str | None:
        return None if self._tool is None else self._tool.problem()

    async def offer(self, use: ToolUse) -> Offer | None:
        return await (await self.tool()).offer(use)

    async def call(self, call: ToolCall) -> ToolResult:
        return await (await self.tool()).call(call)
