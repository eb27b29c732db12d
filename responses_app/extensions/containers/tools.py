"""The tools that run code of models, as the settings say. Each is made where a request first needs it.

What they need takes long to import, and most servers never need it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar

from responses_app.protocol.items.offers import PROGRAMS, Offer
from responses_app.tools.base import BaseTool, ContainerLimits, Finish, ToolCall, ToolParts, ToolResult, ToolUse

if TYPE_CHECKING:
    from responses_app.extensions.containers.code_interpreter import CodeInterpreterTool
    from responses_app.extensions.containers.programs import ProgramTool
    from responses_app.extensions.containers.sandbox.sharing import SharedContainers
    from responses_app.extensions.containers.settings import ServerSettings
    from responses_app.extensions.containers.shell import ShellTool

Tool = TypeVar("Tool", bound=BaseTool)

PROGRAM_SECONDS = 600.0  # of a program, with all that it calls
STARTING_SECONDS = 60.0  # a call waits so long for its container: to be started, and to end what it does for others


class LazyTool(BaseTool, Generic[Tool]):
    """A tool that `make` gives when it is first asked for: most servers never are.

    That tool has these `kinds`, and a call of it may take `seconds`, reports or not. It overrides neither `start` nor
    `refusal`, and lists no tools: these are not handed on.
    """

    def __init__(self, kinds: Collection[str], make: Callable[[], Awaitable[Tool]], *, seconds: float) -> None:
        self.kinds = kinds  # type: ignore[misc]  # each has its own
        self.max_seconds = self.idle_seconds = seconds
        self._make = make
        self._making = asyncio.Lock()
        self._tool: Tool | None = None

    async def tool(self) -> Tool:
        """Return the tool."""
        # Two first calls at once make one tool.
        async with self._making:
            if self._tool is None:
                self._tool = await self._make()
            return self._tool

    @property
    def made(self) -> Tool | None:
        """The tool, if it was asked for."""
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

    async def begin(self, call: ToolCall) -> Finish:
        return await (await self.tool()).begin(call)

    async def forget_response(self, use: ToolUse) -> None:
        if self._tool is not None:
            await self._tool.forget_response(use)

    async def expire(self, project: str, oldest: float) -> None:
        if self._tool is not None:
            await self._tool.expire(project, oldest)


class LazyInterpreter(LazyTool["CodeInterpreterTool"]):
    """The code interpreter, whose containers have an API of their own."""

    def __init__(self, parts: ToolParts) -> None:
        self._settings: ServerSettings = parts.settings
        self.container_limits = ContainerLimits(
            idle_seconds=self._settings.sandbox_idle_seconds, file_bytes=self._settings.sandbox_disk_bytes
        )
        seconds = self._settings.sandbox_call_seconds + STARTING_SECONDS
        super().__init__(("code_interpreter",), partial(asyncio.to_thread, _interpreter, parts), seconds=seconds)

    def missing(self) -> str:
        # What another machine has, only that one knows.
        if any("/" not in host for host in self._settings.sandbox_hosts):
            return ""
        from responses_app.extensions.containers.sandbox.choosing import missing

        return missing(self._settings.sandbox)


def interpreter_of(tools: Iterable[BaseTool]) -> LazyInterpreter | None:
    """Return the code interpreter; None where there is none, or one at an MCP server."""
    return next((tool for tool in tools if isinstance(tool, LazyInterpreter)), None)


def code_tools(parts: ToolParts) -> Iterable[BaseTool]:
    """Return the tools of a server; nothing is started."""
    settings: ServerSettings = parts.settings
    if settings.sandbox_mcp:
        from responses_app.extensions.containers.code_interpreter import McpInterpreter

        assert parts.mcp is not None, "the settings say which server it is"
        return [McpInterpreter(parts.mcp, settings.sandbox_mcp)]
    if settings.sandbox == "off":
        return ()
    code = LazyInterpreter(parts)

    async def shell() -> "ShellTool":
        interpreter = await code.tool()
        from responses_app.extensions.containers.shell import ShellTool

        return ShellTool(interpreter, settings)

    async def containers() -> "SharedContainers":
        return (await code.tool()).containers

    async def programs() -> "ProgramTool":
        from responses_app.extensions.containers.programs import ProgramTool

        return ProgramTool(containers, settings)

    return [
        code,
        LazyTool(("shell",), shell, seconds=code.max_seconds),  # in the same containers
        LazyTool((PROGRAMS,), programs, seconds=PROGRAM_SECONDS),
    ]


def _interpreter(parts: ToolParts) -> "CodeInterpreterTool":
    from responses_app.extensions.containers.code_interpreter import CodeInterpreterTool
    from responses_app.extensions.containers.making import hosts_of
    from responses_app.extensions.containers.sandbox.sharing import SharedContainers

    hosts, is_past = hosts_of(parts.settings), partial(parts.retentions.past, now=parts.now)
    return CodeInterpreterTool(
        containers=SharedContainers(hosts, is_past=is_past),
        settings=parts.settings,
        files=parts.files,
        skills=parts.skills,
    )
