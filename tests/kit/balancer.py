"""A tiny load balancer: each connection goes to the next worker that lives."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from tests.kit.server import Server

CHUNK_BYTES = 64 * 1024


class Balancer:
    """Use it as `async with Balancer(servers) as balancer`; `answered` counts the bytes that the workers sent."""

    def __init__(self, servers: Sequence[Server]) -> None:
        self.answered = 0
        self._servers = list(servers)
        self._carrying: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> "Balancer":
        self._listener = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        self.port = int(self._listener.sockets[0].getsockname()[1])
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        """Cut what is still open."""
        self._listener.close()
        for task in self._carrying:
            task.cancel()
        await asyncio.gather(*self._carrying, return_exceptions=True)

    @property
    def base_url(self) -> str:
        """What a client takes as its base URL."""
        return f"http://127.0.0.1:{self.port}/v1"

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if this := asyncio.current_task():
            self._carrying.add(this)
            this.add_done_callback(self._carrying.discard)
        writers = [writer]
        # `__aexit__` cuts what is open, and the callback of `asyncio.start_server` would complain of a cancelled task.
        with suppress(asyncio.CancelledError):
            await self._connect(reader, writers)

    async def _connect(self, reader: asyncio.StreamReader, writers: list[asyncio.StreamWriter]) -> None:
        try:
            server_reader, server_writer = await self._next_worker()
            writers.append(server_writer)
            ways = [self._pump(reader, server_writer), self._pump(server_reader, writers[0], counted=True)]
            await asyncio.gather(*ways)
        finally:
            for each in writers:
                each.close()

    async def _next_worker(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to the worker whose turn it is, or to one behind it. Raises `OSError` where none lives."""
        for _ in self._servers[1:]:
            self._servers.append(self._servers.pop(0))
            with suppress(OSError):
                return await asyncio.open_connection("127.0.0.1", self._servers[-1].port)
        return await asyncio.open_connection("127.0.0.1", self._servers[0].port)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, counted: bool = False) -> None:
        with suppress(ConnectionError):
            while data := await source.read(CHUNK_BYTES):
                self.answered += len(data) if counted else 0
                sink.write(data)
                await sink.drain()
        sink.close()
