"""The tools that this server runs, as the settings say: each is made where something is set up for it.

What a tool needs is imported with it: a server without tools starts as fast as ever.
"""

from collections.abc import Iterator

from responses_app.conf import Settings
from responses_app.tools.base import BaseTool


def server_tools(settings: Settings) -> tuple[BaseTool, ...]:
    """Return the tools; nothing is started, and no event loop is needed yet."""
    return tuple(_tools(settings))


def _tools(settings: Settings) -> Iterator[BaseTool]:
    mcp = _mcp(settings) if settings.mcp_server_urls or settings.mcp_servers else None
    if mcp is not None:
        yield mcp
    if settings.search_url or settings.search_mcp:
        yield _browser(settings, mcp)


def _mcp(settings: Settings) -> BaseTool:
    from responses_app.tools.mcp.servers import allowed_with
    from responses_app.tools.mcp.tool import McpTool
    from responses_app.tools.network import Network

    allowed = allowed_with(settings.mcp_servers, settings.mcp_allowed_hosts)
    return McpTool(
        Network("MCP_ALLOWED_HOSTS", allowed),
        servers=settings.mcp_servers,
        by_url=settings.mcp_server_urls,
        sse=settings.mcp_sse,
        call_seconds=settings.server_tool_seconds,
    )


def _browser(settings: Settings, mcp: BaseTool | None) -> BaseTool:
    from responses_app.tools.browser.backends.json_search import json_search
    from responses_app.tools.browser.backends.mcp_search import McpSearch
    from responses_app.tools.browser.browsing import Browser
    from responses_app.tools.browser.page_cache import PageCache
    from responses_app.tools.browser.page_reader import PageReader
    from responses_app.tools.browser.searching import BaseSearch
    from responses_app.tools.browser.tool import BrowserTool
    from responses_app.tools.fetching import Fetcher
    from responses_app.tools.network import Network

    if settings.search_mcp:
        assert mcp is not None, "the settings say which server it is"
        search: BaseSearch = McpSearch(mcp, settings.search_mcp)
    else:
        search = json_search(settings.search_url)
    fetcher = Fetcher(Network("SEARCH_ALLOWED_HOSTS", settings.search_allowed_hosts))
    return BrowserTool(Browser(search, fetcher, PageReader(), PageCache()))
