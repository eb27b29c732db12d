"""The tools that this server runs, as the settings say: each is made where something is set up for it.

What a tool needs is imported with it: a server without tools starts as fast as ever.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from responses_app.kit.clock import IdFactory, StoreClock
from responses_app.kit.extension import extensions
from responses_app.protocol import ids
from responses_app.protocol.errors import invalid_request
from responses_app.protocol.items.media import MAX_TEXT, DocumentUnreadable, ReadDocument
from responses_app.settings.conf import Settings
from responses_app.tools.base import BaseTool, ToolParts
from responses_app.tools.reading.processes import DocumentReader, ReadFailed
from responses_app.wiring.adapters import Adapters

if TYPE_CHECKING:
    from responses_app.resources.vector_stores.tool import FileSearchTool


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
    settings: Settings = parts.settings
    inside = _inside(settings)
    if settings.mcp_server_urls or settings.mcp_servers or inside:
        from responses_app.tools.mcp.tool import McpTool

        parts = replace(parts, mcp=McpTool(settings, inside))
    return (*_tools(parts, settings), *(tool for each in extensions() for tool in each.tools(parts)))


def _tools(parts: ToolParts, settings: Settings) -> Iterator[BaseTool]:
    if parts.mcp is not None:
        yield parts.mcp
    if settings.search_url or settings.search_mcp:
        yield _browser(settings, parts.mcp)
    if settings.file_search:
        yield _file_search(settings, parts)
    if settings.image_service_url:
        from responses_app.tools.image_service import ImageService
        from responses_app.tools.image_tool import EarlierImages, ImageTool

        yield ImageTool(ImageService(settings), EarlierImages(parts.stored_items, parts.files, settings))


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


def file_search_of(tools: Iterable[BaseTool]) -> "FileSearchTool":
    """Return the file search, whose vector stores have an API of their own. Raises `ApiError` where there is none."""
    from responses_app.resources.vector_stores.tool import FileSearchTool

    for tool in tools:
        if isinstance(tool, FileSearchTool):
            return tool
    raise invalid_request("This server has no vector stores (FILE_SEARCH=off).", code="unsupported_parameter")


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
    from responses_app.resources.vector_stores.tool import FileSearchTool, Indexer
    from responses_app.tools.reading.processes import DocumentReader

    stores = VectorStores(
        settings=settings, now=parts.now, timeout=settings.database_timeout_seconds, retentions=parts.retentions
    )
    worker = IdFactory(time.time)(ids.WORKER)
    return FileSearchTool(stores, Indexer(stores, parts.files, DocumentReader(), worker=worker))
