"""Clients of MCP servers, opened with the library `mcp`: importing it takes a second, so this is imported late.

Both eras of the protocol are spoken: a server is asked what it knows (`server/discover`), and one that does not answer
that is greeted in the old way. One that refuses POST there is tried as a server of the oldest transport (HTTP with SSE:
what is sent goes to another path, which an event of a stream names). The network's rules hold for every connection.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from contextvars import ContextVar
from typing import Any

import httpx2
import mcp_types as types
from mcp import Client, StdioServerParameters
from mcp.client.sse import sse_client
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

from responses_app.protocol.errors import JsonObject
from responses_app.tools.httpx_network import CheckedTransport
from responses_app.tools.mcp.connections import cause_of
from responses_app.tools.mcp.servers import ServerAccess
from responses_app.tools.network import Network

__all__ = ["MCPError", "Opener", "statuses"]

MAX_BODY_BYTES = 8 * 1024 * 1024  # of one answer
MAX_EVENT_BYTES = 8 * 1024 * 1024  # of one event of a stream
NOT_ALLOWED = 405  # HTTP status
OLD_STATUSES = (400, 404, NOT_ALLOWED)  # with which, by MCP's specification, a server of the oldest transport refuses
OLD_SECONDS = 15.0  # for one to say where it is sent to, and to be greeted
TIMEOUT = httpx2.Timeout(30.0, read=None)  # a call has its own time; this one is for connecting and sending
INFO = types.Implementation(name="respsite", version="1")

logger = logging.getLogger("respsite.tools")

statuses: ContextVar[list[int] | None] = ContextVar("statuses", default=None)  # HTTP errors that answered a call
# What is awaited before a call is sent over HTTP, which takes the library some milliseconds: taken out by its request.
confirming: ContextVar[list[Callable[[], Awaitable[None]]]] = ContextVar("confirming")


class _Shared(httpx2.AsyncBaseTransport):
    """A transport that many clients have; it outlives them. `listens`: GET is more than an offer to listen.

    A client of the old era offers its server a stream for whatever that may want to say at any time, and would hold a
    connection for as long as it is kept. There is nothing that we want to hear there: a server may refuse it (405), so
    it is refused here. A stream that broke, and is asked for again, is another thing.
    """

    def __init__(self, transport: httpx2.AsyncBaseTransport, *, listens: bool) -> None:
        self._transport = transport
        self._listens = listens

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if request.method == "GET" and not self._listens and "last-event-id" not in request.headers:
            return httpx2.Response(NOT_ALLOWED, request=request)
        return await self._transport.handle_async_request(request)

    async def aclose(self) -> None:
        """Stay open: the transport is another's."""


class Opener:
    """Opens clients; all that may go to the same hosts share the connections of one transport."""

    def __init__(self, network: Network) -> None:
        self._transport = CheckedTransport(network, max_body_bytes=MAX_BODY_BYTES)

    async def aclose(self) -> None:
        """Close all connections."""
        await self._transport.aclose()

    @asynccontextmanager
    async def open(self, access: ServerAccess, *, forget: Callable[[], None]) -> AsyncIterator[Client]:
        """Connect; `forget` is called when the server says that its tools have changed."""

        async def heard(message: Any) -> None:
            if isinstance(message, types.ToolListChangedNotification):
                forget()

        async with AsyncExitStack() as stack:

            async def entered(transport: Any) -> Client:
                client = Client(transport, client_info=INFO, cache=None, message_handler=heard, mode="auto")
                return await stack.enter_async_context(client)

            client = await self._connected(access, entered)
            # What a tool gives is not checked against its own schema: that is the server's affair, and a hostile schema
            # would hold up the event loop.
            client.session.validate_tool_result = _unchecked  # type: ignore[method-assign]
            yield client

    async def _connected(self, access: ServerAccess, entered: Callable[[Any], Awaitable[Client]]) -> Client:
        """Return a client that is connected; what its server answers at first decides by which transport."""
        if access.transport == "stdio":
            command, *arguments = access.command
            return await entered(
                stdio_client(StdioServerParameters(command=command, args=arguments, env=dict(access.env)))
            )
        if access.transport == "sse":
            return await entered(self._oldest(access))
        noted = statuses.get()
        answered: list[int] = [] if noted is None else noted
        try:
            return await entered(self._streamable(access))
        except Exception as refused:
            known = len(answered)
            if not known or answered[-1] not in OLD_STATUSES:
                raise
            try:
                async with asyncio.timeout(OLD_SECONDS):
                    client = await entered(self._oldest(access))
            except Exception as problem:  # noqa: BLE001 - whatever it is, it is no such server
                logger.debug("no MCP server of the oldest kind is at %s: %s", access.host, cause_of(problem))
                del answered[known:]
                raise refused from None
            answered.clear()  # nothing has failed
            return client

    def _oldest(self, access: ServerAccess) -> Any:
        return sse_client(access.url, headers=dict(access.headers), httpx_client_factory=self._client)

    def _streamable(self, access: ServerAccess) -> Any:
        return streamable_http_client(
            access.url,
            http_client=self._client(dict(access.headers), listens=False),
            max_sse_event_size=MAX_EVENT_BYTES,
        )

    def _client(
        self,
        headers: dict[str, str] | None = None,
        timeout: httpx2.Timeout | None = None,
        auth: httpx2.Auth | None = None,
        *,
        listens: bool = True,
    ) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(
            transport=_Shared(self._transport, listens=listens),
            headers=headers,
            timeout=TIMEOUT,
            auth=auth,
            trust_env=False,
            event_hooks={"request": [_confirm], "response": [_note_status]},
        )


async def _confirm(request: httpx2.Request) -> None:
    waiting = confirming.get([])
    if request.method == "POST" and waiting:
        try:
            await waiting.pop()()
        except Exception as problem:
            raise httpx2.ConnectError(str(problem), request=request) from problem


async def _note_status(response: httpx2.Response) -> None:
    noted = statuses.get()
    refused_here = response.request.method == "GET" and response.status_code == NOT_ALLOWED
    if noted is not None and response.status_code >= 400 and not refused_here:
        noted.append(response.status_code)


async def _unchecked(name: str, result: types.CallToolResult) -> None:
    """Take what a tool gave as it is."""


async def page_of_tools(client: Client, cursor: str | None) -> tuple[list[JsonObject], str | None, int]:
    """Return a page of a server's tools as items show them, where the next one begins, and its time to live in ms."""
    page = await client.list_tools(cursor=cursor)
    tools: list[JsonObject] = [
        {
            "name": tool.name,
            "description": tool.description or "",
            "input_schema": tool.input_schema,
            "annotations": tool.annotations.model_dump(by_alias=True, exclude_none=True) if tool.annotations else None,
        }
        for tool in page.tools
    ]
    return tools, page.next_cursor, page.ttl_ms


async def call_tool(
    client: Client, name: str, arguments: dict[str, Any], *, report: Callable[[JsonObject], None]
) -> tuple[list[JsonObject], object, bool]:
    """Call a tool; return its content blocks, what it gave as JSON, and whether it says that it failed."""

    async def progressed(progress: float, total: float | None, message: str | None) -> None:
        report({"progress": progress, "total": total})

    result = await client.call_tool(name, arguments, progress_callback=progressed)
    blocks = [block.model_dump(mode="json", by_alias=True, exclude_none=True) for block in result.content]
    return blocks, result.structured_content, bool(result.is_error)
