"""The tools that this server runs, as the settings say: each is made where something is set up for it.

What a tool needs is imported with it: a server without tools starts as fast as ever.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar

from responses_app.kit.clock import StoreClock, id_factory
from responses_app.kit.extension import extensions
from responses_app.protocol import ids
from responses_app.protocol.errors import invalid_request
from responses_app.protocol.items.media import MAX_TEXT, DocumentUnreadable, ReadDocument
from responses_app.protocol.items.offers import Offer
from responses_app.protocol.items.programs import KIND as PROGRAMS
from responses_app.settings.conf import Settings
from responses_app.stores.files import BaseFileStore
from responses_app.tools.base import BaseTool, Finish, ToolCall, ToolParts, ToolResult, ToolUse
from responses_app.tools.reading.processes import DocumentReader, ReadFailed
from responses_app.wiring.adapters import Adapters

if TYPE_CHECKING:
    from responses_app.resources.skills.store import Skills
    from responses_app.tools.containers.code_interpreter import CodeInterpreterTool
    from responses_app.tools.containers.programs import ProgramTool
    from responses_app.tools.containers.shell import ShellTool
    from responses_app.tools.file_search import FileSearchTool
    from responses_app.tools.sandbox.sharing import SharedContainers

Tool = TypeVar("Tool", bound=BaseTool)


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


IsPast = Callable[[str, float], bool]
PROGRAM_SECONDS = 600.0  # of a program, with all that it calls
STARTING_SECONDS = 60.0  # a call waits so long for its container: to be started, and to end what it does for others


def tool_parts(settings: Settings, adapters: Adapters, clock: StoreClock) -> ToolParts:
    """Return what tools are made of."""
    return ToolParts(
        settings=settings,
        files=adapters.stores.files,
        skills=adapters.skills,
        stored_items=adapters.stores.responses.items,
        now=clock,
        retentions=adapters.retentions,
    )


def server_tools(parts: ToolParts) -> tuple[BaseTool, ...]:
    """Return the tools, those of extensions last; nothing is started, and no event loop is needed yet."""
    return (*_tools(parts, parts.settings), *(tool for each in extensions() for tool in each.tools(parts)))


def _tools(parts: ToolParts, settings: Settings) -> Iterator[BaseTool]:
    inside = _inside(settings)
    mcp = _mcp(settings, inside) if settings.mcp_server_urls or settings.mcp_servers or inside else None
    if mcp is not None:
        yield mcp
    if settings.sandbox_mcp:
        yield _mcp_interpreter(settings, mcp)
    elif settings.sandbox != "off":
        yield (code := interpreter(settings, parts.files, parts.skills, partial(parts.retentions.past, now=parts.now)))
        yield shell(settings, code)
        yield _programs(settings, code)
    if settings.search_url or settings.search_mcp:
        yield _browser(settings, mcp)
    if settings.file_search:
        yield _file_search(settings, parts)
    if settings.image_service_url:
        yield _images(settings, parts)


def _inside(settings: Settings) -> Mapping[str, Callable[[str], object]]:
    """Return what makes the MCP servers of extensions, by label. Ends the process where a label is there twice."""
    inside: dict[str, Callable[[str], object]] = {}
    for extension in extensions():
        for label, make in extension.tool_servers(settings).items():
            if label in inside or label in settings.mcp_servers:
                raise SystemExit(
                    f"respsite: the extension {extension.label!r} brings the MCP server {label!r}, and there is "
                    "another of this label. Rename the one of MCP_SERVERS, or remove an extension from EXTENSIONS."
                )
            inside[label] = make
    return inside


def document_text() -> ReadDocument:
    """Return what reads files that messages carry, where they are not plain text."""
    reader = DocumentReader(at_once=2)

    async def text(name: str, content: bytes) -> str:
        try:
            return await reader.text(name, content, most=MAX_TEXT)
        except ReadFailed as problem:
            raise DocumentUnreadable(str(problem)) from None

    return text


def interpreter_of(tools: Iterable[BaseTool]) -> "LazyTool[CodeInterpreterTool] | None":
    """Return the code interpreter, whose containers have an API of their own; None where there is none."""
    lazy = (tool for tool in tools if isinstance(tool, LazyTool))
    return next((tool for tool in lazy if "code_interpreter" in tool.kinds), None)


def file_search_of(tools: Iterable[BaseTool]) -> "FileSearchTool":
    """Return the file search, whose vector stores have an API of their own. Raises `ApiError` where there is none."""
    from responses_app.tools.file_search import FileSearchTool

    for tool in tools:
        if isinstance(tool, FileSearchTool):
            return tool
    raise invalid_request("This server has no vector stores (FILE_SEARCH=off).", code="unsupported_parameter")


def interpreter(
    settings: Settings, files: BaseFileStore, skills: "Skills", is_past: IsPast
) -> "LazyTool[CodeInterpreterTool]":
    """Return the code interpreter; what it needs is imported when it is first asked for.

    `is_past` says whether what a project made at a time is past its retention.
    """
    seconds = settings.sandbox_call_seconds + STARTING_SECONDS
    made = partial(asyncio.to_thread, _interpreter, settings, files, skills, is_past)  # its modules take long to import
    return LazyTool(("code_interpreter",), made, seconds=seconds)


def shell(settings: Settings, code: "LazyTool[CodeInterpreterTool]") -> "LazyTool[ShellTool]":
    """Return the shell, which shares the containers of the code interpreter."""

    async def made() -> "ShellTool":
        interpreter = await code.tool()
        from responses_app.tools.containers.shell import ShellTool

        return ShellTool(interpreter, settings)

    return LazyTool(("shell",), made, seconds=settings.sandbox_call_seconds + STARTING_SECONDS)


def _programs(settings: Settings, runs_code: "LazyTool[CodeInterpreterTool]") -> BaseTool:
    """Return what runs programs, in containers of the code interpreter's."""

    async def containers() -> "SharedContainers":
        return (await runs_code.tool()).containers

    async def made() -> "ProgramTool":
        from responses_app.tools.containers.programs import ProgramTool

        return ProgramTool(containers, settings)

    return LazyTool((PROGRAMS,), made, seconds=PROGRAM_SECONDS)


