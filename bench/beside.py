"""The row about neighbours: the latency of a request beside the load of another project, worst and median, in ms."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from statistics import median

from bench.report import Result
from bench.servers import Bench
from tests.kit.server import Server, manage

AT_ONCE = 12
BODY_BYTES = 31_000_000
TEXT_BYTES = 100_000
PIECE_BYTES = 64 * 1024
BACKGROUND = 200
PAUSE = 0.02  # seconds between two requests of the neighbour
WORST, MEDIAN = 500.0, 300.0  # milliseconds: beside large bodies, and beside all else
Attack = Callable[[int, str], Awaitable[None]]


def beside(bench: Bench) -> Iterator[Result]:
    """What a project's POST waits for beside another project's large bodies, long texts and background work."""
    with bench.fresh_server(name="beside", engine="demo", auth="on") as server:
        keys = {project: _key(server, project) for project in ("loud", "quiet")}
        for name, (attack, target) in ATTACKS.items():
            yield asyncio.run(_measure(bench, server, keys, name, attack, target))


def _key(server: Server, project: str) -> str:
    where = {name: server.environ[name] for name in ("DATA_DIR", "DATABASE_URL") if name in server.environ}
    made = manage("create_key", "--project", project, **where)
    return next(word for word in made.split() if word.startswith("sk-"))


async def _measure(
    bench: Bench, server: Server, keys: Mapping[str, str], name: str, attack: Attack, target: float
) -> Result:
    bench.report.step(name)
    hello = json.dumps({"input": "Hello"}).encode()
    alone = [await _post(server.port, keys["quiet"], hello) for _ in range(20)]
    attacking = asyncio.gather(*(attack(server.port, keys["loud"]) for _ in range(AT_ONCE)))
    times = []
    while not attacking.done() or len(times) < 20:
        times.append(await _post(server.port, keys["quiet"], hello))
        await asyncio.sleep(PAUSE)
    await attacking
    worst, usual = max(times), median(times)
    return Result(
        what=f"a POST beside {AT_ONCE} clients of another project: {name.replace('_', ' ')}",
        measured=worst if target == WORST else usual,
        unit="ms",
        target=target,
        details={"alone ms": median(alone), "median ms": usual, "worst ms": worst, "requests": len(times)},
    )


async def _post(port: int, key: str, body: bytes) -> float:
    """Send a request and read its answer to the end; return the milliseconds."""
    began = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = (
        f"POST /v1/responses HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nAuthorization: Bearer {key}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with suppress(ConnectionError):  # what is refused while it comes is not read to its end
        writer.write(head.encode())
        for start in range(0, len(body), PIECE_BYTES):  # who sends all of it at once stands still itself
            writer.write(body[start : start + PIECE_BYTES])
            await writer.drain()
        await reader.read()
    writer.close()
    return (time.perf_counter() - began) * 1000


def _once(body: bytes) -> Attack:
    async def send(port: int, key: str) -> None:
        await _post(port, key, body)

    return send


async def _background(port: int, key: str) -> None:
    body = json.dumps({"input": "count to 200", "background": True}).encode()
    for _ in range(BACKGROUND // AT_ONCE):
        await _post(port, key, body)


ATTACKS: Mapping[str, tuple[Attack, float]] = {
    "bodies_of_spaces": (_once(b" " * BODY_BYTES), WORST),
    "bodies_with_spaces": (_once(b'{"input":' + b" " * BODY_BYTES + b'"Hello"}'), WORST),
    "long_texts": (_once(json.dumps({"input": "word " * (TEXT_BYTES // 5)}).encode()), MEDIAN),
    "background_work": (_background, MEDIAN),
}
