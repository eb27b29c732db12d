"""Rows about events: CPU per event and the time to the first one, over WebSocket and SSE, and on other APIs' wires."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from statistics import median

from bench.client import WebSocket, create, post
from bench.report import Result, ratio
from bench.servers import BARE, LANES, ONE_PER_TURN, OURS, Bench, BenchServer
from tests.kit.server import Server

CONNECTIONS = 100
ROUNDS = 5
HELLO = [{"role": "user", "content": "go"}]
RESPONSE = "/v1/responses", json.dumps({"input": "go", "stream": True, "store": False}).encode()
CHAT = "/v1/chat/completions", json.dumps({"messages": HELLO, "stream": True}).encode()
MESSAGE = (
    "/v1/messages",
    json.dumps({"model": "scripted", "max_tokens": 100_000, "messages": HELLO, "stream": True}).encode(),
)
SETTLE_SECONDS = 0.1  # after the last event, for what the server still has to do for it


@dataclass(slots=True)
class Samples:
    """What several rounds of one configuration gave."""

    cpu: list[float] = field(default_factory=list)  # µs per event
    wall: list[float] = field(default_factory=list)  # µs per event
    first: list[float] = field(default_factory=list)  # ms, median over connections

    @property
    def cpu_us(self) -> float:
        """CPU per event, in microseconds."""
        return median(self.cpu)

    @property
    def first_ms(self) -> float:
        """Time to the first event, in milliseconds."""
        return median(self.first)


Round = Callable[[], Awaitable[tuple[int, list[float]]]]  # → events, and the time to the first one of each reader


async def measured_round(server: Server, round_: Round, samples: Samples | None) -> None:
    """Run a round; without `samples` it is the warm-up."""
    cpu, began = server.cpu_seconds(), time.perf_counter()
    events, firsts = await round_()
    wall = time.perf_counter() - began
    await asyncio.sleep(SETTLE_SECONDS)
    if samples is not None:
        samples.cpu.append((server.cpu_seconds() - cpu) / events * 1e6)
        samples.wall.append(wall / events * 1e6)
        samples.first.append(median(firsts) * 1000)


async def interleaved(bench: Bench, pairs: Sequence[tuple[Server, Round]], rounds: int = ROUNDS) -> list[Samples]:
    """Run the rounds of all configurations in turn, the first one first every other time, after a warm-up of each."""
    samples = [Samples() for _ in pairs]
    for number in bench.report.rounds(rounds, warm_up=True):
        turn = list(zip(pairs, samples, strict=True))
        for (server, round_), kept in turn if number % 2 else reversed(turn):
            await measured_round(server, round_, kept if number else None)
    return samples


async def burst(sockets: Sequence[WebSocket], frames: Sequence[bytes]) -> tuple[int, list[float]]:
    """Have every connection send its frames; return how many events came, and the time to each first one."""
    for socket in sockets:
        socket.send(frames, responses=len(frames))
    await asyncio.gather(*(socket.done for socket in sockets))
    return sum(socket.events for socket in sockets), [socket.first_at - socket.sent_at for socket in sockets]


async def record(bench: Bench, server: BenchServer) -> None:
    """Keep what our server sends, for the bare one to send again."""
    socket = await WebSocket.connect(server.port)
    socket.recorded = []
    await burst([socket], [create()])
    socket.close()
    bodies = await asyncio.gather(*(post(server.port, *RESPONSE) for _ in range(CONNECTIONS)))
    bench.keep_frames(socket.recorded, bodies[CONNECTIONS // 2])


async def bursts(
    bench: Bench,
    servers: Sequence[Server],
    *,
    connections: int = CONNECTIONS,
    frames: Sequence[bytes] = (),
    rounds: int = ROUNDS,
) -> list[Samples]:
    """Have so many connections of each server send frames, one create if none are given, in interleaved rounds."""
    opened = {each.port: [await WebSocket.connect(each.port) for _ in range(connections)] for each in servers}
    sent = frames or [create()]
    samples = await interleaved(bench, [(s, lambda s=s: burst(opened[s.port], sent)) for s in servers], rounds)
    for socket in chain.from_iterable(opened.values()):
        socket.close()
    return samples


def websocket_events(bench: Bench) -> Iterator[Result]:
    """Our own CPU per event, and the time to the first: whole path beside ready-made frames."""
    ours = bench.server(OURS)
    asyncio.run(record(bench, ours))
    whole, sender = asyncio.run(bursts(bench, [ours, bench.server(BARE)]))
    engine = asyncio.run(_engine_alone(bench))
    details = {"whole µs": whole.cpu_us, "same frames µs": sender.cpu_us, "of it the scripted engine alone": engine}
    yield Result(
        what=f"CPU per WebSocket event, {CONNECTIONS} connections bursting, whole / ready-made frames",
        measured=ratio(whole.cpu, sender.cpu),
        target=1.2,
        details={**details, "events/s": 1e6 / median(whole.wall)},
    )
    yield Result(
        what=f"time to first event, {CONNECTIONS} open WebSockets bursting / ready-made frames",
        measured=ratio(whole.first, sender.first),
        target=2.0,
        details={"whole ms": whole.first_ms, "same frames ms": sender.first_ms},
    )


async def _engine_alone(bench: Bench) -> float:
    """Return the scripted engine's CPU per token, with as many generations at once as there are connections."""
    from bench.servers import SCRIPT
    from engine.backends.scripted import ScriptedEngine
    from engine.formats.harmony.prompt import generation_start, render_text
    from engine.types import GenerationRequest

    bench.report.step("the engine alone")
    engine = ScriptedEngine(model="scripted", options={"script": SCRIPT})
    await engine.start()
    prompt = [*render_text("user", "go").tokens, *generation_start()]

    async def generate(number: int) -> int:
        request = GenerationRequest(request_id=str(number), prompt_token_ids=prompt)
        return sum([len(chunk.token_ids) async for chunk in engine.generate(request)])

    costs = []
    for _ in range(ROUNDS):
        began = time.process_time()
        tokens = sum(await asyncio.gather(*(asyncio.create_task(generate(n)) for n in range(CONNECTIONS))))
        costs.append((time.process_time() - began) / tokens * 1e6)
    await engine.aclose()
    return median(costs)


