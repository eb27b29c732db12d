"""`McpTool`: the tools of MCP servers, at the URL that a request names or configured by the operator under a label."""

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from types import ModuleType
from typing import Any, ClassVar, TypeVar

from engine import orjson
from responses_app.protocol.errors import JsonObject, invalid_request
from responses_app.protocol.items.offers import Offer
from responses_app.tools.base import BaseTool, ToolCall, ToolFailed, ToolList, ToolResult, ToolUse
from responses_app.tools.mcp.answers import (
    CONNECTION_CLOSED,
    arguments_of,
    http_failure,
    kept_tools,
    offer_of,
    protocol_failure,
    result_of,
)
from responses_app.tools.mcp.connections import Connections, Listing, McpConnection, cause_of
from responses_app.tools.network import Network, NetworkError
from responses_app.tools.settings import McpSettings, ServerAccess, allowed_with

logger = logging.getLogger("respsite.tools")

MAX_PAGES = 32  # of a server's list of tools
MAX_LISTED = 1024  # tools on all pages
LIST_SECONDS = 60.0  # how long a list is good whose server does not say
MAX_LIST_SECONDS = 3600.0  # however long a server says that its list is good
MAX_CALL_SECONDS = 600.0  # of one call, whatever progress it reports; more where it may be silent for longer
GONE = 404  # the HTTP status of a session that is not known
# Headers that the connection or the protocol sets itself.
FORBIDDEN_HEADERS = frozenset(
    "host connection content-length transfer-encoding te trailer upgrade accept accept-encoding content-type "
    "mcp-session-id mcp-protocol-version".split()
)
# Letters, digits and the signs that HTTP allows (RFC 9110, `token`).
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,256}")
# What HTTP allows in a value: no line end, which would begin a header of its own.
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]{0,8192}")


T = TypeVar("T")


class _SessionLost(Exception):
    """A server has forgotten who we are, and so has not carried the request out."""


