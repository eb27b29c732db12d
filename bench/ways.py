"""`make ways`: through how many functions of ours a request goes, and in how many modules they lie.

The application runs in this process with a scripted engine, and is spoken to as a server speaks to it. A function is
counted once for each time it is called, however often a coroutine goes on; comprehensions and what the scripted engine
does by itself are not counted. All threads count. Each way is gone several times; the fewest calls are printed.
`--details` prints before the table the functions that the last round of each way called, in order.
"""

import argparse
import asyncio
import os
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import django
import httpx

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

    def __init__(self, detailed: bool) -> None:
        self.detailed = detailed
        self.counts = False
        self._frames: dict[FrameType, int] = {}  # with their depths; held, so that no other one is taken for it

    def install(self) -> None:
        """Look at all calls from now on, in this thread and in those that begin later."""
        threading.setprofile(self._look)
        sys.setprofile(self._look)

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
        """In how many modules they lie."""
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
        await self.whole(f"/responses/{made['id']}/cancel")

    async def reader(self) -> None:
        """A streamed response, until its reader has the first event."""
        self.ends_with = b"response.created"
        self.counter.begin()
        async with self.http.stream("POST", "/responses", json={"input": "[silence]", "stream": True}) as stream:
            await anext(stream.aiter_lines())
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


async def fewest(counter: Counter, name: str, way: Callable[[], Awaitable[None]]) -> tuple[int, int]:
    """Go a way several times; return the fewest calls, and their modules."""
    counted = []
    for _ in range(TIMES):
        await way()
        counted.append((counter.calls, counter.modules))
    if counter.detailed:
        print(f"\n{name}", *counter.details(), sep="\n")
    return min(counted)


async def measured(detailed: bool) -> list[tuple[str, str, str]]:
    """Return each way with its calls and its modules."""
    counter = Counter(detailed)
    counter.install()
    os.environ["DJANGO_SETTINGS_MODULE"] = "respsite.settings"
    django.setup(set_prefix=False)
    from tests.kit.inprocess import Server

    with (
        tempfile.TemporaryDirectory() as folder,
        Server(Path(folder), script=SCRIPT, log_level="error", stream_first_word_ms=0) as server,
    ):
        ways = Ways(server, counter)
        whole: list[tuple[str, Callable[[], Awaitable[None]]]] = [
            ("create, until it is accepted", ways.accepted),
            ("create, until its reader has the first event", ways.reader),
            ("GET of a stored response", ways.stored),
            ("one call of the code interpreter", ways.interpreter),
        ]
        rows = [(name, *map(str, await fewest(counter, name, way))) for name, way in whole]
        for name, way in (("a token over a WebSocket", ways.socket), ("a token over chat", ways.chat)):
            few, _ = await fewest(counter, name, lambda way=way: way("[few]"))  # type: ignore[misc]
            many, _ = await fewest(counter, name, lambda way=way: way("[many]"))  # type: ignore[misc]
            rows.append((name, f"{(many - few) / (MANY - FEW):.1f}", ""))
    # Behind the server, which does something now and then by itself.
    name = "a takeover, until the first generation"
    rows.append((name, *map(str, await fewest(counter, name, ways.takeover))))
    return [(name, calls, modules) for name, calls, modules in rows]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--details", action="store_true", help="print the functions of each way, too")
    rows = asyncio.run(measured(parser.parse_args().details))
    sys.setprofile(None)
    width = max(len(name) for name, *_ in rows)
    print(f"{'':{width}}  calls  modules")
    for name, calls, modules in rows:
        print(f"{name:{width}}  {calls:>5}  {modules:>7}")


if __name__ == "__main__":
    main()
