"""Clients of all kinds at once, and what they were told: the figures of a fault.

They do what real clients do. Where a connection breaks or the server says 503 they come again; a background response is
read to its end over as many connections as it takes; a chain over a WebSocket is continued over the next one.
"""

import asyncio
import os
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count

import httpx
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidMessage, InvalidStatus

from tests.kit.clients import Frame, Socket, text_of
from tests.kit.laws import assert_laws
from tests.kit.raw_streams import CUT, RawStream
from tests.kit.server import Server
from tests.kit.waiting import eventually
from tests.system.cluster.figures import Figures, keep

PAUSE = 0.2  # seconds before a client comes again
ASK_SECONDS = 60.0  # for an answer as JSON
KINDS = ("json", "sse", "websocket", "background")
SENT_AGAIN = "failed, to be sent again"
ENDS = ("response.completed", "response.incomplete", "response.failed")
SETTLE_SECONDS = 120.0
LAST = 24  # what they have the model count to
TURNS = 10  # of a chain over a WebSocket
ASKED = f"count to {LAST}"
ANSWER = " ".join(str(number) for number in range(1, LAST + 1))
STREAMS = int(os.environ.get("CLUSTER_STREAMS", "200"))

# What clients come again after; every SDK does, or its caller (docs/how-to/streaming.md).
BROKEN = {"ReadError", "RemoteProtocolError", "ConnectError", "ConnectionResetError", "IncompleteReadError", "503"}
BROKEN |= {"ConnectTimeout", "ReadTimeout", "TimeoutError", "503 frame", "the end", "WebSocket 503", SENT_AGAIN}
BROKEN |= {f"WebSocket {code}" for code in (1001, 1006, 1012, "ConnectionResetError", "InvalidMessage", "TimeoutError")}
_STATUS = re.compile(rb"HTTP/1\.1 (\d{3})")


@dataclass(slots=True)
class Tally:
    """What clients were told. `gaps` has the longest time without an event, by the kind of client."""

    completed: Counter[str] = field(default_factory=Counter)
    retried: Counter[str] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)
    gaps: dict[str, float] = field(default_factory=lambda: dict.fromkeys(KINDS, 0.0))
    acknowledged: set[str] = field(default_factory=set)  # ids that were told to be complete, or to go on by themselves
    noted: list[str] = field(default_factory=list)  # what a fault measured beside this, for the figures


