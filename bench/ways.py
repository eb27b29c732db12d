"""`make ways`: through how many functions of ours a request goes, and in how many modules they lie.

The application runs in this process with a scripted engine, and is spoken to as a server speaks to it. A function is
counted once for each time it is called, however often a coroutine goes on; comprehensions and what the scripted engine
does by itself are not counted. All threads count. Each way is gone several times; the fewest calls are printed.
`--details` prints before the table the functions that the last round of each way called, in order.
"""

import argparse
import asyncio
import math
import os
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import Any

import django
import httpx
from django.apps import apps

ROOT = Path(__file__).parent.parent
OURS = tuple(f"{ROOT / package}/" for package in ("engine", "responses_app", "respsite"))
NOT_COUNTED = f"{ROOT / 'engine' / 'backends'}/"
TIMES = 5
FEW, MANY = 50, 250  # words of two answers: what one token costs is their difference
BEGIN, END = "<|channel|>final<|message|>", "<|return|>"
CODE = "<|channel|>analysis to=python code<|message|>print('seen')<|call|>"
SCRIPT = [
    {"when": "[silence]", "say": f"{BEGIN}Hello.{END}", "hang_after": 0},
    {"when": "[few]", "say": f"{BEGIN}{' word' * FEW}{END}"},
    {"when": "[many]", "say": f"{BEGIN}{' word' * MANY}{END}"},
    {"when": "[code]", "say": CODE},
    {"say": f"{BEGIN}Hello.{END}"},
]
INTERPRETER = {"tools": [{"type": "code_interpreter", "container": {"type": "auto"}}]}


class Counter:
    """What is called while it counts: once for each frame."""

    def __init__(self) -> None:
        self.counts = False
        self._frames: dict[FrameType, int] = {}  # with their depths; held, so that no other one is taken for it

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Look at all calls inside, in this thread and in those that begin meanwhile."""
        threading.setprofile(self._look)
        sys.setprofile(self._look)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    def begin(self) -> None:
        """Count from here."""
        self._frames.clear()
        self.counts = True

    def end(self) -> None:
        """Count no further."""
        self.counts = False

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count what is called inside."""
        self.begin()
        try:
            yield
        finally:
            self.end()

    @property
    def calls(self) -> int:
        """How many calls were counted."""
        return len(self._frames)

    @property
    def modules(self) -> int:
        return len({frame.f_code.co_filename for frame in self._frames})

    def details(self) -> Iterator[str]:
        """Yield a line for each call, in order: the function, set in under its caller, and where it stands."""
        for frame, depth in self._frames.items():
            code = frame.f_code
            yield f"{'  ' * depth}{code.co_qualname}  {Path(code.co_filename).relative_to(ROOT)}:{code.co_firstlineno}"

    def _look(self, frame: FrameType, event: str, _argument: object) -> None:
        if not self.counts or event != "call":
            return
        code = frame.f_code
        if code.co_filename.startswith(OURS) and not code.co_filename.startswith(NOT_COUNTED):
            if code.co_name in ("<listcomp>", "<genexpr>", "<dictcomp>", "<setcomp>", "<module>"):
                return
            caller = frame.f_back
            while caller is not None and caller not in self._frames:
                caller = caller.f_back
            self._frames[frame] = 0 if caller is None else self._frames[caller] + 1


