"""A server in front of two vLLM servers, of which one dies, hangs or breaks while both generate: nobody notices.

Only this finds a turn that is lost or doubled where a vLLM server dies under it.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import NamedTuple

import pytest

from engine.formats.harmony.encoding import encode_harmony
from tests.kit.background import begin, get, until
from tests.kit.clients import Frame, Socket, http_client, ready, text_of
from tests.kit.fake_vllm import MODEL
from tests.kit.laws import assert_laws
from tests.kit.raw_streams import RawStream
from tests.kit.scripts import BEGIN
from tests.kit.server import Server
from tests.kit.vllm_process import VllmProcess
from tests.kit.waiting import PATIENCE, eventually
from tests.wire.transports.test_metrics import Numbers

NUMBERS = " ".join(str(number) for number in range(40))
LONG = f"{BEGIN}{NUMBERS}<|return|>"
LANES, STREAMS, IN_BACKGROUND = 8, 4, 4


class Pool(NamedTuple):
    """A server, what it is in front of, and the file that has to be there for a long answer to end."""

    server: Server
    engines: list[VllmProcess]
    may_end: Path


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    folder = tmp_path_factory.mktemp("pool")
    may_end = folder / "may-end"
    held = {"hang_after": len(encode_harmony(LONG)) - 10, "wait_for_file": str(may_end)}
    script = (
        {"when": "[long]", "say": LONG, "delay": 0.01, **held},
        {"say": f"{BEGIN}Hello.<|return|>", "cached_tokens": 10**6},
    )
    with VllmProcess(*script) as first, VllmProcess(*script) as second:
        urls = f"{first.url},{second.url}"
        with Server(
            folder, engine="vllm-server", engine_url=urls, model=MODEL, engine_options='{"health_seconds": 0.5}'
        ) as server:
            yield Pool(server, [first, second], may_end)
        for noise in ("Traceback", "was never", "Task was destroyed", "Unhandled"):
            assert noise not in server.output, server.output[-3000:]


class Streams:
    """Streams of all kinds; when they began to be told something, and how long any was silent."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.events: dict[str, list[Frame]] = {}
        self.background: list[str] = []
        self.longest_gap = 0.0
        self._heard: dict[str, float] = {}

    def hear(self, name: str, event: Frame) -> None:
        """Take an event of a stream."""
        now = time.monotonic()
        events = self.events.setdefault(name, [])
        if event["type"] == "response.output_text.delta":
            if name in self._heard:
                self.longest_gap = max(self.longest_gap, now - self._heard[name])
            self._heard[name] = now
        events.append({key: value for key, value in event.items() if key != "stream_id"})

    def ended(self, name: str) -> bool:
        """Whether a stream has come to its end."""
        return self.events[name][-1]["type"] in ("response.completed", "response.failed", "response.incomplete")

    async def over_websocket(self, number: int) -> None:
        """Read responses on several lanes of one connection."""
        async with await Socket.open(self.server.ws_url) as socket:
            lanes = [f"lane{lane}" for lane in range(LANES)]
            for lane in lanes:
                self.events[f"{number} {lane}"] = [{"type": "asked"}]
                await socket.create("[long]", lane)
            while not all(self.ended(f"{number} {lane}") for lane in lanes):
                frame = await socket.receive()
                self.hear(f"{number} {frame['stream_id']}", frame)

    async def over_http(self, number: int) -> None:
        """Read a stream of server-sent events."""
        with closing(_Killed(await RawStream.create(self.server, input="[long]"))) as killed:
            while (event := await killed.stream.next()) is not None:
                self.hear(f"sse {number}", event)

    async def in_background(self) -> None:
        """Begin a response that nobody reads."""
        async with http_client(self.server) as http:
            self.background.append((await begin(http, "[long]"))["id"])

    def are_all_told_something(self) -> bool:
        """Whether every stream had some text."""
        return len(self._heard) == 2 * LANES + STREAMS and all(len(events) > 9 for events in self.events.values())

    async def assert_whole(self) -> None:
        """Assert that nothing was lost, nothing came twice, and everything is kept as it was told."""
        async with http_client(self.server) as http:
            for events in self.events.values():
                told = [event for event in events if event["type"] != "asked"]
                assert_laws(told)
                response = told[-1]["response"]
                assert (response["status"], text_of(response)) == ("completed", NUMBERS)
                assert await get(http, response["id"]) == response
            for response_id in self.background:
                response = await until(http, response_id, "completed", "failed")
                assert text_of(response) == NUMBERS
            usages = {str(events[-1]["response"]["usage"]) for events in self.events.values()}
            assert len(usages) == 1, "those that went on count like those that did not"


class _Killed:
    """A stream that leaves nothing open."""

    def __init__(self, stream: RawStream) -> None:
        self.stream = stream

    def close(self) -> None:
        self.stream.kill()


@asynccontextmanager
async def streaming(pool: Pool) -> AsyncIterator[None]:
    """Enter when many streams are being told something, of which none ends in here; they are whole at the end."""
    streams = Streams(pool.server)
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as reading:
        for number in range(2):
            reading.create_task(streams.over_websocket(number))
        for number in range(STREAMS):
            reading.create_task(streams.over_http(number))
        for _ in range(IN_BACKGROUND):
            reading.create_task(streams.in_background())
        await eventually(streams.are_all_told_something)
        assert min(engine.running() for engine in pool.engines) >= 4, "each has something to lose"
        yield
        pool.may_end.touch()
    await streams.assert_whole()
    print(f"{len(streams.events)} streams, longest gap {streams.longest_gap:.2f} s")


async def both(pool: Pool) -> Pool:
    """Return the pool with both of its servers in use, whatever was done to them."""
    pool.may_end.unlink(missing_ok=True)
    for engine in pool.engines:
        if not engine.is_there:
            await asyncio.to_thread(engine.start)
    await serving(pool.server, 2)
    return pool


async def serving(server: Server, count: int) -> None:
    """Wait until so many vLLM servers are used."""

    async def is_so() -> bool:
        return bool((await ready(server))["engine_replicas"]["serving"] == count)

    await eventually(is_so)


async def test_one_is_killed(pool: Pool) -> None:
    server, engines, _ = await both(pool)
    before = Numbers(server).of("turns_continued_total")
    async with await Socket.open(server.ws_url) as socket:
        chains = [await socket.ask("Hello") for _ in range(4)]
        async with streaming(pool):
            engines[0].kill()
        for parent in chains:
            assert text_of(await socket.ask("Hello", previous_response_id=parent["id"])) == "Hello."
    await serving(server, 1)
    assert Numbers(server).of("turns_continued_total") >= before + 4
    assert Numbers(server).of("engine_replicas", state="away") == 1


async def test_one_is_stopped_for_a_while(pool: Pool) -> None:
    server, engines, _ = await both(pool)
    async with streaming(pool):
        engines[1].pause()
    engines[1].resume()
    await serving(server, 2)


async def test_what_nobody_can_go_on_with_fails(pool: Pool) -> None:
    server, engines, _ = await both(pool)
    async with http_client(server) as http:
        failed = await begin(http, "[long]")
        await eventually(lambda: sum(engine.running() for engine in engines) == 1)
        for engine in engines:
            engine.kill()
        failed = await until(http, failed["id"], "failed")
        assert failed["error"]["code"] == "server_error"
        assert not [leak for leak in ("127.0.0.1", "vLLM", "aiohttp") if leak in str(failed)]
        refused = await http.post("/responses", json={"input": "Hello"})
        assert refused.status_code == 503
