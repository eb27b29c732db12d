"""Rows about workers that do nothing, and about memory: readers that never read, what is left of large requests."""

import asyncio
import contextlib
import http.client
import json
import resource
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass

from bench.client import WebSocket, create, text_frame
from bench.report import Result
from bench.servers import ENDLESS, LANES, Bench, BenchServer
from tests.kit.redis_server import RedisServer

IDLE = 1000
SECONDS = 60
UNUSED_SECONDS = 20
DROPPED = ("STREAM_MAX_LAG_BYTES", "STREAM_STALL_SECONDS")
KIB, MIB = 1024, 1024 * 1024
LARGE = (4, 6, 8, 10, 12, 16, 20, 28)  # MiB of requests that come at once
LARGE_ROUNDS = 3
STREAMS = 100


def idle(bench: Bench) -> Iterator[Result]:
    """What a worker takes that nobody uses; memory of connections that do nothing, and how fast they open."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * IDLE + 500
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise SystemExit(f"bench: this machine allows {hard} open files, the row `idle` needs {wanted} (ulimit -Hn).")
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    with bench.fresh_server(name="idle") as server:
        yield from asyncio.run(_idle(bench, server))
    with bench.migrated_server("sqlite", name="unused") as server:
        yield _unused(bench, server, "SQLite")
    with bench.migrated_server("postgresql", name="unused") as server, RedisServer() as redis:
        server.environ["REDIS_URL"] = redis.url
        yield _unused(bench, server, "PostgreSQL and Redis")


def _unused(bench: Bench, server: BenchServer, kind: str) -> Result:
    """Return the CPU of a worker that nobody uses, once it has started."""
    with server:
        time.sleep(UNUSED_SECONDS / 4)  # what a start does once
        bench.report.step(f"nobody uses it for {UNUSED_SECONDS} s, {kind}")
        cpu, began = server.cpu_seconds(), time.perf_counter()
        time.sleep(UNUSED_SECONDS)
        cpu = (server.cpu_seconds() - cpu) / (time.perf_counter() - began)
        return Result(
            what=f"CPU a second of a worker that nobody uses, {kind}",
            measured=cpu * 1e3,
            unit="ms",
            target=4.0,
            details={"memory MiB": server.memory_bytes() / MIB},
        )


async def _idle(bench: Bench, server: BenchServer) -> list[Result]:
    warm = [await WebSocket.connect(server.port) for _ in range(10)]  # what the first connection loads is not counted
    await asyncio.sleep(0.5)
    before, cpu, began = server.memory_bytes(), server.cpu_seconds(), time.perf_counter()
    sockets = [await WebSocket.connect(server.port) for _ in range(IDLE)]
    rate, cpu = IDLE / (time.perf_counter() - began), (server.cpu_seconds() - cpu) / IDLE
    bench.report.step(f"{IDLE} connections are open")
    await asyncio.sleep(1.0)
    grown = (server.memory_bytes() - before) / IDLE / KIB
    still = server.cpu_seconds()
    await asyncio.sleep(3.0)
    busy = (server.cpu_seconds() - still) / 3.0 * 100
    for opened in (*warm, *sockets):
        opened.close()
    return [
        Result(
            what=f"memory per idle connection at {IDLE:,}",
            measured=grown,
            unit="KiB",
            target=32.0,
            details={"base MiB": before / MIB, "idle CPU %": busy},
        ),
        Result(
            what="CPU to open a connection, one after the other (information)",
            measured=cpu * 1e6,
            unit="µs",
            details={"connections/s": rate},
        ),
    ]


@dataclass(slots=True)
class Watched:
    """What became of a server with a reader that never reads."""

    start: int
    peak: int = 0
    end: int = 0
    dropped_after: float | None = None
    logged: str = ""


def stalled(bench: Bench) -> Iterator[Result]:
    """Memory a reader costs that never reads while the engine runs at full speed, one lane, many lanes, and SSE."""
    kinds = {"websocket": [create()], "lanes": [create(stream_id=f"lane-{n}") for n in range(LANES)], "sse": []}
    servers = {kind: bench.fresh_server(ENDLESS, name=f"stalled-{kind}") for kind in kinds}
    with contextlib.ExitStack() as stack:
        for server in servers.values():
            stack.enter_context(server)
        watched = asyncio.run(_watch_all(bench, servers, kinds))
    for kind, seen in watched.items():
        yield _stalled_row(kind, seen)


def _stalled_row(kind: str, seen: Watched) -> Result:
    what = {
        "websocket": f"growth with a reader that never reads, engine at full speed, {SECONDS} s, dropped",
        "lanes": f"  the same with {LANES} lanes (information)",
        "sse": "  the same over SSE (information)",
    }
    after = "never" if seen.dropped_after is None else f"{seen.dropped_after:.1f} s"
    return Result(
        what=what[kind],
        measured=(seen.peak - seen.start) / MIB,
        unit="MiB",
        target=8.0 if kind == "websocket" else None,
        holds=seen.dropped_after is not None and bool(seen.logged),
        details={"dropped after": after, "at the end MiB": (seen.end - seen.start) / MIB, "logged": seen.logged or "-"},
    )


async def _watch_all(
    bench: Bench, servers: dict[str, BenchServer], kinds: dict[str, list[bytes]]
) -> dict[str, Watched]:
    watching = [_watch(bench, servers[kind], frames) for kind, frames in kinds.items()]
    return dict(zip(kinds, await asyncio.gather(*watching), strict=True))


async def _watch(bench: Bench, server: BenchServer, frames: list[bytes]) -> Watched:
    (await WebSocket.connect(server.port)).close()  # what the first connection loads is not counted
    await asyncio.sleep(1.0)
    silent = await asyncio.to_thread(_ask_and_never_read, server.port, frames)
    seen = Watched(start=server.memory_bytes())
    began = time.monotonic()
    while (age := time.monotonic() - began) < SECONDS:
        bench.report.step(f"{age:.0f} s of {SECONDS}")
        seen.end = server.memory_bytes()
        seen.peak = max(seen.peak, seen.end)
        lines = [line for line in server.output.splitlines() if any(name in line for name in DROPPED)]
        seen.logged = next((name for name in DROPPED if lines and name in lines[0]), "")
        if seen.dropped_after is None and _connections(server) == 0:
            seen.dropped_after = age
        await asyncio.sleep(0.2)
    silent.close()
    return seen


def _ask_and_never_read(port: int, frames: list[bytes]) -> socket.socket:
    """Open a connection with a small receive buffer, ask, and leave everything unread."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", port))
    if not frames:
        body = json.dumps({"input": "go", "stream": True, "store": False}).encode()
        head = "POST /v1/responses HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        return client
    client.sendall(
        b"GET /v1/responses HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
    answer = b""
    while not answer.endswith(b"\r\n\r\n"):
        answer += client.recv(1)
    client.sendall(b"".join(map(text_frame, frames)))
    return client


def _connections(server: BenchServer) -> int:
    """Count the server's established connections."""
    assert server.process is not None
    local = f":{server.port:04X} "
    with open(f"/proc/{server.process.pid}/net/tcp") as table:
        return sum(1 for line in table if local in line[:22] and line.split()[3] == "01")


def heavy(bench: Bench) -> Iterator[Result]:
    """The memory that a worker keeps behind large requests, and the memory of streams that can be resumed."""
    with bench.fresh_server(name="heavy", engine="demo") as server:
        _ask(server.port, 0)
        before = server.memory_bytes()
        server.forget_peak()
        after = []
        for _ in bench.report.rounds(LARGE_ROUNDS):
            asyncio.run(_ask_all(server.port))
            after.append(server.memory_bytes())
        peak = server.peak_memory_bytes()
    yield Result(
        what=f"memory of a worker after {len(LARGE)} large requests at once / before",
        measured=max(after) / before,
        target=1.37,
        details={"before MiB": before / MIB, "peak MiB": peak / MIB, "after, at most MiB": max(after) / MIB},
    )
    with bench.fresh_server(name="kept", engine="demo") as server:
        yield _kept(bench, server)


def _kept(bench: Bench, server: BenchServer) -> Result:
    """Return the memory that each event of finished streams takes that can be resumed."""
    for _ in range(5):
        _stream(server.port)
    time.sleep(2.0)  # the last streams let go of what they were made of
    before, events = server.memory_bytes(), 0
    for number in range(STREAMS):
        bench.report.step(f"stream {number + 1} of {STREAMS}")
        events += _stream(server.port)
    time.sleep(2.0)
    after = server.memory_bytes()
    return Result(
        what=f"memory of an event of {STREAMS} streams that can be resumed",
        measured=(after - before) / events,
        unit="bytes",
        target=100.0,
        details={"before MiB": before / MIB, "after MiB": after / MIB, "events": events},
    )


def _stream(port: int) -> int:
    """Read a stream of some thousand events; return how many there were."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    body = json.dumps({"input": "repeat: " + "lorem " * 2000, "stream": True})
    connection.request("POST", "/v1/responses", body, {"Content-Type": "application/json"})
    events = sum(line.startswith(b"data:") for line in connection.getresponse())
    connection.close()
    return events


async def _ask_all(port: int) -> None:
    await asyncio.gather(*(asyncio.to_thread(_ask, port, size) for size in LARGE))
    await asyncio.sleep(2.0)  # the last threads put down what they hold


def _ask(port: int, size: int) -> None:
    """Send a request of so many MiB; most are refused once their tokens are counted, which is work enough."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    body = json.dumps({"input": "so many words of a text " * (size * MIB // 24) + "x"})
    connection.request("POST", "/v1/responses", body, {"Content-Type": "application/json"})
    assert connection.getresponse().read()
    connection.close()