class Ways:
    """The ways, each over one server in this process."""

    def __init__(self, server: Any, counter: Counter) -> None:
        from tests.kit.clients import Socket, http_client

        self.server = server
        self.counter = counter
        self.http = http_client(server)
        self.open_socket = Socket.open
        self.ends_with = b"nothing"  # what the application sends last that is counted
        self.listen()

    def listen(self) -> None:
        """Look at all that the application sends."""
        running = self.server.activate()
        app = running.app

        async def listening(scope: Any, receive: Any, send: Any) -> None:
            async def heard(message: dict[str, Any]) -> None:
                if self.ends_with in (message["type"].encode(), *message.get("body", b"").split()):
                    self.counter.end()
                await send(message)

            await app(scope, receive, heard)

        running.app = listening

    async def whole(self, path: str, **body: Any) -> httpx.Response:
        """Ask, until the application has nothing more to do with it."""
        answer: httpx.Response = await self.http.post(path, json=body)
        assert await asyncio.to_thread(self.server.activate().is_idle)
        return answer

    async def accepted(self) -> None:
        """A background response, until its answer begins: it is accepted, and committed."""
        self.ends_with = b"http.response.start"
        self.counter.begin()
        made = (await self.whole("/responses", input="[silence]", background=True)).json()
        self.ends_with = b"nothing"
        await self.whole(f"/responses/{made['id']}/cancel")

    async def reader(self) -> None:
        """A streamed response, until its reader has the first event."""
        self.ends_with = b"response.created"
        self.counter.begin()
        async with self.http.stream("POST", "/responses", json={"input": "[silence]", "stream": True}) as stream:
            await anext(stream.aiter_lines())
        self.ends_with = b"nothing"
        assert await asyncio.to_thread(self.server.activate().is_idle)

    async def socket(self, word: str) -> None:
        """A whole response over a WebSocket, whose connection is there."""
        async with await self.open_socket(self.server.ws_url) as socket:
            await socket.ask("hi")
            with self.counter.counting():
                await socket.ask(word)

    async def chat(self, word: str) -> None:
        """A whole streamed chat completion."""
        said = [{"role": "user", "content": word}]
        with self.counter.counting():
            answer = await self.whole("/chat/completions", model="scripted", messages=said, stream=True)
        assert answer.content.endswith(b"data: [DONE]\n\n"), answer

    async def stored(self) -> None:
        """A GET of a stored response."""
        made = (await self.whole("/responses", input="hi")).json()
        with self.counter.counting():
            answer = await self.http.get(f"/responses/{made['id']}")
        assert answer.json() == made, answer

    async def interpreter(self) -> None:
        """A call of the code interpreter: from the end of the turn that calls to the begin of the next one."""
        first = (await self.whole("/responses", input="[code]", **INTERPRETER)).json()
        assert [item["type"] for item in first["output"]] == ["code_interpreter_call", "message"], first
        with _between_generations(self.counter):  # its container is warm
            await self.whole("/responses", input="[code]", previous_response_id=first["id"], **INTERPRETER)

    async def takeover(self) -> None:
        """A response whose worker is gone, until another one generates: with stores in memory."""
        from responses_app.protocol.response.input_codec import decode, encode
        from tests.kit.fakes import Site
        from tests.unit.runs.test_takeover import TokenEngine, left_at, undisturbed

        turns = [f"{BEGIN}It is two, and no more.{END}"]
        accepted, _ = await undisturbed(turns, {})
        log = encode(list(decode(accepted.log))[:6])
        site = Site(TokenEngine(turns), await left_at(accepted, log), worker="heir")
        generate = site.engine.generate

        def generating(request: Any) -> Any:
            self.counter.end()
            return generate(request)

        site.engine.generate = generating
        self.counter.begin()
        (claimed,) = (await site.store.reclaim("heir", dead_before=0.0)).claimed
        await site.service.run_again(claimed)
        await (await site.follow(str(accepted.response["id"]))).to_the_end()
        await site.registry.aclose(grace=5)


@contextmanager
def _between_generations(counter: Counter) -> Iterator[None]:
    """Count from the end of the first generation to the begin of the second."""
    from engine.backends.scripted import ScriptedEngine

    generate, generations = ScriptedEngine.generate, 0

    async def generating(self: Any, request: Any) -> AsyncIterator[Any]:
        nonlocal generations
        generations += 1
        number = generations
        if number == 2:
            counter.end()
        async for chunk in generate(self, request):
            if number == 1 and chunk.finish_reason is not None:
                counter.begin()
            yield chunk

    ScriptedEngine.generate = generating  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        ScriptedEngine.generate = generate  # type: ignore[method-assign]
        counter.end()