class Load:
    """So many clients, a quarter of each kind, until all come to an end."""

    def __init__(self, server: Server, *, clients: int, settle_seconds: float = SETTLE_SECONDS) -> None:
        self.server = server
        self._settle_seconds = settle_seconds  # bound of a wait until clients of each kind have been answered
        self.tally = Tally()
        each = clients // len(KINDS)
        usual = (self._ask, self._stream, self._talk, self._background)
        self._kinds: dict[Callable[[], Awaitable[None]], int] = dict.fromkeys(usual, each)  # how many of each
        self._enough = False
        self._http = httpx.AsyncClient(
            base_url=server.base_url, timeout=ASK_SECONDS, verify=False, limits=httpx.Limits(max_connections=None)
        )
        self._tasks: list[asyncio.Task[None]] = []
        self._numbers = count()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Tally]:
        """Load the server, from the moment when every kind of client has had an answer; then let all come to an end.

        What runs at the end is waited for, and everything that was acknowledged has to be there.
        """
        self._tasks = [
            asyncio.create_task(self._begin(kind)) for kind, number in self._kinds.items() for _ in range(number)
        ]
        try:
            await self.more(1)
            yield self.tally
            self._enough = True
            async with asyncio.timeout(self._settle_seconds):
                await asyncio.gather(*self._tasks)
            await self._hold_to_the_promises()
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._http.aclose()

    async def more(self, answers: int) -> None:
        """Wait until every kind of client has had so many more answers."""
        before = Counter(self.tally.completed)
        await eventually(
            lambda: (
                any(task.done() for task in self._tasks)
                or all(self.tally.completed[kind] >= before[kind] + answers for kind in KINDS)
            ),
            timeout=self._settle_seconds,
        )
        for task in self._tasks:
            if task.done():
                task.result()

    async def _begin(self, kind: Callable[[], Awaitable[None]]) -> None:
        """Begin a little after the others, so that answers do not all come at once."""
        await asyncio.sleep(0.01 * next(self._numbers))
        await kind()

    async def _again(self, why: str) -> None:
        self.tally.retried[why] += 1
        await asyncio.sleep(PAUSE)

    def _ended(self, kind: str, response: Frame) -> None:
        """Count a response that has come to its end; one that a worker could not finish says to send it again."""
        if response["status"] == "completed":
            assert text_of(response) == ANSWER, response
            self.tally.completed[kind] += 1
            self.tally.acknowledged.add(response["id"])
        elif kind != "background" and "Send it again" in str(response["error"]):
            self.tally.retried[SENT_AGAIN] += 1
        else:
            self.tally.failed.append(f"{kind}: {response['status']} {response['error']}")

    # The kinds.

    async def _ask(self) -> None:
        while not self._enough:
            try:
                answer = await self._http.post("/responses", json={"input": ASKED})
            except httpx.TransportError as error:
                await self._again(type(error).__name__)
                continue
            if answer.status_code in (429, 503):
                assert "retry-after" in answer.headers, answer.text
                await self._again(str(answer.status_code))
            elif answer.status_code == 200:
                self._ended("json", answer.json())
            else:
                self.tally.failed.append(f"json: {answer.status_code} {answer.text}")

    async def _stream(self) -> None:
        while not self._enough:
            events: list[Frame] = []
            why = await self._read("sse", RawStream.create(self.server, input=ASKED, stream=True), events)
            if events and events[-1]["type"] in ENDS:
                assert_laws(events)
                self._ended("sse", events[-1]["response"])
            else:
                await self._again(why)

    async def _background(self) -> None:
        while not self._enough:
            events: list[Frame] = []
            opening = RawStream.create(self.server, input=ASKED, stream=True, background=True)
            why = await self._read("background", opening, events)
            if not events:
                await self._again(why)
                continue
            response_id = events[0]["response"]["id"]
            self.tally.acknowledged.add(response_id)
            while events[-1]["type"] not in ENDS:
                await self._again(f"{why} of a background stream")
                opening = RawStream.resume(self.server, response_id, events[-1]["sequence_number"])
                why = await self._read("background", opening, events)
            assert_laws(events)
            self._ended("background", events[-1]["response"])

    async def _read(self, kind: str, opening: Awaitable[RawStream], events: list[Frame]) -> str:
        """Read a stream to its end, or to where it breaks; return why."""
        stream: RawStream | None = None
        clock = asyncio.get_running_loop().time
        last = clock()
        try:
            stream = await opening
            while (event := await stream.next()) is not None:
                events.append(event)
                self.tally.gaps[kind] = max(self.tally.gaps[kind], clock() - last)
                last = clock()
        except (*CUT, TimeoutError) as error:
            return type(error).__name__
        except AssertionError as error:  # the head of an answer that is not a 200
            return self._refused(kind, str(error))
        finally:
            if stream is not None:
                stream.kill()
        return "the end"

    def _refused(self, kind: str, head: str) -> str:
        status = _STATUS.search(head.encode())
        if status is None or status[1] not in (b"429", b"503"):
            self.tally.failed.append(f"{kind}: {head[-300:]}")
        return status[1].decode() if status else "no answer"

    async def _talk(self) -> None:
        parent: str | None = None
        turns = count(1)
        while not self._enough:
            try:
                async with await Socket.open(self.server.ws_url) as socket:
                    while not self._enough:
                        begins = next(turns) % TURNS == 0  # a chain that grew for ever would be memory that grows
                        parent = await self._turn(socket, None if begins else parent)
            except ConnectionClosed as closed:
                await self._again(f"WebSocket {closed.rcvd.code if closed.rcvd else 1006}")
            except InvalidStatus as refused:
                await self._again(f"WebSocket {refused.response.status_code}")
            except (OSError, InvalidHandshake, InvalidMessage) as error:  # TimeoutError is an OSError
                await self._again(f"WebSocket {type(error).__name__}")

    async def _turn(self, socket: Socket, parent: str | None) -> str | None:
        """Ask once; return what the next turn continues."""
        await socket.create(ASKED, **({"previous_response_id": parent} if parent else {}))
        clock = asyncio.get_running_loop().time
        last, event = clock(), await socket.next()
        while event["type"] not in (*ENDS, "error"):
            self.tally.gaps["websocket"] = max(self.tally.gaps["websocket"], clock() - last)
            last, event = clock(), await socket.next()
        if event["type"] != "error":
            self._ended("websocket", event["response"])
            completed = event["response"]["status"] == "completed"
            return str(event["response"]["id"]) if completed else parent
        if event["status"] in (429, 503):
            await self._again(f"{event['status']} frame")
        else:
            self.tally.failed.append(f"websocket: {event}")
        return parent

    async def _hold_to_the_promises(self) -> None:
        """Whatever was acknowledged is there, and is whole."""
        for response_id in sorted(self.tally.acknowledged):
            answer = await self._http.get(f"/responses/{response_id}")
            assert answer.status_code == 200, f"{response_id}: {answer.text}"
            response = answer.json()
            assert response["status"] == "completed", response
            assert text_of(response) == ANSWER, response


@asynccontextmanager
async def under_load(server: Server, fault: str, *, clients: int = STREAMS) -> AsyncIterator[Tally]:
    """Load a server; behind the fault it has to serve as before. Prints the figures, and keeps them for the table."""
    load = Load(server, clients=clients)
    tally, began, passed = load.tally, time.monotonic(), False
    try:
        async with load.running():
            yield tally
            await load.more(2)
        assert tally.failed == [], tally.failed[:10]
        assert {why.removesuffix(" of a background stream") for why in tally.retried} <= BROKEN
        passed = True
    finally:
        seconds = time.monotonic() - began
        figures = Figures(
            fault, tally.completed, tally.retried, len(tally.failed), tally.gaps, seconds, passed, tally.noted
        )
        keep(figures)
        print(f"\n{fault}: {figures}")
