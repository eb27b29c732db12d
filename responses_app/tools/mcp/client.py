"""Clients of MCP servers, opened with the library `mcp`: importing it takes a second, so this is imported late.

Both eras of the protocol are spoken: a server is asked what it knows (`server/discover`), and one that does not answer
that is greeted in the old way. One that refuses POST there is tried as a server of the oldest transport (HTTP with SSE:
what is sent goes to another path, which an event of a stream names). The network's rules hold for every connection.
"""

import asyncio
import logging
import sys
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

from engine.errors import reason_of
from responses_app.protocol.errors import JsonObject
from responses_app.tools.httpx_network import CheckedTransport
from responses_app.tools.mcp.connections import McpConnection, cause_of
from responses_app.tools.network import Network
from responses_app.tools.settings import ServerAccess

logger = logging.getLogger("respsite.tools")

__all__ = ["MCPError", "Opener", "statuses", "trouble_of"]

MAX_BODY_BYTES = 8 * 1024 * 1024  # of one answer
MAX_EVENT_BYTES = 8 * 1024 * 1024  # of one event of a stream
NOT_ALLOWED = 405  # HTTP status
OLD_STATUSES = (400, 404, NOT_ALLOWED)  # with which, by MCP's specification, a server of the oldest transport refuses
OLD_SECONDS = 15.0  # for one to say where it is sent to, and to be greeted
POST_SECONDS = 30.0  # for one to take what is sent to it; what it has to say to that comes in its stream
TIMEOUT = httpx2.Timeout(30.0, read=None)  # a call has its own time; this one is for connecting and sending
INFO = types.Implementation(name="respsite", version="1")


statuses: ContextVar[list[int] | None] = ContextVar("statuses", default=None)  # HTTP errors that answered a call
# What is awaited before a call is sent over HTTP, which takes the library some milliseconds: taken out by its request.
confirming: ContextVar[list[Callable[[], Awaitable[None]]]] = ContextVar("confirming")


class _SharedTransport(httpx2.AsyncBaseTransport):
    """A transport that many clients have; it outlives them. `listens`: GET is more than an offer to listen.

    A client of the old era offers its server a stream for whatever that may want to say at any time, and would hold a
    connection for as long as it is kept. There is nothing that we want to hear there: a server may refuse it (405), so
    it is refused here. A stream that broke, and is asked for again, is another thing.
    """

    def __init__(self, transport: httpx2.AsyncBaseTransport, *, listens: bool) -> None:
        self._transport = transport
        self._listens = listens

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        # A stream that broke is asked for again with the id of its last event.
        if request.method == "GET" and not self._listens and "last-event-id" not in request.headers:
            return httpx2.Response(NOT_ALLOWED, request=request)
        return await self._transport.handle_async_request(request)

    async def aclose(self) -> None:
        """Stay open: the transport is another's."""


class _OldestClient(httpx2.AsyncClient):
    """Reaches an old-SSE server; `ended` is called when it does not take a message.

    The library would send it nothing more after that, and have the call wait for an answer.
    """

    ended: Callable[[], None]

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """Send a request; one that is posted is answered whole, and in time."""
        if request.method != "POST":
            return await super().send(request, **options)
        try:
            async with asyncio.timeout(POST_SECONDS):
                response = await super().send(request, **options)
                await response.aread()
        except Exception:
            self.ended()
            raise
        if response.is_error:
            self.ended()
        return response


class _WatchedStream:
    """A transport's stream of messages; `ended` is called at its end, which else nobody hears of between calls."""

    def __init__(self, stream: Any, ended: Callable[[], None]) -> None:
        self._stream = stream
        self._ended = ended

    @property
    def last_context(self) -> object:
        """The context in which the last message was sent."""
        return getattr(self._stream, "last_context", None)

    async def receive(self) -> Any:
        """Return the next message."""
        return await self._stream.receive()

    async def aclose(self) -> None:
        """Close it."""
        await self._stream.aclose()

    def __aiter__(self) -> "_WatchedStream":
        return self

    async def __anext__(self) -> Any:
        try:
            return await self._stream.__anext__()
        # The end alone: an error is told by the library itself.
        except StopAsyncIteration:
            self._ended()
            raise

    async def __aenter__(self) -> "_WatchedStream":
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()


@asynccontextmanager
async def _telling(transport: Any, ended: Callable[[], None]) -> AsyncIterator[tuple[Any, Any]]:
    """Enter a transport; `ended` is called when its server hangs up."""
    async with transport as (reads, writes):
        yield _WatchedStream(reads, ended), writes