async def fewest(
    counter: Counter,
    way: Callable[[], Awaitable[None]],
    *,
    times: int = TIMES,
    enough: tuple[float, float] | None = None,
) -> tuple[int, int]:
    """Go a way several times; return the fewest calls, and the fewest modules. Stop where they are `enough`."""
    calls, modules = [], []
    for _ in range(times):
        await way()
        calls.append(counter.calls)
        modules.append(counter.modules)
        if enough is not None and min(calls) <= enough[0] and min(modules) <= enough[1]:
            break
    return min(calls), min(modules)


@contextmanager
def started() -> Iterator[Ways]:
    """Start the server whose ways are gone, with a counter of all calls."""
    counter = Counter()
    if not apps.ready:
        os.environ["DJANGO_SETTINGS_MODULE"] = "respsite.settings"
        django.setup(set_prefix=False)
    from tests.kit.inprocess import Server

    with (
        counter.installed(),
        tempfile.TemporaryDirectory() as folder,
        Server(Path(folder), script=SCRIPT, log_level="error", stream_first_word_ms=0) as server,
    ):
        yield Ways(server, counter)


async def bound(limits: Mapping[str, float] = MappingProxyType({}), *, times: int = TIMES) -> dict[str, float]:
    """Return the figures that have budgets: each way is gone so many `times`, or until it keeps the `limits`.

    A server does something by itself now and then, so there may be calls of others in a way, but its own are all there.
    """
    figures: dict[str, float] = {}
    with started() as ways:
        for name, way in (("POST until accepted", ways.accepted), ("GET of a stored response", ways.stored)):
            parts = f"{name}: calls", f"{name}: modules"
            enough = (limits[parts[0]], limits[parts[1]]) if limits else None
            figures |= zip(parts, await fewest(ways.counter, way, times=times, enough=enough), strict=True)
        for name, of_token in (("token over WebSocket: calls", ways.socket), ("token over chat: calls", ways.chat)):
            figures[name] = await of_a_token(ways.counter, of_token, times=times, enough=limits.get(name))
    return figures


async def of_a_token(
    counter: Counter, way: Callable[[str], Awaitable[None]], *, times: int = TIMES, enough: float | None = None
) -> float:
    """Return the calls of one token: those between a short answer and a long one, by the tokens between them."""
    few, many = math.inf, math.inf
    for _ in range(times):
        few = min(few, (await fewest(counter, lambda: way("[few]"), times=1))[0])
        many = min(many, (await fewest(counter, lambda: way("[many]"), times=1))[0])
        if enough is not None and (many - few) / (MANY - FEW) <= enough:
            break
    return round((many - few) / (MANY - FEW), 1)


async def measured(detailed: bool) -> list[tuple[str, str, str]]:
    """Return each way with its calls and its modules; print the calls of each where that is `detailed`."""
    rows = []

    def add(name: str, *values: object) -> None:
        rows.append((name, *map(str, values)))
        if detailed:
            print(f"\n{name}", *counter.details(), sep="\n")

    with started() as ways:
        counter = ways.counter
        whole: list[tuple[str, Callable[[], Awaitable[None]]]] = [
            ("create, until it is accepted", ways.accepted),
            ("create, until its reader has the first event", ways.reader),
            ("GET of a stored response", ways.stored),
            ("one call of the code interpreter", ways.interpreter),
        ]
        for name, way in whole:
            add(name, *await fewest(counter, way))
        for name, of_token in (("a token over a WebSocket", ways.socket), ("a token over chat", ways.chat)):
            add(name, await of_a_token(counter, of_token), "")
    with counter.installed():  # behind the server, which does something now and then by itself
        add("a takeover, until the first generation", *await fewest(counter, ways.takeover))
    return [(name, calls, modules) for name, calls, modules in rows]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--details", action="store_true", help="print the functions of each way, too")
    rows = asyncio.run(measured(parser.parse_args().details))
    width = max(len(name) for name, *_ in rows)
    print(f"{'':{width}}  calls  modules")
    for name, calls, modules in rows:
        print(f"{name:{width}}  {calls:>5}  {modules:>7}")


if __name__ == "__main__":
    main()