def lanes(bench: Bench) -> Iterator[Result]:
    """What it saves to write the frames of a loop turn together."""
    frames = [create(stream_id=f"lane-{number % LANES}") for number in range(LANES * 4)]
    servers = bench.server(OURS), bench.server(ONE_PER_TURN)
    together, apart = asyncio.run(bursts(bench, servers, connections=1, frames=frames))
    yield Result(
        what=f"CPU per event, {LANES} lanes of one socket, a turn's frames together / one per turn",
        measured=ratio(together.cpu, apart.cpu),
        target=0.6,
        details={"together µs": together.cpu_us, "one per turn µs": apart.cpu_us},
    )


async def _posts(server: BenchServer, path: str, body: bytes) -> tuple[int, list[float]]:
    bodies = await asyncio.gather(*(post(server.port, path, body) for _ in range(CONNECTIONS)))
    return sum(chunk.count(b"data: {") for body in bodies for chunk in body), [0.0]


def sse(bench: Bench) -> Iterator[Result]:
    """Server-sent events beside the same events from a bare Django view, which yields one after the other."""
    server = bench.server(OURS)
    asyncio.run(record(bench, server))
    ours, bare = _streams(bench, (server, *RESPONSE), (bench.server(BARE), *RESPONSE))
    yield Result(
        what=f"SSE, {CONNECTIONS} at once, CPU per event / bare Django StreamingHttpResponse",
        measured=ratio(ours.cpu, bare.cpu),
        target=1.2,
        details={"ours µs": ours.cpu_us, "bare µs": bare.cpu_us, "wall ratio": ratio(ours.wall, bare.wall)},
    )


def _streams(bench: Bench, *sides: tuple[BenchServer, str, bytes]) -> list[Samples]:
    return asyncio.run(interleaved(bench, [(side[0], partial(_posts, *side)) for side in sides]))


def chat(bench: Bench) -> Iterator[Result]:
    """Chunks of chat completions beside the events of responses, both as server-sent events."""
    yield _other_wire(bench, "Chat Completions", "chunk", CHAT)


def messages(bench: Bench) -> Iterator[Result]:
    """Events of messages of Anthropic's API beside those of responses, both as server-sent events."""
    yield _other_wire(bench, "Messages", "message event", MESSAGE)


def _other_wire(bench: Bench, title: str, unit: str, post: tuple[str, bytes]) -> Result:
    """Return the row of an API whose stream comes in such units: one run on another wire."""
    server = bench.server(OURS)
    response, other = _streams(bench, (server, *RESPONSE), (server, *post))
    return Result(
        what=f"{title}, {CONNECTIONS} streams at once, CPU per {unit} / per event of a response",
        measured=ratio(other.cpu, response.cpu),
        target=1.1,
        details={f"{unit} µs": other.cpu_us, "event µs": response.cpu_us},
    )