def _interpreter(settings: Settings, files: BaseFileStore, skills: "Skills", is_past: IsPast) -> "CodeInterpreterTool":
    from responses_app.tools.containers.code_interpreter import CodeInterpreterTool
    from responses_app.tools.sandbox.sharing import SharedContainers
    from responses_app.wiring.sandboxes import hosts_of

    return CodeInterpreterTool(
        containers=SharedContainers(hosts_of(settings), is_past=is_past),
        settings=settings,
        files=files,
        skills=skills,
    )


def _mcp_interpreter(settings: Settings, mcp: BaseTool | None) -> BaseTool:
    from responses_app.tools.containers.code_interpreter import McpInterpreter

    assert mcp is not None, "the settings say which server it is"
    return McpInterpreter(mcp, settings.sandbox_mcp)


def _mcp(settings: Settings, inside: Mapping[str, Callable[[str], object]]) -> BaseTool:
    from responses_app.tools.mcp.tool import McpTool

    return McpTool(settings, inside)


def _images(settings: Settings, parts: ToolParts) -> BaseTool:
    from responses_app.tools.image_service import ImageService
    from responses_app.tools.image_tool import EarlierImages, ImageTool

    return ImageTool(ImageService(settings), EarlierImages(parts.stored_items, parts.files, settings))


def _browser(settings: Settings, mcp: BaseTool | None) -> BaseTool:
    from responses_app.tools.browser.fetching import Fetcher, PageCache, PageReader
    from responses_app.tools.browser.searching import BaseSearch, McpSearch, json_search
    from responses_app.tools.browser.tool import Browser, BrowserTool
    from responses_app.tools.network import Network

    if settings.search_mcp:
        assert mcp is not None, "the settings say which server it is"
        search: BaseSearch = McpSearch(mcp, settings.search_mcp)
    else:
        search = json_search(settings.search_url)
    fetcher = Fetcher(Network("SEARCH_ALLOWED_HOSTS", settings.search_allowed_hosts))
    return BrowserTool(Browser(search, fetcher, PageReader(), PageCache()))


def _file_search(settings: Settings, parts: ToolParts) -> BaseTool:
    from responses_app.resources.vector_stores.store import VectorStores
    from responses_app.tools.file_search import FileSearchTool, Indexer
    from responses_app.tools.reading.processes import DocumentReader

    stores = VectorStores(
        settings=settings, now=parts.now, timeout=settings.database_timeout_seconds, retentions=parts.retentions
    )
    worker = id_factory(time.time)(ids.WORKER)
    return FileSearchTool(stores, Indexer(stores, parts.files, DocumentReader(), worker=worker))
