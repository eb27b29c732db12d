"""Clients that hold connections, drop them, or never read: others are served as before, and nothing of it stays.

Only this finds a resource that nginx or a worker holds for good for a peer that no longer reads or writes.

They come to nginx, as from outside, and to the workers' own port, where nothing is between.
"""

import asyncio
import re
import socket
import struct
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

import httpx

from tests.kit.clients import RAW_UPGRADE, raw_connection, raw_request
from tests.kit.waiting import eventually
from tests.system.cluster.cluster import Cluster
from tests.system.cluster.load import under_load

NEVER_READ = 500
A_SECOND, FLOOD_SECONDS = 1000, 30.0
HALF_OPEN = 300
LET_GO_SECONDS = 120.0  # for the timeouts of nginx and of the workers, one after the other
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing resets
HALF_A_HEAD = b"POST /v1/responses HTTP/1.1\r\nHost: localhost\r\nContent-Ty"
BEGINNINGS = (HALF_A_HEAD, RAW_UPGRADE, b"")


def ports(cluster: Cluster) -> list[int]:
    """Return where clients can come."""
    return [cluster.server.port, cluster.server.own_port]


async def metric(cluster: Cluster, name: str) -> float:
    """Return a number of the whole server."""
    async with httpx.AsyncClient(verify=False, timeout=30) as http:
        text = (await http.get(f"{cluster.server.url}/metrics")).text
    values = re.findall(rf"^respsite_{name}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE)
    assert values, f"no such metric: {name}"
    return sum(map(float, values))


@contextmanager
def held(sockets: list[socket.socket]) -> Iterator[list[socket.socket]]:
    """Close sockets in the end, with a reset."""
    try:
        yield sockets
    finally:
        for each in sockets:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            each.close()


@asynccontextmanager
async def nothing_stays(cluster: Cluster) -> AsyncIterator[None]:
    """Everything that was opened in between is gone soon after it."""
    yield
    for name in ("websocket_connections", "responses_in_flight"):

        async def is_none(name: str = name) -> bool:
            return await metric(cluster, name) == 0

        await eventually(is_none, timeout=LET_GO_SECONDS)


async def test_clients_that_never_read(cluster: Cluster) -> None:
    async with nothing_stays(cluster):
        with held([]) as sockets:
            async with under_load(cluster.server, f"{NEVER_READ} clients that never read") as tally:
                before = sum(cluster.sizes().values())
                asked = raw_request({"input": "count to 40", "stream": True, "store": False})
                for number in range(NEVER_READ):
                    sockets.append(await asyncio.to_thread(raw_connection, ports(cluster)[number % 2]))
                    sockets[-1].sendall(asked)
                await asyncio.sleep(20)
                grown = (sum(cluster.sizes().values()) - before) / 1024 / 1024
                tally.noted.append(f"memory of the workers and engines grew by {grown:.0f} MiB")
    assert grown < 400


async def test_connections_are_opened_and_dropped(cluster: Cluster) -> None:
    dropped = 0

    async def flood() -> None:
        nonlocal dropped
        ends_at = time.monotonic() + FLOOD_SECONDS
        while (began := time.monotonic()) < ends_at:
            for number in range(A_SECOND // 20):
                with suppress(OSError), socket.socket() as one:
                    one.setblocking(False)
                    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                    with suppress(BlockingIOError):
                        one.connect(("127.0.0.1", ports(cluster)[number % 2]))
                    with suppress(OSError):
                        one.send((b"", HALF_A_HEAD, RAW_UPGRADE, b"\x16\x03\x01")[number % 4])
                    dropped += 1
            await asyncio.sleep(max(0.0, began + 0.05 - time.monotonic()))

    async with nothing_stays(cluster), under_load(cluster.server, "connections opened and dropped") as tally:
        await flood()
        tally.noted.append(f"{dropped / FLOOD_SECONDS:.0f} connections a second")
    assert dropped > 100 * FLOOD_SECONDS


def is_let_go(connection: socket.socket) -> bool:
    """Whether the server has closed a connection, whose peer reads and says nothing."""
    connection.setblocking(False)
    try:
        while said := connection.recv(64 * 1024):
            del said
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


async def test_half_open_sockets(cluster: Cluster) -> None:
    """Peers that say nothing any more: at once, in the middle of a head, or as a WebSocket that answers no ping."""
    async with nothing_stays(cluster):
        with held([]) as sockets:
            async with under_load(cluster.server, f"{HALF_OPEN} half-open sockets") as tally:
                for number in range(HALF_OPEN):
                    sockets.append(await asyncio.to_thread(raw_connection, ports(cluster)[number % 2]))
                    sockets[-1].sendall(BEGINNINGS[number // 2 % len(BEGINNINGS)])
                began = time.monotonic()
                await eventually(lambda: all(map(is_let_go, sockets)), timeout=LET_GO_SECONDS)
                tally.noted.append(f"all were let go after {time.monotonic() - began:.0f} s")