class Opener:
    """Opens clients; all that may go to the same hosts share the connections of one transport."""

    def __init__(self, network: Network) -> None:
        self._transport = CheckedTransport(network, max_body_bytes=MAX_BODY_BYTES)

    async def aclose(self) -> None:
        """Close all connections."""
        await self._transport.aclose()

    @asynccontextmanager
    async def open(self, access: ServerAccess, project: str, connection: McpConnection) -> AsyncIterator[Client]:
        """Connect. The connection hears when its server's tools have changed, and when the server hangs up."""

        async def on_message(message: Any) -> None:
            if isinstance(message, types.ToolListChangedNotification):
                connection.listing = None

        async with AsyncExitStack() as stack:

            async def entered(transport: Any) -> Client:
                client = Client(transport, client_info=INFO, cache=None, message_handler=on_message, mode="auto")
                return await stack.enter_async_context(client)

            if access.make is not None:
                client = await entered(access.make(project))
            else:
                client = await self._connected(access, entered, connection.hung_up)
            # What a tool gives is not checked against its own schema: that is the server's affair, and a hostile schema
            # would hold up the event loop.
            client.session.validate_tool_result = _unchecked  # type: ignore[method-assign]
            yield client

    async def _connected(
        self, access: ServerAccess, entered: Callable[[Any], Awaitable[Client]], ended: Callable[[], None]
    ) -> Client:
        """Return a client that is connected; the first answer of its server decides by which transport."""
        if access.transport == "stdio":
            command, *arguments = access.command
            program = StdioServerParameters(command=command, args=arguments, env=dict(access.env))
            return await entered(_telling(stdio_client(program, errlog=sys.stderr), ended))
        if access.transport == "sse":
            async with asyncio.timeout(OLD_SECONDS):
                return await entered(self._oldest(access, ended))
        failures = statuses.get()
        answered: list[int] = [] if failures is None else failures
        try:
            http = httpx2.AsyncClient(**self._options(dict(access.headers), listens=False))
            return await entered(
                streamable_http_client(access.url, http_client=http, max_sse_event_size=MAX_EVENT_BYTES)
            )
        except Exception as refused:
            # How many there were before the second attempt, whose own are taken away if it fails, too.
            known = len(answered)
            if not known or answered[-1] not in OLD_STATUSES:
                raise
            try:
                async with asyncio.timeout(OLD_SECONDS):
                    client = await entered(self._oldest(access, ended))
            except Exception as problem:  # noqa: BLE001 - whatever it is, it is no such server
                logger.debug("no MCP server of the oldest kind is at %s: %s", access.host, cause_of(problem))
                del answered[known:]
                # The first error says more: the second transport was only a guess.
                raise refused from None
            answered.clear()  # nothing has failed
            return client

    def _oldest(self, access: ServerAccess, ended: Callable[[], None]) -> Any:
        def client(
            headers: dict[str, str] | None = None, timeout: object = None, auth: object = None
        ) -> httpx2.AsyncClient:
            made = _OldestClient(**self._options(headers, listens=True))
            made.ended = ended
            return made

        return _telling(sse_client(access.url, headers=dict(access.headers), httpx_client_factory=client), ended)

    def _options(self, headers: dict[str, str] | None, *, listens: bool) -> dict[str, Any]:
        """Return the options of every HTTP client."""
        return {
            "transport": _SharedTransport(self._transport, listens=listens),
            "headers": headers,
            "timeout": TIMEOUT,
            # Proxies of the environment would connect where the rules do not allow it.
            "trust_env": False,
            "event_hooks": {"request": [_confirm], "response": [_note_status]},
        }


async def _confirm(request: httpx2.Request) -> None:
    waiting = confirming.get([])
    if request.method == "POST" and waiting:
        try:
            # Taken out: it is awaited once, however many requests a call makes.
            await waiting.pop()()
        except Exception as problem:
            # As an error of the connection: the library passes that on to the call.
            raise httpx2.ConnectError(str(problem), request=request) from problem


async def _note_status(response: httpx2.Response) -> None:
    failures = statuses.get()
    # We refuse that ourselves: see `_SharedTransport`.
    refused_here = response.request.method == "GET" and response.status_code == NOT_ALLOWED
    if failures is not None and response.status_code >= 400 and not refused_here:
        failures.append(response.status_code)


def trouble_of(cause: BaseException) -> str:
    """Return a sentence on a server that cannot be used, by the cause."""
    match cause:
        case httpx2.InvalidURL() | httpx2.UnsupportedProtocol():
            return f"The MCP server's URL is not one: {reason_of(cause)}."
        case httpx2.ConnectError():
            # The system's own error is at the end of the chain: above it, all attempts have failed.
            innermost = cause
            while innermost.__cause__ or innermost.__context__:
                innermost = innermost.__cause__ or innermost.__context__  # type: ignore[assignment]
            return f"The MCP server could not be reached ({reason_of(innermost)})."
        case httpx2.TimeoutException() | TimeoutError():
            return "The MCP server did not answer in time."
        case ValueError() | TypeError() | LookupError():  # what it said could not be read
            return "The MCP server's answer is not MCP."
    return "The connection to the MCP server broke."


async def _unchecked(name: str, result: types.CallToolResult) -> None:
    """Take the result of a tool as it is."""


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
    """Call a tool; return its content blocks, its JSON, and whether it says that it failed."""

    async def progressed(progress: float, total: float | None, message: str | None) -> None:
        report({"progress": progress, "total": total})

    result = await client.call_tool(name, arguments, progress_callback=progressed)
    blocks = [block.model_dump(mode="json", by_alias=True, exclude_none=True) for block in result.content]
    return blocks, result.structured_content, bool(result.is_error)