class McpTool(BaseTool):
    """All MCP servers: the operator's and those of extensions, by label, and those that requests name by their URL.

    `inside` has what makes an extension's server for a project, by label.
    """

    kinds: ClassVar = ("mcp",)

    def __init__(self, settings: McpSettings, inside: Mapping[str, Callable[[str], Any]] | None = None) -> None:
        servers, allowed = settings.mcp_servers, settings.mcp_allowed_hosts
        # Where requests may go, and where the operator's servers are.
        self._network = Network("MCP_ALLOWED_HOSTS", allowed)
        self._own_network = Network("MCP_ALLOWED_HOSTS", allowed_with(servers, allowed))
        own = {
            label: ServerAccess(transport="inside", command=(label,), make=make)
            for label, make in (inside or {}).items()
        }
        self._servers = {**own, **servers}
        self._by_url = settings.mcp_server_urls
        self.max_seconds = max(settings.server_tool_seconds, MAX_CALL_SECONDS)
        self.idle_seconds = settings.server_tool_seconds
        self._connections = Connections()
        self._library: ModuleType | None = None  # imported at the first call: that takes a second
        self._openers: Mapping[bool, Any] = {}  # for requests' servers, and for the operator's
        self._loading = asyncio.Lock()  # so that calls at once load it once

    async def aclose(self) -> None:
        await self._connections.aclose()
        for opener in self._openers.values():
            await opener.aclose()
        self._network.close()
        self._own_network.close()

    async def offer(self, use: ToolUse) -> Offer | None:
        self._check(use)
        label, allowed = use.declared["server_label"], use.declared.get("allowed_tools")
        # From the newest: an earlier list may be out of date.
        for item in reversed(use.items):
            if item.get("type") != "mcp_list_tools" or item.get("server_label") != label:
                continue
            tools = item.get("tools")
            listed = [tool for tool in tools if isinstance(tool, dict)] if isinstance(tools, list) else []
            names = {name for tool in listed if isinstance(name := tool.get("name"), str)}  # clients may write it
            # A failed listing is empty. A list that lacks a tool which is allowed now was made under another request.
            if listed and not (isinstance(allowed, list) and not names.issuperset(allowed)):
                return offer_of(use.declared, listed)
        return None

    def offer_listed(self, use: ToolUse, tools: Sequence[JsonObject]) -> Offer:
        return offer_of(use.declared, tools)

    async def list_tools(self, use: ToolUse) -> ToolList:
        async def listed(connection: McpConnection, client: Any) -> Listing:
            listing = connection.listing
            if listing is None or listing.until < time.monotonic():
                listing = connection.listing = await self._listing(client)
            return listing

        listing = await self._do(use, listed)
        tools, problems = kept_tools(use.declared, listing.tools)
        if listing.is_cut:
            problems.append(f"It has more tools: {MAX_LISTED} on {MAX_PAGES} pages are asked for.")
        if not problems:
            return ToolList(tools)
        problem = f"Not all tools of '{use.declared['server_label']}' are listed. {' '.join(problems)}"
        logger.info("response %s: %s", use.response_id, problem)
        return ToolList(tools, problem)

    async def call(self, call: ToolCall) -> ToolResult:
        arguments = arguments_of(call.arguments)

        async def made(_: McpConnection, client: Any) -> ToolResult:
            # Before the library works on it, and once more right before it is sent.
            await call.confirm()
            token = self._module.confirming.set([call.confirm])
            try:
                content, structured, failed = await self._module.call_tool(
                    client, call.tool, arguments, report=call.report
                )
            finally:
                self._module.confirming.reset(token)
            return result_of(content, structured, failed=failed)

        return await self._do(call.use, made)

    # How a server is reached.

    def _check(self, use: ToolUse) -> None:
        """Raise `ApiError` for a server that a request may not use."""
        label = str(use.declared["server_label"])
        if use.declared.get("server_url") is None:
            if label not in self._servers:
                raise invalid_request(
                    f"The MCP server '{label}' is not configured here (MCP_SERVERS). Give its 'server_url'.",
                    param=f"{use.at}.server_label",
                )
            secret = next((name for name in ("headers", "authorization") if use.private.get(name)), None)
            if secret is not None:
                raise invalid_request(
                    f"The access to the MCP server '{label}' is configured here. Leave 'headers' and 'authorization' "
                    "out, or give its 'server_url'.",
                    param=f"{use.at}.{secret}",
                )
        elif not self._by_url:
            known = ", ".join(sorted(self._servers)) or "none"
            raise invalid_request(
                f"Requests may name no MCP server by URL here (MCP_SERVER_URLS=off). Labels that can be used: {known}.",
                param=f"{use.at}.server_url",
            )
        else:
            _check_headers(use)

    def _access(self, use: ToolUse) -> ServerAccess:
        server_url = use.declared.get("server_url")
        if server_url is None:
            access = self._servers.get(str(use.declared["server_label"]))
            if access is None:
                raise protocol_failure("The server is not configured here any more.")
            return access
        # The declared one is shown to clients, and may lack credentials that stand in it.
        url = str(use.private.get("server_url") or server_url)
        headers = dict(use.private.get("headers") or {})  # type: ignore[call-overload]
        if use.private.get("authorization"):
            headers["Authorization"] = f"Bearer {use.private['authorization']}"
        return ServerAccess(transport="http", url=url, headers=headers)

    async def _do(self, use: ToolUse, work: Callable[[McpConnection, Any], Awaitable[T]]) -> T:
        """Do something with the kept client of a server. Raises `ToolFailed` for whatever goes wrong there."""
        if self._connections.has_closed:
            raise protocol_failure("This server is being stopped.")
        access = self._access(use)
        async with self._loading:
            if self._library is None:
                library = await asyncio.to_thread(_import_library)
                self._openers = {False: library.Opener(self._network), True: library.Opener(self._own_network)}
                self._library = library
        try:
            return await self._try(access, use, work)
        # The session was lost before anything was done, so trying again does nothing twice.
        except _SessionLost:
            return await self._try(access, use, work)

    async def _try(self, access: ServerAccess, use: ToolUse, work: Callable[[McpConnection, Any], Awaitable[T]]) -> T:
        failures: list[int] = []
        token = self._module.statuses.set(failures)
        try:
            own = use.declared.get("server_url") is None
            opening = partial(self._openers[own].open, access, use.project)
            async with self._connections.use(_key(access, use, own), opening) as connection:
                is_kept = connection.is_connected
                try:
                    return await work(connection, await connection.client())
                except ToolFailed:
                    raise
                except Exception as error:
                    if failures and failures[-1] == GONE:  # a server of the old kind has forgotten the session
                        connection.close()
                        # A fresh one that gets a 404 has no session to lose: the address is wrong.
                        if is_kept:
                            raise _SessionLost from error
                    if getattr(error, "code", None) == CONNECTION_CLOSED:
                        connection.close()
                    raise await self._failure(error, connection, failures, access) from error
        finally:
            self._module.statuses.reset(token)

    async def _failure(
        self, error: Exception, connection: McpConnection, failures: Sequence[int], access: ServerAccess
    ) -> ToolFailed:
        """Return an error as the model and the client hear of it; the log has it as it is."""
        # The connection's own end says more than the call's error.
        ended_by = await connection.ended_by()
        cause = cause_of(ended_by if isinstance(ended_by, Exception) else error)
        logger.info("the MCP server at %s failed: %s: %s", access.host, type(cause).__name__, cause)
        if isinstance(cause, NetworkError):
            return protocol_failure(str(cause))
        if failures:
            return http_failure(failures[-1])
        if isinstance(cause, self._module.MCPError):
            return protocol_failure(cause.message, code=cause.code)
        if isinstance(cause, FileNotFoundError | PermissionError):
            return protocol_failure("The server could not be started.")
        return protocol_failure(self._module.trouble_of(cause))

    async def _listing(self, client: Any) -> Listing:
        tools: list[JsonObject] = []
        cursor, seconds = None, LIST_SECONDS
        for page in range(MAX_PAGES):
            some, cursor, ttl_ms = await self._module.page_of_tools(client, cursor)
            tools += some
            seconds = min(ttl_ms / 1000, MAX_LIST_SECONDS) if ttl_ms and not page else seconds
            if cursor is None or len(tools) >= MAX_LISTED:
                break
        is_cut = cursor is not None or len(tools) > MAX_LISTED
        return Listing(tools[:MAX_LISTED], time.monotonic() + seconds, is_cut)

    # The library.

    @property
    def _module(self) -> Any:
        assert self._library is not None, "it was loaded"
        return self._library


def _import_library() -> Any:
    from responses_app.tools.mcp import client

    return client


def _key(access: ServerAccess, use: ToolUse, own: bool) -> bytes:
    """Return the key by which connections are shared: a server, the credentials that it gets, and the project.

    A server of the old kind may remember what was said before: no project is to hear of another's. A program that was
    started here is the operator's, and there is one.
    """
    whose = "" if access.transport == "stdio" else use.project
    parts = [access.transport, access.url, sorted(access.headers.items()), access.command, whose, own]
    return blake2b(orjson.dumps(parts), digest_size=16).digest()


def _check_headers(use: ToolUse) -> None:
    headers, at = use.private.get("headers"), f"{use.at}.headers"
    for name, value in headers.items() if isinstance(headers, dict) else ():
        if name.lower() in FORBIDDEN_HEADERS or not _HEADER_NAME.fullmatch(name):
            raise invalid_request(f"An MCP server cannot be sent the header {name[:80]!r}.", param=at)
        if not _HEADER_VALUE.fullmatch(value):
            raise invalid_request(f"The value of the header {name[:80]!r} is not one of HTTP's.", param=at)
    token = use.private.get("authorization")
    if isinstance(token, str) and not _HEADER_VALUE.fullmatch(token):
        raise invalid_request("The 'authorization' of an MCP server is not a token.", param=f"{use.at}.authorization")
